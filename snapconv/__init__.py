"""snapconv: PyTorch CUDA memory snapshots, read offline and recorded. See docs/reference/library.md.

Importing this package loads neither NumPy nor torch; a name loads what it needs when it is used.
"""

from typing import TYPE_CHECKING

from snapconv.errors import SnapconvError
from snapconv.version import VERSION as __version__

if TYPE_CHECKING:
    from snapconv.classification.categories import Category, Evidence
    from snapconv.recorder.recording import recording
    from snapconv.recorder.schedule import step
    from snapconv.session import Session, load

_LAZY = {
    "Category": "snapconv.classification.categories",
    "Evidence": "snapconv.classification.categories",
    "Session": "snapconv.session",
    "load": "snapconv.session",
    "recording": "snapconv.recorder.recording",
    "step": "snapconv.recorder.schedule",
}

__all__ = ["Category", "Evidence", "Session", "SnapconvError", "__version__", "load", "recording", "step"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'snapconv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
