"""Optimizers that step in hooks of gradients: one parameter at a time, within backward."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    CUSTOM_BACKWARD,
    ENGINE,
    FORWARD,
    HOOK,
    HOOK_STEP,
    NO_FRAMES,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
)

GRADIENT, TEMPORARY = Category.GRADIENT, Category.TEMPORARY


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job: classified(job, tmp_path / "snapshot.pickle")


def backward_frees(made_by, freed_by, *, weight_bytes=SUBJECT):
    """Backward makes a block beside a weight that is older than the trace, and frees it before it ends."""
    job = Job()
    job.older(NO_FRAMES, weight_bytes)
    job.does(FORWARD)
    block = job.alloc(made_by)
    job.does(HOOK_STEP)
    job.model.free(block, frames=freed_by)
    job.does(ENGINE)
    return job


@pytest.mark.parametrize("freed_by", [ENGINE, CUSTOM_BACKWARD], ids=["the engine", "a function of autograd"])
def test_what_others_free_within_backward_is_temporary(freed_by, found):
    assert categories(found(backward_frees(ENGINE, freed_by)))[-1] == TEMPORARY


def test_what_a_hook_makes_itself_is_temporary(found):
    assert categories(found(backward_frees(HOOK, HOOK)))[-1] == TEMPORARY


@pytest.mark.parametrize(("step", "expected"), [(HOOK_STEP, TEMPORARY), (STEP, GRADIENT)])
def test_what_backward_frees_after_a_step_in_a_hook_is_of_the_same_backward(step, expected, found):
    """After a step of the program another backward runs, and what lived until then was a gradient."""
    job = Job()
    job.older(NO_FRAMES)
    job.does(FORWARD)
    block = job.alloc(ENGINE)
    job.does(step, ENGINE)
    job.model.free(block, frames=[{"name": "main", "filename": "/w/proj/train.py", "line": 9}])
    job.does(ENGINE)
    assert categories(found(job))[-1] == expected
