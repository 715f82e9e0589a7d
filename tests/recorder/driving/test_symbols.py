"""Stacks name the C++ functions that torch's libraries do not export, whatever this torch does by itself."""

import os
import subprocess
import sys

import pytest

from snapconv.guest.symbols import name_every_function

pytest.importorskip("torch")

NAMES = """
import os, torch
from snapconv.guest.symbols import name_every_function
name_every_function()
profiler = torch._C._profiler
(frames,) = profiler.symbolize_tracebacks([profiler.gather_traceback(False, False, True)])
print(os.environ.get("TORCH_SYMBOLIZE_MODE"))
print(any("dispatcher" in frame["name"] for frame in frames))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="torch has C++ stacks on Linux only")
def test_functions_that_are_not_exported_have_names_and_the_environment_is_as_before():
    """The variable afterwards, and whether the static function through which Python calls C++ has a name."""
    done = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "True"]


def test_what_the_environment_chooses_stays_chosen(monkeypatch):
    monkeypatch.setenv("TORCH_SYMBOLIZE_MODE", "dladdr")
    name_every_function.__wrapped__()
    assert os.environ["TORCH_SYMBOLIZE_MODE"] == "dladdr"
