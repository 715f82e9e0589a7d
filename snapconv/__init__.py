"""snapconv: PyTorch CUDA memory snapshots, read offline and recorded. See docs/reference/library.md.

Importing this package loads neither NumPy nor torch; a name loads what it needs when it is used.
"""

from typing import TYPE_CHECKING

from snapconv.errors import SnapconvError
from snapconv.version import VERSION as __version__

if TYPE_CHECKING:
    from snapconv.answers.check import Budgets
    from snapconv.answers.what_if.setting_trials import Request
    from snapconv.classification.categories import Category, Certainty, Evidence
    from snapconv.convert import ConvertOptions, to_sqlite
    from snapconv.ranks.job import JobOptions, read_job
    from snapconv.recorder.recording import recording
    from snapconv.recorder.schedule import step
    from snapconv.session import Session, load
    from snapconv.snapshot.event_table import Action

_LAZY = {
    "Action": "snapconv.snapshot.event_table",
    "Budgets": "snapconv.answers.check",
    "Category": "snapconv.classification.categories",
    "Certainty": "snapconv.classification.categories",
    "ConvertOptions": "snapconv.convert",
    "Evidence": "snapconv.classification.categories",
    "JobOptions": "snapconv.ranks.job",
    "Request": "snapconv.answers.what_if.setting_trials",
    "Session": "snapconv.session",
    "load": "snapconv.session",
    "read_job": "snapconv.ranks.job",
    "recording": "snapconv.recorder.recording",
    "step": "snapconv.recorder.schedule",
    "to_sqlite": "snapconv.convert",
}

__all__ = [
    "Action",
    "Budgets",
    "Category",
    "Certainty",
    "ConvertOptions",
    "Evidence",
    "JobOptions",
    "Request",
    "Session",
    "SnapconvError",
    "__version__",
    "load",
    "read_job",
    "recording",
    "step",
    "to_sqlite",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'snapconv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
