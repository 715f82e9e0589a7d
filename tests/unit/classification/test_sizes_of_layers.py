"""Lines that make what the layers of a model have: new values of weights, and never batches or results."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    RELEASE,
    STEP,
    ZERO_GRAD,
    ZEROS,
    Job,
    Stack,
    at_line,
    categories,
    classified,
    cpp,
    frames,
)

UNKNOWN = Category.UNKNOWN
INPUT = Category.INPUT
WEIGHT = Category.WEIGHT

NEW_VALUE = (WEIGHT, Evidence.FREE_SITE, "new-values-of-weights")
LAYERS = (7000,) * 4 + (9000,) * 4 + (800,)
MOVED = frames(cpp("at::_ops::add_Tensor::call(at::Tensor const&)")) + at_line(MAIN, 50)
PYTHON = MOVED[1:]
COMPUTED = frames(cpp("at::_ops::div_Tensor::call(at::Tensor const&)")) + at_line(MAIN, 60)


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


def given(*sizes: int, n_times: int = 1, stack: Stack = COMPUTED, engine: Stack = ENGINE) -> Job:
    """A line makes blocks of these sizes before each forward, and the program frees them after it."""
    job = Job()
    job.alloc(APPLY, 100_000)
    for _ in range(n_times):
        made = [job.alloc(stack, size) for size in sizes]
        job.does(FORWARD, engine)
        for addr in made:
            job.free(addr, MAIN)
        job.does(STEP)
    return job


@pytest.mark.parametrize(
    ("sizes", "category"),
    [
        (LAYERS, UNKNOWN),
        (LAYERS[:-1], INPUT),
        (LAYERS[1:], INPUT),
        ((7000,) * 8 + (800,), INPUT),
        ((7000,) * 3 + (9000,) * 3 + (800,) * 3, INPUT),
    ],
    ids=["layers", "equally often", "eight", "one size repeated", "a list of batches"],
)
def test_what_a_line_makes_as_layers_have_it_is_no_batch(sizes, category, found):
    assert set(categories(found(given(*sizes), 7000))) == {category}


@pytest.mark.parametrize(
    ("stack", "engine"), [(COPY, ENGINE), (LOAD, NO_FRAMES)], ids=["C++ frames show the copy", "Python"]
)
@pytest.mark.parametrize(
    "sizes",
    [(7000,) * 26 + (9000, 9000, 800), (7000, 9000, 7000, 9000, 5000, 7000, 9000, 5000, 800)],
    ids=["columns of a table", "boxes of each picture"],
)
def test_a_batch_of_many_tensors_is_copied(sizes, stack, engine, found):
    """`{name: column.to(device) …}`."""
    assert set(categories(found(given(*sizes, stack=stack, engine=engine), 7000))) == {INPUT}


def test_as_many_in_several_iterations_may_be_batches(found):
    sizes = (7000, 7000, 9000, 9000, 800)
    assert set(categories(found(given(*sizes, n_times=3), 7000))) == {INPUT}


def test_an_iteration_that_is_cut_short_shows_nothing_of_the_others(found):
    job = given(*LAYERS, n_times=2)
    job.alloc(COMPUTED, 7000)
    job.does(FORWARD)
    assert categories(found(job, 9000)) == [UNKNOWN] * 8


def test_without_cpp_frames_what_is_as_large_as_preexisting_blocks_may_be_weights(found):
    job = Job()
    for size in LAYERS:
        job.older(NO_FRAMES, size)
    for addr in [job.alloc(PYTHON, size) for size in LAYERS]:
        job.does(FORWARD)
        job.free(addr, MAIN)
    job.does(NO_FRAMES)
    assert INPUT not in categories(found(job, 9000))


def test_batches_one_after_the_other_are_not_made_as_layers_are(found):
    """A validation, in which words and labels are of one line, and the last batches are smaller."""
    job = Job()
    job.alloc(APPLY, 100_000)
    for sizes in ((7000, 9000),) * 5 + ((800, 600),):
        made = [job.alloc(COMPUTED, size) for size in sizes]
        job.does(FORWARD)
        for addr in made:
            job.free(addr, MAIN)
    assert set(categories(found(job, 7000))) == {INPUT}


def test_what_a_line_makes_as_layers_have_it_between_forwards_is_no_result(found):
    """A second model is moved after a forward that saves what backward needs."""
    job = Job()
    for size in LAYERS:
        job.alloc(APPLY, size)
    saved = job.alloc(FORWARD, 50_000)
    made = [job.alloc(MOVED, size) for size in LAYERS]
    job.does(FORWARD)
    job.free(saved, RELEASE)
    for addr in made:
        job.free(addr, MAIN)
    assert categories(found(job, 9000))[4:] == [UNKNOWN] * 4


def averaged(stack: Stack, *, kept: Stack = APPLY, part: int = 0, has_run: bool = True) -> Job:
    """A model gets new values before every forward; or a part of it, from elsewhere, beside the whole."""
    job = Job()
    engine = NO_FRAMES if stack is PYTHON else ENGINE
    values = [(size, job.alloc(kept, size)) for size in LAYERS]
    parts = [(6000, job.alloc(kept, 6000)) for _ in range(part)]
    if has_run:
        job.does(FORWARD, engine)
    for _ in range(2):
        for group, code in ((values, stack), (parts, stack + at_line(MAIN, 70))):
            for place, (size, former) in enumerate(group):
                group[place] = size, job.alloc(code, size)
                job.model.free(former, frames=code[1:] or code)
        job.does(FORWARD, engine)
    return job


@pytest.mark.parametrize("stack", [MOVED, PYTHON], ids=["C++", "Python"])
def test_what_replaces_weights_line_by_line_are_their_new_values(stack, found):
    assert found(averaged(stack), 9000)[4:] == [NEW_VALUE] * 8


def test_what_was_placed_and_has_not_run_yet_is_a_weight_then(found):
    """It is freed before it is used, and counts as temporary itself."""
    assert found(averaged(MOVED, has_run=False), 9000)[4:] == [NEW_VALUE] * 8


def test_code_without_a_line_is_no_line(found):
    job = Job()
    weights = [job.alloc(APPLY, size) for size in LAYERS]
    job.alloc(FORWARD, 500)
    for size, weight in zip(LAYERS, weights, strict=True):
        job.alloc(MOVED[:1], size)
        job.model.free(weight, frames=MOVED[:1])
    job.alloc(FORWARD, 500)
    assert NEW_VALUE not in found(job, 9000)


def test_what_the_line_makes_on_the_way_it_frees(found):
    """`p.data = p.data - step * change`: the product is freed on the line, and temporary."""
    job = Job()
    values = [(size, job.alloc(APPLY, size)) for size in LAYERS]
    job.does(FORWARD, ENGINE)
    for place, (size, former) in enumerate(values):
        product = job.alloc(MOVED, size)
        values[place] = size, job.alloc(MOVED, size)
        job.model.free(product, frames=MOVED[1:])
        job.model.free(former, frames=MOVED[1:])
    job.does(FORWARD)
    rows = found(job, 9000)
    assert rows[4:] == [(Category.TEMPORARY, Evidence.LIFETIME, "freed-soon-outside-modules"), NEW_VALUE] * 4


def test_so_are_those_of_a_smaller_part_that_the_same_line_replaces(found):
    assert found(averaged(MOVED, part=1), 6000)[1:] == [NEW_VALUE] * 2


def test_what_replaces_states_may_be_states(found):
    """Moments that are computed anew: what the line frees first is none of a model's."""
    job = averaged(MOVED, kept=ZEROS)
    assert NEW_VALUE not in found(job, 9000)


def test_of_sizes_that_no_weight_has_it_is_not_known(found):
    job = averaged(MOVED)
    for size in (3000,) * 4 + (4000,) * 4 + (500,):
        job.alloc(MOVED, size)
    job.does(FORWARD)
    assert NEW_VALUE not in found(job, 3000)


def test_a_line_that_frees_gradients_too_may_do_anything(found):
    job = averaged(MOVED)
    gradients = [job.alloc(ENGINE, size) for size in LAYERS]
    for addr in gradients[1:]:
        job.free(addr, ZERO_GRAD)
    job.model.free(gradients[0], frames=MOVED[1:])
    assert NEW_VALUE not in found(job, 9000)
