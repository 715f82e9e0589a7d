"""A shell of IPython, as a notebook has one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def notebook_shell(folder: Path) -> Iterator[Any]:
    """Start a shell that keeps its settings in a folder; a process has only one of its kind."""
    from IPython.core.interactiveshell import InteractiveShell  # skipped where it is not installed

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder))
        hook = sys.excepthook
        shell = InteractiveShell.instance()
        shell.history_manager.enabled = False
        yield shell
        sys.excepthook = hook
        InteractiveShell.clear_instance()
