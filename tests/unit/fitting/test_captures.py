"""What fit makes of the captures that recordings leave: rows, and folders to keep."""

from pathlib import Path

import pytest

from snapconv.files import SNAPSHOT_NAME
from snapconv.fitting import fit as fitting
from snapconv.fitting.fit import FitOptions, fit
from snapconv.fitting.processes import Ended
from tests.builders import MIB, TraceBuilder


def record(runs, _environment, *, n_workers):
    """Leave what ``snapconv record`` would, without a process."""
    for number, run in enumerate(runs):
        folder = Path(run.command[run.command.index("--output") + 1])
        if "nothing" not in run.command:
            folder.mkdir()
            TraceBuilder(0).segment(20 * MIB).alloc(MIB).write(folder / SNAPSHOT_NAME)
        yield Ended(number, 0, 1.0)


@pytest.fixture(autouse=True)
def _recordings(monkeypatch):
    monkeypatch.setattr(fitting, "run_all", record)


@pytest.mark.parametrize("value", ["a/b", "a/" * 200])
def test_every_combination_keeps_a_capture_of_its_own(value, tmp_path):
    values = {"data": (value, value.replace("/", " "))}
    keep = tmp_path / "kept"
    report = fit("train.py", FitOptions(capacity="1GiB", values=values, keep=keep))
    captures = {row.capture for row in report.rows}
    assert captures == {str(path) for path in keep.iterdir()}
    assert len(captures) == 2
    assert [sorted(path.name for path in folder.iterdir()) for folder in keep.iterdir()] == [
        [SNAPSHOT_NAME]
    ] * 2


def test_a_program_without_a_capture_is_not_said_to_use_no_device():
    options = FitOptions(capacity="1GiB", values={"data": ("nothing",)})
    (row,) = fit("train.py", options).rows
    assert "no capture was left" in row.reason


def test_what_is_given_twice_is_recorded_once():
    options = FitOptions(
        capacity="1GiB", world_sizes=(4, 4), values={"data": ("a", "a")}, ranks=(3, 3)
    )
    report = fit("train.py", options)
    assert len(report.rows) == 1
    assert report.not_run == ()


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("ValueError: odd\n", "ValueError: odd"),
        # The program went on without the module, and then refused an option.
        (
            "ImportError: no flash_attn\nusage: train.py\ntrain.py: error: argument --lr: odd\n",
            "train.py: error: argument --lr: odd",
        ),
    ],
)
def test_the_reason_of_a_failure_is_what_ended_the_program(tmp_path, printed, reason):
    file = tmp_path / "printed.txt"
    file.write_text(f'Traceback (most recent call last):\n  File "t.py", line 1\n{printed}')
    assert fitting._reason(file, 2) == reason
