"""Runs Skyline's own trackers, unchanged, on an entry: a script for ``snapconv record --simulate``.

    tracker_run.py PACKAGE FOLDER OUTPUT    skyline, or deepview_profile, which follows it; the
    folder of
                                            the entry; the memory report to write

The package is imported without its ``__init__``, which has a server and imports more than trackers
need.
"""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

name, folder, output = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3]
spec = importlib.util.find_spec(name)
assert spec
assert spec.submodule_search_locations
package = types.ModuleType(name)
package.__path__ = list(spec.submodule_search_locations)
sys.modules[name] = package
sys.path.insert(0, str(folder))

import providers  # type: ignore[import-not-found]  # noqa: E402  # of the entry

Tracker = importlib.import_module(f"{name}.tracking.tracker").Tracker


def provided(kind: str) -> object:
    """The provider of this kind, Skyline's or DeepView's."""
    (found,) = [
        getattr(providers, name) for name in vars(providers) if name.endswith(f"_{kind}_provider")
    ]
    return found


tracker = Tracker(
    *(provided(kind) for kind in ("model", "iteration", "input")),
    str(folder),
    str(folder / "providers.py"),
)
tracker.track_memory()
tracker.get_memory_report(output)
