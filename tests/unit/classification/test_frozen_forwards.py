"""Whether a second, frozen model may be there: modules that run from two places, and once save nothing."""

import pickle

import pytest

from snapconv.classification.features import find_features
from snapconv.classification.frozen_forwards import frozen_modules_ran
from snapconv.phases.trace_phases import find_phases
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.stack_roles import assign_roles
from tests.classified_jobs import ENGINE, RELEASE, TORCH, Job, frames

LINES = range(10, 14)


def in_model(file, line, called_at):
    own = [{"name": "forward", "filename": f"/w/proj/{file}", "line": line}]
    call = frames(("_call_impl", f"{TORCH}/nn/modules/module.py"))
    return [*own, *call, {"name": "main", "filename": "/w/proj/train.py", "line": called_at}]


def forward(job, called_at, *, file="model.py", lines=LINES):
    return [job.alloc(in_model(file, line, called_at)) for line in lines]


def backward(job, saved):
    job.does(ENGINE)
    for addr in saved:
        job.free(addr, RELEASE)


@pytest.fixture
def is_frozen(tmp_path):
    def is_frozen(job):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(job.snapshot()))
        snapshot = load_snapshot(path)
        (device,) = snapshot.devices
        rows, roles = replay(snapshot, device).allocations, assign_roles(snapshot.stacks)
        return frozen_modules_ran(find_features(rows, find_phases(snapshot, device, rows, roles), roles))

    return is_frozen


def job_with(**second):
    """One forward that is trained, and before it another, of which nothing is saved."""
    job = Job()
    for addr in forward(job, **second):
        job.free(addr, in_model("model.py", 99, 1))
    backward(job, forward(job, called_at=2))
    return job


def test_a_teacher_runs_the_same_lines_from_another_place_and_saves_nothing(is_frozen):
    assert is_frozen(job_with(called_at=1))


@pytest.mark.parametrize(
    "second",
    [{"called_at": 1, "file": "vae.py"}, {"called_at": 1, "lines": LINES[:1]}, {"called_at": 2}],
    ids=["another model", "a single line", "the same place"],
)
def test_what_else_runs_without_saving_is_no_copy(second, is_frozen):
    assert not is_frozen(job_with(**second))


def test_two_forwards_that_are_both_trained_are_one_model(is_frozen):
    job = Job()
    saved = [*forward(job, called_at=1), *forward(job, called_at=2)]
    backward(job, saved)
    assert not is_frozen(job)
