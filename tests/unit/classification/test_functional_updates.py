"""Weights that a program computes from others and their gradients, and differentiates through."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    RELEASE,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
    cpp,
    frames,
)

SECOND = 9000  # of a second parameter
UPDATE = frames(cpp("at::_ops::sub_Tensor::call(at::Tensor const&)")) + MAIN
ACTIVATION, GRADIENT, INPUT = Category.ACTIVATION, Category.GRADIENT, Category.INPUT


@pytest.fixture
def found(tmp_path):
    """The categories of the blocks as large as the first parameter, older ones first."""
    return lambda job: categories(classified(job, tmp_path / "snapshot.pickle"))


class Meta(Job):
    """Weights that are older, and the results of an inner backward."""

    def __init__(self, sizes=(SUBJECT, SECOND)):
        super().__init__()
        self.sizes = sizes
        for size in (SUBJECT, SECOND):
            self.older(NO_FRAMES, size)
        self.does(FORWARD)
        saved = self.alloc(ENGINE, 5000)
        self.inner = [self.alloc(ENGINE, size) for size in (SUBJECT, SECOND)]
        self.does(ENGINE)
        self.saved = saved

    def ends(self, blocks, stack, *, through_inner=False):
        """The outer forward and backward, which frees blocks, or else the line that makes the next ones."""
        self.does(FORWARD)
        self.does(ENGINE)
        if through_inner:
            self.free(self.saved, RELEASE)
        for block in blocks:
            self.free(block, stack)
        for size in (SUBJECT, SECOND):
            self.alloc(ENGINE, size)
        self.does(STEP)


def test_what_a_line_computes_for_every_gradient_and_a_graph_frees_is_an_activation(found):
    job = Meta()
    fast = [job.alloc(UPDATE, size) for size in job.sizes]
    job.ends(fast, RELEASE)
    assert found(job)[2] == ACTIVATION


def test_fast_weights_that_the_program_still_has_are_activations_where_the_inner_backward_is_differentiated(
    found,
):
    job = Meta()
    for size in job.sizes:
        job.alloc(UPDATE, size)
    job.ends([], RELEASE, through_inner=True)
    _, inner, fast, outer = found(job)
    assert (inner, fast, outer) == (ACTIVATION, ACTIVATION, GRADIENT)


def test_what_the_program_still_has_is_not_decided_where_no_backward_is_seen_to_go_through_it(found):
    job = Meta()
    for size in job.sizes:
        job.alloc(UPDATE, size)
    job.ends([], RELEASE)
    assert found(job)[2] not in (ACTIVATION, INPUT)


def test_a_line_that_makes_one_size_may_make_batches(tmp_path):
    """The rule leaves them to those after it."""
    job = Meta(sizes=(SUBJECT, SUBJECT))
    batches = [job.alloc(UPDATE, size) for size in job.sizes]
    job.ends(batches, RELEASE)
    rows = classified(job, tmp_path / "snapshot.pickle")
    assert "one-for-every-gradient-and-in-a-graph" not in {reason for _, _, reason in rows}


def test_what_is_as_large_as_no_result_of_a_backward_is_a_batch(found):
    job = Meta()
    batches = [job.alloc(UPDATE, size) for size in (SUBJECT, SECOND + 4096)]
    job.ends(batches, RELEASE)
    assert found(job)[2] == INPUT


def test_what_is_loaded_is_no_result_of_a_step_of_functions(tmp_path):
    job = Meta()
    loaded = frames(cpp("at::_ops::_to_copy::call(at::Tensor const&)")) + LOAD
    batches = [job.alloc(loaded, size) for size in job.sizes]
    job.ends(batches, RELEASE)
    rows = classified(job, tmp_path / "snapshot.pickle")
    assert "one-for-every-gradient-and-in-a-graph" not in {reason for _, _, reason in rows}


def test_the_results_of_an_inner_backward_are_no_reference_for_the_states_of_the_optimizer(found):
    """Two states for each parameter are older; gradients are live twice, of which one is of the inner one."""
    job = Meta()
    job.model.stop_recording()
    for _ in range(2):
        for size in (SUBJECT, SECOND):
            job.model.malloc(size, frames=NO_FRAMES)
    job.model.start_recording()
    fast = [job.alloc(UPDATE, size) for size in job.sizes]
    job.ends(fast, RELEASE)
    rows = found(job)
    assert rows.count(Category.WEIGHT) == 1
    assert rows.count(Category.OPTIMIZER_STATE) == 2


def test_what_a_line_makes_for_every_gradient_after_the_step_is_of_no_inner_one(tmp_path):
    """An average of the weights, or the next batches: the backward that follows is of the next iteration."""
    job = Meta()
    job.does(STEP)
    made = [job.alloc(UPDATE, size) for size in job.sizes]
    job.ends(made, RELEASE)
    rows = classified(job, tmp_path / "snapshot.pickle")
    assert "one-for-every-gradient-and-in-a-graph" not in {reason for _, _, reason in rows}
