"""snapconv: PyTorch CUDA memory snapshots, read offline and recorded.

docs/reference/library.md describes the library. Importing this package loads neither NumPy nor
torch; a name loads what it needs when it is used.
"""

from typing import TYPE_CHECKING

from snapconv.errors import SnapconvError
from snapconv.version import VERSION as __version__

if TYPE_CHECKING:
    from snapconv.answers.check import Budgets as Budgets
    from snapconv.answers.what_if.setting_trials import Request as Request
    from snapconv.classification.categories import Category as Category
    from snapconv.classification.categories import Certainty as Certainty
    from snapconv.classification.categories import Evidence as Evidence
    from snapconv.convert import ConvertOptions as ConvertOptions
    from snapconv.convert import to_sqlite as to_sqlite
    from snapconv.fitting.fit import FitOptions as FitOptions
    from snapconv.fitting.fit import fit as fit
    from snapconv.ranks.job import JobOptions as JobOptions
    from snapconv.ranks.job import read_job as read_job
    from snapconv.recorder.recording import recording as recording
    from snapconv.recorder.schedule import step as step
    from snapconv.session import Session as Session
    from snapconv.session import load as load
    from snapconv.snapshot.event_table import Action as Action

_LAZY = {
    "Action": "snapconv.snapshot.event_table",
    "Budgets": "snapconv.answers.check",
    "Category": "snapconv.classification.categories",
    "Certainty": "snapconv.classification.categories",
    "ConvertOptions": "snapconv.convert",
    "Evidence": "snapconv.classification.categories",
    "FitOptions": "snapconv.fitting.fit",
    "JobOptions": "snapconv.ranks.job",
    "Request": "snapconv.answers.what_if.setting_trials",
    "Session": "snapconv.session",
    "fit": "snapconv.fitting.fit",
    "load": "snapconv.session",
    "read_job": "snapconv.ranks.job",
    "recording": "snapconv.recorder.recording",
    "step": "snapconv.recorder.schedule",
    "to_sqlite": "snapconv.convert",
}

__all__ = ["SnapconvError", "__version__", *_LAZY]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'snapconv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def load_ipython_extension(shell: object) -> None:
    """Give a notebook ``%%snapconv``; IPython calls this at ``%load_ext snapconv``."""
    from snapconv.integrations.notebook import register

    register(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
