"""What a line makes for every parameter, and what only looks like it."""

from collections import Counter

import numpy as np
import pytest

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rules.for_every_parameter import is_nearly
from tests.classified_jobs import (
    APPLY,
    CLONE,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    SHAPES,
    STEP,
    SUBJECT,
    ZERO_GRAD,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    cpp,
    frames,
    with_copies,
)

WEIGHT = Category.WEIGHT
GRADIENT = Category.GRADIENT
INPUT = Category.INPUT
STATE = Category.OPTIMIZER_STATE
UNKNOWN = Category.UNKNOWN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


CLONED_TO_COPY = CLONE[:1] + frames(cpp("at::_ops::_to_copy::call(at::Tensor const&)")) + MAIN


@pytest.mark.parametrize(
    ("stack", "category"),
    [(ZEROS, STATE), (CLONE, WEIGHT), (CLONED_TO_COPY, WEIGHT)],
    ids=["moments", "a copy", "a copy by a clone"],
)
def test_what_a_line_makes_for_every_parameter_is_an_optimizers_or_a_second_model(stack, category, found):
    row = found(with_copies(stack), SHAPES[0])[1]
    assert row == (category, Evidence.SIZES, "made-for-every-parameter")


@pytest.mark.parametrize(("n_without", "category"), [(1, STATE), (2, UNKNOWN)])
def test_a_line_that_leaves_out_more_than_a_tenth_of_the_parameters_is_not_for_every_one(
    n_without, category, found
):
    """Twelve parameters of equal size but for the last digits."""
    shapes = [7168 + 512 * n for n in range(12)]
    job = Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in shapes[n_without:]:
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert found(job, shapes[-1])[1][0] is category


def test_a_line_that_leaves_out_a_tenth_of_the_bytes_is_for_every_parameter(found):
    """Seven parameters of one size and one three times as large; one of the seven has no moment."""
    shapes = [12 * 1024, *[4 * 1024] * 7]
    job = Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in shapes[:-1]:
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert categories(found(job, shapes[0]))[1] is STATE


@pytest.mark.parametrize(
    ("stacks", "engine"),
    [((CLONE, ZEROS), ENGINE), ((LOAD, MAIN), NO_FRAMES)],
    ids=["all stacks", "Python stacks"],
)
def test_copies_in_full_precision_are_an_optimizers_where_its_moments_are(stacks, engine, found):
    rows = found(with_copies(*stacks, factor=2, engine=engine), 2 * SHAPES[0])
    assert rows == [(STATE, Evidence.SIZES, "made-for-every-parameter")] * 2


def test_what_torchs_optimizer_steps_on_in_full_precision_are_weights(found):
    """Without C++ frames: copies of the weights, and after backward those of their gradients."""
    job = with_copies(LOAD, factor=2, engine=NO_FRAMES)
    gradients = [job.alloc(MAIN, 2 * size) for size in SHAPES]
    for size in SHAPES:
        job.alloc(STEP, 2 * size)
    for addr in gradients:
        job.free(addr, MAIN)
    for size in SHAPES:
        job.alloc(MAIN, 2 * size)
    rows = found(job, 2 * SHAPES[0])
    assert rows[0] == (WEIGHT, Evidence.SIZES, "made-for-every-parameter")
    assert rows[-1][0] is not STATE


def test_copies_in_full_precision_alone_may_be_an_average(found):
    assert categories(found(with_copies(CLONE, factor=2), 2 * SHAPES[0])) == [UNKNOWN]


def test_without_frames_of_cpp_copies_in_full_precision_of_one_line_may_be_an_average(found):
    rows = found(with_copies(LOAD, factor=2, engine=NO_FRAMES), 2 * SHAPES[0])
    assert categories(rows) == [UNKNOWN]


def test_what_has_no_stack_is_of_no_line(found):
    """As where stacks were recorded later: what is left are copies of one line, maybe an average."""
    job = with_copies(None, LOAD, factor=2, engine=NO_FRAMES)
    assert categories(found(job, 2 * SHAPES[0])) == [UNKNOWN] * 2


def test_two_copies_in_full_precision_without_moments_may_be_averages(found):
    job = with_copies(CLONE, at_line(CLONE, 2), factor=2)
    assert categories(found(job, 2 * SHAPES[0])) == [UNKNOWN] * 2


def test_as_many_bytes_of_other_sizes_are_not_made_for_every_parameter(found):
    job = with_copies(ZEROS, shapes=(SHAPES[0] + 500, SHAPES[1] - 500))
    assert STATE not in categories(found(job, SHAPES[0] + 500))


def test_a_line_that_has_a_part_of_the_sizes_as_often_is_not_for_every_parameter(found):
    """Of three parameters it makes two, and as many bytes as there are in all."""
    shapes, job = (7000, 7000, 9000), Job()
    for size in shapes:
        job.alloc(APPLY, size)
    for size in (7000, 7000, 9500):
        job.alloc(ZEROS, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    assert STATE not in categories(found(job, 7000))


def test_copies_of_gradients_are_no_second_model(found):
    assert categories(found(with_copies(CLONE, is_late=True), SHAPES[0]))[2] is not WEIGHT


@pytest.mark.parametrize("shapes", [SHAPES[:1], (*SHAPES, 20_000)], ids=["for some", "and for others"])
def test_what_a_line_makes_for_some_parameters_may_be_anything(shapes, found):
    for stack in (COPY, ZEROS):
        assert categories(found(with_copies(stack, shapes=shapes), SHAPES[0]))[1] not in (WEIGHT, STATE)


def test_a_single_size_may_agree_by_chance(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(COPY)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert categories(found(job)) == [WEIGHT, INPUT, GRADIENT]


@pytest.mark.parametrize(("state_factor", "category"), [(2, WEIGHT), (1, UNKNOWN)])
def test_copies_in_full_precision_that_an_optimizer_steps_on_are_weights(state_factor, category, found):
    """Its states are as large as what it steps on, and not as the model in half precision."""
    job = with_copies(CLONE, factor=2)
    for size in SHAPES:
        job.alloc(STEP, state_factor * size)
    job.does(STEP)
    assert categories(found(job, 2 * SHAPES[0]))[0] == category


@pytest.mark.parametrize(
    ("made", "wanted", "expected"),
    [
        ({1000: 7, 2000: 1}, {1000: 8, 2000: 1}, True),
        ({1000: 6, 2000: 1}, {1000: 8, 2000: 1}, False),
        ({1000: 8, 2000: 1}, {1000: 7, 2000: 1}, True),
        ({1000: 9, 2000: 1}, {1000: 7, 2000: 1}, False),
        ({1000: 6, 2000: 2}, {1000: 8, 2000: 1}, False),
        ({1000: 10}, {1000: 10}, False),
        ({1000: 1, 2000: 1}, {1000: 1, 2000: 1}, True),
    ],
    ids=["nine tenths", "fewer", "a tenth more", "more", "of other sizes", "of one size", "two"],
)
def test_nearly_all_are_nine_tenths_of_the_bytes_of_several_sizes(made, wanted, expected):
    sizes = np.array(sorted(Counter(made).elements()))
    assert is_nearly(sizes, Counter(wanted)) is expected


@pytest.mark.parametrize(("n_states", "category"), [(9, WEIGHT), (8, UNKNOWN)])
def test_what_nearly_all_has_states_as_large_is_stepped_on(n_states, category, found):
    shapes = tuple(7000 + 64 * n for n in range(10))
    job = Job()
    for stack, factor in ((APPLY, 1), (CLONE, 2)):
        for size in shapes:
            job.alloc(stack, factor * size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in shapes]:
        job.free(addr, ZERO_GRAD)
    for size in shapes[:n_states]:
        job.alloc(STEP, 2 * size)
    job.does(STEP)
    assert categories(found(job, 2 * shapes[0]))[0] is category


OTHER = SHAPES[0] + 512


def with_one(stack, size=SHAPES[0], *, engine=ENGINE, is_late=False):
    """A model that is trained, and a block beside it."""
    return with_copies(stack, shapes=(size,), engine=engine, is_late=is_late)


def test_a_clone_as_large_as_a_trained_parameter_is_a_copy_of_it(found):
    """As textual inversion keeps the embedding, to put back the rows of all other words."""
    assert found(with_one(CLONE), SHAPES[0])[1] == (WEIGHT, Evidence.SIZES, "copy-of-a-parameter")


def test_a_batch_as_large_as_a_parameter_is_no_copy_of_it(found):
    assert categories(found(with_one(COPY), SHAPES[0]))[1] is INPUT


def test_a_clone_after_a_backward_may_be_of_a_gradient(found):
    assert categories(found(with_one(CLONE, is_late=True), SHAPES[0]))[-1] is UNKNOWN


def test_a_line_that_clones_anything_else_too_may_clone_batches(found):
    job = with_copies(CLONE, shapes=(*SHAPES, OTHER))
    assert categories(found(job, SHAPES[0]))[1] is UNKNOWN


def test_a_clone_of_another_size_is_no_copy_of_a_parameter(found):
    assert categories(found(with_one(CLONE, OTHER), OTHER)) == [INPUT]


def test_without_cpp_frames_what_is_as_large_as_a_parameter_is_a_batch(found):
    """As many samples as a layer has outputs: powers of two."""
    assert categories(found(with_one(LOAD, engine=NO_FRAMES), SHAPES[0]))[1] is INPUT


@pytest.mark.parametrize(("size", "category"), [(1024, WEIGHT), (1023, INPUT)])
def test_of_a_small_size_a_batch_may_be_as_well(size, category, found):
    job = Job()
    job.alloc(APPLY, size)
    job.alloc(CLONE, size)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE, size), ZERO_GRAD)
    assert categories(found(job, size))[1] is category
