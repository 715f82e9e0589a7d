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
    assert set(categories(found(job, 24 * 9000))) <= {UNKNOWN}


@pytest.mark.parametrize(("frozen", "expected"), [(2400, GRADIENT), (2401, UNKNOWN)])
def test_those_of_half_of_the_parameters_are_enough_where_others_may_be_frozen(frozen, expected, found):
    """Gradients of activations are as many times as large as biases, which are a small part."""
    trained = (400, 800, 1200)
    job = Job()
    for size in (*trained, frozen):
        job.alloc(APPLY, size)
    job.does(FORWARD, ENGINE)
    for size in trained:
        job.alloc(ENGINE, 24 * size)
    job.does(FORWARD)
    assert categories(found(job, 24 * 800)) == [expected]


def test_those_of_most_gradients_are_enough_whatever_is_frozen(found):
    job = trained_privately(JOIN)
    job.alloc(APPLY, 90_000)
    assert found(job, 24 * 800) == [BY_SIZES]


def test_of_weights_that_are_older_than_the_trace(found):
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
        elif event == "drop":
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
        ("forward backward step make clear forward drop", 3),
        ("forward backward make clear forward backward step clear forward drop", 3),
        ("forward backward make drop step clear forward", 3),
        ("make step drop", 3),
        ("forward backward make step clear forward drop", 1),
    ],
    ids=["after the step", "for no step", "freed before the step", "without a backward", "as large"],
)
def test_what_is_made_or_freed_elsewhere_is_none(life, factor, found):
    """Deviations of weights from their average, copies of gradients, moments of one's own."""
    job = made_after_backward(*life.split(), factor=factor)
    reasons = [reason for size in PARAMETERS for _, _, reason in found(job, factor * size)]
    assert BY_SIZES[2] not in reasons


@pytest.mark.parametrize("end", ["forward drop", "drop forward"], ids=["in the next iteration", "at once"])
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
