"""A warning of torch's names the line that the user wrote, though our modes stand in between."""

import warnings

import pytest

from snapconv.recorder.program.script import warnings_name_the_user

SCRIPT = """
import torch

torch.set_warn_always(True)
loss = torch.nn.Linear(8, 8).cuda()(torch.randn(4, 8, device="cuda")).sum()
float(loss)
torch.set_warn_always(False)
"""


def test_a_warning_of_torchs_names_the_users_line(run, recwarn):
    done = run(SCRIPT, before="")
    assert done.code == 0, done.err
    shown = [
        warning
        for warning in recwarn
        if "Converting a tensor with requires_grad" in str(warning.message)
    ]
    if not shown:
        pytest.skip("this torch has no such warning")
    assert {(warning.filename, warning.lineno) for warning in shown} == {
        (str(done.folder / "train.py"), 6)
    }


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
