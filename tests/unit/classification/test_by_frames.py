"""Workspaces that were there before the trace, which only their size shows."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    SUBJECT,
    WORKSPACE_BYTES,
    Job,
    categories,
    classified,
)

WORKSPACE = Category.WORKSPACE


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


@pytest.mark.parametrize(("n_blocks", "are_workspaces"), [(2, True), (3, False)])
def test_old_blocks_of_the_size_of_a_workspace_are_two_at_most(n_blocks, are_workspaces, found):
    job = Job()
    for _ in range(n_blocks):
        job.older(NO_FRAMES, WORKSPACE_BYTES)
    job.does(FORWARD)
    rows = found(job, WORKSPACE_BYTES)
    assert [category is WORKSPACE for category in categories(rows)] == [are_workspaces] * n_blocks


@pytest.mark.parametrize(
    ("stack", "engine", "is_workspace"),
    [(NO_FRAMES, ENGINE, True), (MAIN, ENGINE, False), (MAIN, NO_FRAMES, True)],
    ids=["without frames", "with frames", "with frames of Python only"],
)
def test_an_old_workspace_is_one_by_its_size_where_no_stack_of_cpp_shows_who_made_it(
    stack, engine, is_workspace, found
):
    job = Job()
    job.older(stack, WORKSPACE_BYTES)
    job.does(FORWARD, engine)
    assert (categories(found(job, WORKSPACE_BYTES)) == [WORKSPACE]) == is_workspace


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_old_workspace_is_there_at_the_end_and_of_a_size_of_its_own(is_kept, found):
    job = Job()
    old = job.older(NO_FRAMES, WORKSPACE_BYTES)
    job.does(FORWARD, ENGINE)
    if not is_kept:
        job.free(old, MAIN)
    assert (categories(found(job, WORKSPACE_BYTES)) == [WORKSPACE]) == is_kept
    for _ in range(2):
        job.free(job.alloc(FORWARD, WORKSPACE_BYTES), FORWARD)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))
