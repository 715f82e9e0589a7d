"""Gradients of every sample, or of several tasks, and what only looks like them."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    ENGINE_FRAMES,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    OTHER,
    RECOMPUTED,
    STEP,
    TORCH,
    ZERO_GRAD,
    Job,
    Stack,
    at_line,
    categories,
    classified,
    cpp,
    frames,
)

GRADIENT = Category.GRADIENT
INPUT = Category.INPUT
UNKNOWN = Category.UNKNOWN

PARAMETERS = (7000, 9000, 800)
BY_SIZES = (GRADIENT, Evidence.SIZES, "as-many-times-as-large-as-parameters")
# A model's hook of backward, as Opacus computes a gradient for every sample; without and with C++ frames.
PYTHON_HOOK = frames(("capture", "/w/proj/private.py"), ("hook", f"{TORCH}/utils/hooks.py"))
HOOK = frames(*((frame["name"], frame["filename"]) for frame in PYTHON_HOOK), *ENGINE_FRAMES)
JOIN = frames(cpp("at::_ops::cat::call(at::Tensor const&)")) + at_line(MAIN, 30)
ASSIGN = frames(cpp("at::_ops::div_Tensor::call(at::Tensor const&)")) + at_line(MAIN, 40)


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


def trained_privately(
    stack: Stack,
    *,
    samples: tuple[int, ...] = (24, 27),
    parameters: tuple[int, ...] = PARAMETERS,
    engine: Stack = ENGINE,
) -> Job:
    """A step for each number of samples: gradients of each sample, and of those, one of each parameter."""
    job = Job()
    for size in PARAMETERS:
        job.alloc(APPLY, size)
    batches, assign = (COPY, ASSIGN) if engine else (LOAD, ASSIGN[1:])
    gradients: list[int] = []
    of_samples: list[int] = []
    for n in samples:
        batch = job.alloc(batches, OTHER)
        job.does(FORWARD)
        for addr in gradients:
            job.free(addr, ZERO_GRAD)
        job.does(engine)
        made = [job.alloc(stack, n * size) for size in parameters]
        for addr in of_samples:
            job.free(addr, MAIN)
        of_samples = made
        gradients = [job.alloc(assign, size) for size in PARAMETERS]
        job.free(batch, MAIN)
    job.does(FORWARD)
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    return job


@pytest.mark.parametrize(
    ("stack", "engine"),
    [(JOIN, ENGINE), (ENGINE, ENGINE), (HOOK, ENGINE), (PYTHON_HOOK, NO_FRAMES), (MAIN, NO_FRAMES)],
    ids=["joined", "by vmap", "by hooks", "by hooks, without C++ frames", "joined, without C++ frames"],
)
@pytest.mark.parametrize("size", PARAMETERS)
@pytest.mark.parametrize("samples", [24, 27])
def test_what_is_as_many_times_as_large_as_each_parameter_is_a_gradient_of_every_sample(
    stack, engine, size, samples, found
):
    assert found(trained_privately(stack, engine=engine), samples * size) == [BY_SIZES]


@pytest.mark.parametrize(
    "parameters",
    [PARAMETERS[:2], (9000, 800, 800), (7000, 9000, 801)],
    ids=["two sizes", "one size twice", "two sizes that fit"],
)
def test_fewer_sizes_may_agree_by_chance(parameters, found):
    job = trained_privately(JOIN, parameters=parameters)
    assert categories(found(job, 24 * 9000)) == [UNKNOWN]


def beside_weights(stack: Stack, made: tuple[int, ...], weights: tuple[int, ...]) -> Job:
    """What backward makes beside a model's weights, and keeps until the next forward."""
    job = Job()
    for size in weights:
        job.alloc(APPLY, size)
    job.does(FORWARD, ENGINE)
    for size in made:
        job.alloc(stack, size)
    job.does(FORWARD)
    return job


@pytest.mark.parametrize(("n_trained", "expected"), [(9, GRADIENT), (8, UNKNOWN)])
def test_a_tenth_of_the_sizes_may_be_of_frozen_parameters(n_trained, expected, found):
    weights = tuple(7000 + 64 * n for n in range(10))
    job = beside_weights(ENGINE, tuple(24 * size for size in weights[:n_trained]), weights)
    assert categories(found(job, 24 * 7000)) == [expected]


@pytest.mark.parametrize("biases", [(64, 192, 256), (64,)], ids=["with biases", "with norms alone"])
def test_gradients_of_results_are_as_many_times_as_large_as_matrices_alone(biases, found):
    """A transformer of width 64: each matrix and each result has a side of that width."""
    sides = (64, 192, 256, 1000)
    weights = (*(4 * 64 * side for side in sides), *(4 * side for side in biases))
    job = beside_weights(ENGINE, tuple(4 * 640 * side for side in sides), weights)
    assert [found(job, 4 * 640 * side)[0][0] for side in sides] == [UNKNOWN] * 4


def test_parameters_of_two_sizes_may_agree_by_chance(found):
    job = beside_weights(ENGINE, (24 * 7000, 24 * 9000), (7000, 9000))
    assert categories(found(job, 24 * 7000)) == [UNKNOWN]


@pytest.mark.parametrize(("stack", "expected"), [(ENGINE, GRADIENT), (RECOMPUTED, UNKNOWN)])
def test_what_a_checkpoint_computes_again_is_none(stack, expected, found):
    job = beside_weights(stack, tuple(24 * size for size in PARAMETERS), PARAMETERS)
    assert categories(found(job, 24 * 800)) == [expected]


def test_those_of_most_gradients_are_enough_whatever_is_frozen(found):
    job = trained_privately(JOIN)
    job.alloc(APPLY, 90_000)
    assert found(job, 24 * 800) == [BY_SIZES]


def test_of_weights_that_are_preexisting(found):
    job = Job()
    for size in PARAMETERS:
        job.older(NO_FRAMES, size)
    job.does(FORWARD, ENGINE)
    for size in PARAMETERS:
        job.alloc(ENGINE, 24 * size)
    job.does(FORWARD)
    assert found(job, 24 * 800) == [BY_SIZES]


def test_hooks_alone_show_it_and_what_they_free_again_is_temporary(found):
    """Where neither the step nor what it uses allocates anything."""
    job = Job()
    for size in PARAMETERS:
        job.alloc(APPLY, size)
    for _ in range(2):
        job.does(FORWARD, NO_FRAMES)
        for size in PARAMETERS:
            job.free(job.alloc(PYTHON_HOOK, 24 * size), PYTHON_HOOK)
            job.alloc(PYTHON_HOOK, 24 * size)
        job.does(NO_FRAMES)
    temporary, kept = (Category.TEMPORARY, GRADIENT)
    assert categories(found(job, 24 * 800)) == [temporary, kept, temporary, kept]


def test_batches_of_any_number_of_sizes(found):
    """More than are looked for in one iteration."""
    samples = tuple(range(24, 100))
    assert found(trained_privately(JOIN, samples=samples), 99 * 9000) == [BY_SIZES]


def made_after_backward(*events: str, stack: Stack = JOIN, factor: int = 3) -> Job:
    """Blocks as many times as large as each parameter, made and freed at some place of an iteration."""
    job = Job()
    for size in PARAMETERS:
        job.alloc(APPLY, size)
    subjects: list[int] = []
    gradients: list[int] = []
    for event in events:
        if event == "make":
            subjects = [job.alloc(stack, factor * size) for size in PARAMETERS]
        elif event == "free":
            for addr in subjects:
                job.free(addr, MAIN)
        elif event == "backward":
            gradients = [job.alloc(ENGINE, size) for size in PARAMETERS]
        elif event == "clear":
            for addr in gradients:
                job.free(addr, ZERO_GRAD)
        else:
            job.does({"forward": FORWARD, "step": STEP}[event])
    return job


@pytest.mark.parametrize(
    ("life", "factor"),
    [
        ("forward backward step make clear forward free", 3),
        ("forward backward make clear forward backward step clear forward free", 3),
        ("forward backward make free step clear forward", 3),
        ("make step free", 3),
        ("forward backward make step clear forward free", 1),
        ("forward backward make step clear forward free", 2),
    ],
    ids=[
        "after the step",
        "for no step",
        "freed before the step",
        "without a backward",
        "as large",
        "in full precision",
    ],
)
def test_what_is_made_or_freed_elsewhere_is_none(life, factor, found):
    """Deviations of weights from their average, copies of gradients, moments of one's own."""
    job = made_after_backward(*life.split(), factor=factor)
    reasons = [reason for size in PARAMETERS for _, _, reason in found(job, factor * size)]
    assert BY_SIZES[2] not in reasons


@pytest.mark.parametrize("end", ["forward free", "free forward"], ids=["in the next iteration", "at once"])
def test_where_they_are_made_for_a_step_they_are_gradients_whenever_they_are_freed(end, found):
    """Above, each differs from this in one thing."""
    job = made_after_backward(*f"forward backward make step clear {end}".split())
    assert found(job, 3 * 7000) == [BY_SIZES]


@pytest.mark.parametrize(("stack", "category"), [(JOIN, UNKNOWN), (COPY, INPUT)], ids=["computed", "copied"])
def test_what_is_computed_between_backward_and_step_is_no_batch(stack, category, found):
    """All gradients in one vector. A batch may be fetched there, which is copied."""
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD)
    gradient = job.alloc(ENGINE)
    subject = job.alloc(stack, 50_000)
    job.does(STEP)
    job.free(gradient, ZERO_GRAD)
    job.does(FORWARD)
    job.free(subject, MAIN)
    assert categories(found(job, 50_000)) == [category]
