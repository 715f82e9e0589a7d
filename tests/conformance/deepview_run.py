"""Runs DeepView's own trackers, unchanged, on an entry: a script for ``snapconv record --simulate``.

    deepview_run.py FOLDER OUTPUT    the folder of the entry, and the memory report to write

Its package is imported without its ``__init__``, which has a server and imports more than trackers need.
"""

import importlib.util
import sys
import types
from pathlib import Path

folder, output = Path(sys.argv[1]).resolve(), sys.argv[2]
spec = importlib.util.find_spec("deepview_profile")
assert spec
assert spec.submodule_search_locations
package = types.ModuleType("deepview_profile")
package.__path__ = list(spec.submodule_search_locations)
sys.modules["deepview_profile"] = package
sys.path.insert(0, str(folder))

import providers  # type: ignore[import-not-found]  # noqa: E402  # of the entry
from deepview_profile.tracking.tracker import Tracker  # type: ignore[import-not-found]  # noqa: E402


def provided(kind: str) -> object:
    """The provider of this kind, Skyline's or DeepView's."""
    (found,) = [getattr(providers, name) for name in vars(providers) if name.endswith(f"_{kind}_provider")]
    return found


tracker = Tracker(
    *(provided(kind) for kind in ("model", "iteration", "input")), str(folder), str(folder / "providers.py")
)
tracker.track_memory()
tracker.get_memory_report(output)
