"""A warning of torch's names the line that the user wrote, though our modes stand in between.

In processes of their own: here warnings are errors, and torch says this one once.
"""

import subprocess
import sys
import warnings

import pytest

from snapconv.recorder.program.script import warnings_name_the_user

SCRIPT = """
import torch

loss = torch.nn.Linear(8, 8).cuda()(torch.randn(4, 8, device="cuda")).sum()
float(loss)
"""


PLAIN = "import torch; float(torch.ones(1, requires_grad=True).sum())"


def test_a_warning_of_torchs_names_the_users_line(tmp_path):
    pytest.importorskip("torch")
    plain = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True)
    if "Converting a tensor with requires_grad" not in plain.stderr:
        pytest.skip("this torch has no such warning")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = f"{tmp_path}/train.py:5: UserWarning: Converting a tensor with requires_grad"
    assert said in done.stderr
    assert "snapconv/recorder" not in done.stderr


def test_who_shows_warnings_does_so_again_afterwards():
    before = warnings.showwarning
    with warnings_name_the_user():
        assert warnings.showwarning is not before
    assert warnings.showwarning is before


def test_a_program_that_shows_warnings_itself_keeps_doing_so(monkeypatch):
    def theirs(*_):
        pass

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # put back after the test
    with warnings_name_the_user():
        warnings.showwarning = theirs
    assert warnings.showwarning is theirs
