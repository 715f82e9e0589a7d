"""Ctrl-C at a moment that nothing can be broken off in; nothing here needs torch."""

import os
import subprocess
import sys

import pytest

# A torch that answers an interrupt as C++ code does, by an error of its own.
TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
    {how}
except KeyboardInterrupt:
    raise ImportError("initialization failed")
"""


@pytest.mark.parametrize("how", ["pass", "raise ImportError('half imported')"])
def test_ctrl_c_while_torch_is_imported_ends_with_130_and_no_traceback(tmp_path, how):
    (tmp_path / "torch.py").write_text(TORCH.format(how=how))
    (tmp_path / "train.py").write_text("raise AssertionError('it ran')")
    done = subprocess.run(
        [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
