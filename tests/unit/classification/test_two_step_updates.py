"""What an optimizer of two steps keeps between them, and what only looks like it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ANNOTATIONS,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    STEP,
    SUBJECT,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    cpp,
    frames,
)

SIZES = (SUBJECT, 9000)
SCALED = frames(cpp("at::_ops::mul_Tensor::call(at::Tensor const&)")) + MAIN
COPIED = frames(cpp("at::_ops::clone::call(at::Tensor const&)")) + MAIN
STATE = Category.OPTIMIZER_STATE


@pytest.fixture
def moved(tmp_path):
    """The category of what the first step made for the first parameter."""

    def category_of(job):
        return categories(classified(job, tmp_path / "snapshot.pickle"))[2]

    return category_of


def two_steps(
    line=SCALED,
    *,
    weights=SIZES,
    sizes=None,
    cleared_by=ZERO_GRAD,
    n_kept=0,
    again=False,
    until_second=True,
    until_step=True,
    former=(),
    has_forward=True,
    has_step=True,
    has_silent_step=False,
    is_cleared_late=False,
):
    """Two backwards, after the first of which a line makes one block for every gradient.

    Something clears these, but for ``n_kept``. ``former``: what the line made before the trace. The blocks
    are freed after the step, before it, or by it (``until_step``: None).
    """
    job, sizes = Job(), weights if sizes is None else sizes

    def drop(blocks, by=MAIN):
        for block in blocks:
            job.free(block, by)

    for size in weights:
        job.older(NO_FRAMES, size)
    held = [job.older(NO_FRAMES, size) for size in former]
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in weights]
    job.does(ENGINE)
    made = [job.alloc(line, size) for size in sizes]
    for block in held:
        job.model.free(block, frames=line)
    if is_cleared_late:
        job.does(FORWARD, ENGINE)
    for gradient in gradients[n_kept:]:
        job.free(gradient, cleared_by)
    if has_forward:
        job.does(FORWARD)
    if not until_second:
        drop(made)
    gradients = [job.alloc(ENGINE, size) for size in weights]
    job.does(ENGINE)
    if again:
        made += [job.alloc(line, size) for size in sizes]
    if until_step is False:
        drop(made)
    if has_silent_step:
        job.note(ANNOTATIONS["step"], "START")
        job.note(ANNOTATIONS["step"], "END")
    elif until_step is None:
        drop(made, STEP)
    elif has_step:
        job.does(STEP)
    if until_second and until_step:
        drop(made)
    job.does(FORWARD)
    return job


def test_what_is_kept_from_the_first_step_to_the_second_is_state_of_the_optimizer(moved):
    assert moved(two_steps()) == STATE


def test_what_the_step_frees_first_was_kept_into_it(tmp_path):
    """An optimizer's own step takes back what was added, and then does another one's."""
    job = two_steps(until_step=None)
    assert categories(classified(job, tmp_path / "snapshot.pickle"))[2] == STATE


def test_where_the_step_shows_no_event_the_iteration_ends_with_it(tmp_path):
    """A fused step allocates nothing once its states are there."""
    for until_step, is_state in ((True, True), (False, False)):
        job = two_steps(until_step=until_step, has_silent_step=True)
        found = categories(classified(job, tmp_path / f"{until_step}.pickle"))[2]
        assert (found == STATE) == is_state


def test_what_was_kept_before_the_trace_is_what_replaces_it_on_the_same_line(tmp_path):
    _weight, former, *_ = classified(two_steps(former=SIZES), tmp_path / "snapshot.pickle")
    assert (former[0], former[2]) == (STATE, "replaced-on-the-same-line")
    _weight, former, *_ = classified(two_steps(former=[SUBJECT], again=True), tmp_path / "again.pickle")
    assert former[0] != STATE


@pytest.mark.parametrize(
    "other",
    [
        {"line": COPIED},
        {"sizes": (SUBJECT, SUBJECT)},
        {"cleared_by": MAIN},
        {"again": True},
        {"until_second": False},
        {"until_step": False},
        {"has_forward": False},
        {"has_step": False},
        {"is_cleared_late": True},
    ],
    ids=[
        "copies, maybe of gradients",
        "of one parameter",
        "gradients that nothing clears",
        "after every backward, as sums are",
        "freed before the second backward",
        "freed before the step, as bounds of weights are",
        "the graph of the first forward again",
        "no step, so that any number of backwards may be an iteration",
        "gradients that are cleared after the second backward",
    ],
)
def test_what_only_looks_like_it_is_not(other, moved):
    assert moved(two_steps(**other)) != STATE


# Twelve parameters that are about as large: one of them is less than a tenth of the bytes, two are more.
TWELVE = (SUBJECT, *(7168 + 512 * n for n in range(11)))


@pytest.mark.parametrize(
    "weights", [TWELVE[:1] + TWELVE[2:], (*TWELVE, TWELVE[1])], ids=["one less", "one more"]
)
def test_a_parameter_may_have_no_gradient_or_two(weights, moved):
    assert moved(two_steps(weights=TWELVE, sizes=weights)) == STATE


@pytest.mark.parametrize("weights", [TWELVE[:1] + TWELVE[3:], (*TWELVE, *TWELVE[1:3])], ids=["less", "more"])
def test_a_line_that_makes_a_tenth_less_or_more_than_there_are_gradients_is_no_step(weights, moved):
    assert moved(two_steps(weights=TWELVE, sizes=weights)) != STATE


@pytest.mark.parametrize(("n_kept", "is_step"), [(1, True), (2, False)])
def test_nearly_all_gradients_of_the_first_backward_are_cleared(n_kept, is_step, moved):
    assert (moved(two_steps(weights=TWELVE, n_kept=n_kept)) == STATE) == is_step
