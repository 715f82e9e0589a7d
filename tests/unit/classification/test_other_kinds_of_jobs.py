"""Per-sample gradients, forwards within backward, caches within a forward, and data that stays."""

import tracemalloc

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    CACHE_UPDATE,
    ENGINE,
    FORWARD,
    HOOK,
    LOAD,
    MAIN,
    MATMUL,
    NO_FRAMES,
    STEP,
    SUBJECT,
    TORCH,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    frames,
    likely,
)

KIB = 1024
WEIGHTS = (20 * KIB, 12 * KIB)
N_SAMPLES = 7


def per_sample(n_weights=2, *, kept_into_forward=False):
    """A step whose hook makes a gradient for every sample of the first weights."""
    job = Job()
    for size in WEIGHTS:
        job.alloc(APPLY, size)
    job.does(FORWARD)
    kept = [job.alloc(HOOK, N_SAMPLES * size) for size in WEIGHTS[:n_weights]]
    job.does(ENGINE, MAIN)
    if kept_into_forward:
        job.does(FORWARD)
    for addr in kept:
        job.free(addr, MAIN)
    job.does(STEP, FORWARD, ENGINE)
    return job


def test_gradients_of_every_sample_are_as_many_times_as_large_as_several_weights(found):
    for size in WEIGHTS:
        assert found(per_sample(), N_SAMPLES * size) == [
            (Category.GRADIENT, Evidence.SIZES, "gradient-of-every-sample")
        ]


def test_many_sizes_and_a_weight_of_no_bytes_cost_little(found):
    job = Job()
    for size in range(0, 4000 * 16, 16):
        job.alloc(APPLY, size)
    job.does(FORWARD)
    tracemalloc.start()
    kept = [job.alloc(HOOK, N_SAMPLES * size) for size in range(16, 4000 * 16, 16)]
    job.does(ENGINE, MAIN)
    for addr in kept:
        job.free(addr, MAIN)
    job.does(STEP, FORWARD, ENGINE)
    assert categories(found(job, N_SAMPLES * 3999 * 16)) == [Category.GRADIENT]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 << 20


@pytest.mark.parametrize("job", [per_sample(1), per_sample(kept_into_forward=True)])
def test_one_size_or_what_lasts_into_a_forward_is_no_certain_gradient(job, found):
    assert Category.GRADIENT not in categories(found(job, N_SAMPLES * WEIGHTS[0]))


def test_gradients_of_every_sample_that_are_not_freed_yet_are_likely(tmp_path):
    job = Job()
    for size in WEIGHTS:
        job.alloc(APPLY, size)
    job.does(FORWARD)
    for size in WEIGHTS:
        job.alloc(HOOK, N_SAMPLES * size)
    job.does(MAIN, STEP)
    for size in WEIGHTS:
        found = likely(job, tmp_path / "s.pickle", N_SAMPLES * size)
        assert found == [(Category.GRADIENT, 0.85)]


MANY_WEIGHTS = tuple(size * KIB for size in (20, 12, 44, 52, 68))


@pytest.mark.parametrize(("n_weights", "is_gradient"), [(5, True), (3, True), (2, False)])
def test_what_is_joined_after_a_backward_may_be_gradients_of_every_sample(
    n_weights, is_gradient, tmp_path
):
    """Chunks of samples have a backward each, whose gradients the program puts together.

    Two of five sizes of weights may be as many times as small by chance.
    """
    job = Job()
    for size in MANY_WEIGHTS:
        job.alloc(APPLY, size)
    job.does(FORWARD, ENGINE)
    joined = [job.alloc(MATMUL, N_SAMPLES * size) for size in MANY_WEIGHTS[:n_weights]]
    job.does(STEP, FORWARD, ENGINE)
    for addr in joined:
        job.free(addr, MAIN)
    job.does(STEP)
    found = likely(job, tmp_path / "s.pickle", N_SAMPLES * MANY_WEIGHTS[0])
    assert found == ([(Category.GRADIENT, 0.9)] if is_gradient else [])


@pytest.mark.parametrize(
    ("stack", "category"), [(FORWARD, Category.ACTIVATION), (MATMUL, Category.INPUT)]
)
@pytest.mark.parametrize("n_iterations", [1, 3])
def test_what_lasts_for_iterations_is_kept_for_no_single_one(stack, category, n_iterations, found):
    """Averages of what a layer has seen, and their inverses, are no activations and no batches."""
    job = Job()
    job.alloc(APPLY, WEIGHTS[0])
    job.does(LOAD)
    addr = job.alloc(stack)
    for _ in range(n_iterations):
        job.does(FORWARD, ENGINE, STEP)
    job.free(addr, MAIN)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [category if n_iterations == 1 else Category.UNKNOWN]


def within_backward(freed_by):
    """A hook computes again, and a backward begins within the backward that called the hook."""
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD, ENGINE)
    addr = job.alloc(HOOK, 2 * SUBJECT)
    job.free(addr, freed_by)
    job.does(ENGINE, STEP)
    return job


INNER = frames(("backward", f"{TORCH}/autograd/__init__.py")) + HOOK


@pytest.mark.parametrize(
    ("freed_by", "expected"),
    [
        (INNER, (Category.ACTIVATION, Evidence.FREE_SITE, "kept-for-a-backward-within")),
        (HOOK, (Category.TEMPORARY, Evidence.LIFETIME, "freed-within-backward")),
        (ENGINE, (Category.TEMPORARY, Evidence.LIFETIME, "freed-within-backward")),
    ],
    ids=["a backward within", "the hook itself", "the backward outside"],
)
def test_what_is_computed_again_for_a_backward_within_is_an_activation(freed_by, expected, found):
    assert found(within_backward(freed_by), 2 * SUBJECT) == [expected]


def test_what_a_backward_within_makes_and_frees_is_temporary(found):
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD)
    job.free(job.alloc(INNER, 2 * SUBJECT), INNER)
    job.does(ENGINE, STEP)
    assert categories(found(job, 2 * SUBJECT)) == [Category.TEMPORARY]


LENGTHS = [20 * KIB, 24 * KIB, 28 * KIB, 32 * KIB]


def generated_within(n_equal, *, stack=FORWARD):
    """One forward in which a line makes blocks longer, and frees those before while it still runs."""
    job, before = Job(), []
    job.alloc(APPLY)
    for size in LENGTHS:
        longer = []
        for place in range(n_equal):
            longer.append(job.alloc(stack, size))
            if before:
                job.free(before[place], stack)
        job.does(at_line(FORWARD, 3))
        before = longer
    for addr in before:
        job.free(addr, stack)
    job.does(MAIN)
    return job


def test_a_cache_may_grow_within_the_forward_of_an_outer_module(found):
    for size in LENGTHS:
        assert categories(found(generated_within(4), size)) == [Category.KV_CACHE] * 4
        of_library = found(generated_within(4, stack=CACHE_UPDATE), size)
        assert categories(of_library) == [Category.KV_CACHE] * 4


def test_a_block_that_joins_its_results_to_its_input_is_no_cache(found):
    for size in LENGTHS:
        assert Category.KV_CACHE not in categories(found(generated_within(1), size))


def test_what_a_cache_holds_beside_growing_values_is_cache_too(found):
    """Keys and values of an encoder: made once, and there for every token."""
    job, before = Job(), []
    job.alloc(APPLY, WEIGHTS[0])
    cross = at_line(CACHE_UPDATE, 9)
    held = [job.alloc(cross), job.alloc(cross)]
    for size in LENGTHS:
        longer = [job.alloc(CACHE_UPDATE, size) for _ in range(4)]
        job.free(job.alloc(cross, 2 * SUBJECT), CACHE_UPDATE)
        for addr in before:
            job.free(addr, CACHE_UPDATE)
        before = longer
    for addr in held + before:
        job.free(addr, FORWARD)
    job.does(MAIN)
    assert categories(found(job)) == [Category.KV_CACHE] * 2
    assert categories(found(job, 2 * SUBJECT)) == [Category.TEMPORARY] * len(LENGTHS)


@pytest.mark.parametrize(("n_blocks", "is_cache"), [(4, True), (8, True), (5, False), (2, False)])
def test_zeros_of_one_line_two_for_every_layer_are_likely_a_cache(n_blocks, is_cache, tmp_path):
    job = Job()
    job.alloc(APPLY, WEIGHTS[0])
    for _ in range(n_blocks):
        job.alloc(ZEROS)
    job.does(FORWARD, MAIN, FORWARD, MAIN)
    expected = [(Category.KV_CACHE, 0.9)] * n_blocks
    assert (likely(job, tmp_path / "s.pickle") == expected) == is_cache


def test_zeros_in_training_are_no_cache(tmp_path):
    job = Job()
    job.alloc(APPLY, WEIGHTS[0])
    for _ in range(4):
        job.alloc(ZEROS)
    job.does(FORWARD, ENGINE, STEP, FORWARD, ENGINE)
    found = classified(job, tmp_path / "a.pickle")
    assert Category.KV_CACHE not in categories(found)
    assert all(category != Category.KV_CACHE for category, _ in likely(job, tmp_path / "b.pickle"))


# A layer's constructor, which a model's list of layers calls.
BUILT = (
    frames(("__init__", "/w/proj/attention.py"), ("<genexpr>", "/w/proj/model.py"))
    + frames(("__init__", f"{TORCH}/nn/modules/container.py"), ("__init__", "/w/proj/model.py"))
    + MAIN
)


@pytest.mark.parametrize(
    ("n_blocks", "is_moved", "expected"),
    [
        (6, True, [(Category.KV_CACHE, 0.85)] * 6),
        (5, True, []),
        (6, False, []),
    ],
)
@pytest.mark.parametrize("verb", ["alloc", "older"])
def test_what_layers_put_on_the_device_before_the_model_is_moved_is_a_cache(
    verb, n_blocks, is_moved, expected, tmp_path
):
    job = Job()
    for _ in range(n_blocks):
        getattr(job, verb)(BUILT)
    if is_moved:
        getattr(job, verb)(APPLY, WEIGHTS[0])
    job.does(FORWARD, MAIN, FORWARD, MAIN)
    found = likely(job, tmp_path / "s.pickle")
    assert [each for each in found if each[0] == Category.KV_CACHE] == expected


def test_what_layers_build_on_the_device_is_weights_where_the_model_is_not_moved(found):
    job = Job()
    for _ in range(6):
        job.alloc(BUILT)
    job.does(FORWARD, MAIN, FORWARD, MAIN)
    assert categories(found(job)) == [Category.WEIGHT] * 6


def inferred(size, n_blocks, *, result=4096, others=None):
    """A model of four layers of width 1024 that was there before the trace, and forwards of it."""
    job = Job()
    for each, n in {4096: 9, size: n_blocks, **(others or {})}.items():
        for _ in range(n):
            job.older(NO_FRAMES, each)
    for _ in range(4):
        job.does(MAIN)
        for each in (4096, 4096, result):
            job.free(job.alloc(FORWARD, each), FORWARD)
    job.does(MAIN)
    return job


@pytest.mark.parametrize(
    ("size", "n_blocks", "result", "expected"),
    [
        (4096 * 1024, 8, 4096, Category.WEIGHT),
        (4096 * 2816, 8, 11264, Category.WEIGHT),
        (4096 * 1000, 8, 4096, Category.UNKNOWN),
        (4096 * 2816, 8, 4096, Category.UNKNOWN),
    ],
    ids=["square", "as wide as a result", "1000 rows", "as wide as no result"],
)
def test_pairs_that_are_no_matrices_of_the_model_may_be_caches_in_inference(
    size, n_blocks, result, expected, tmp_path
):
    job = inferred(size, n_blocks, result=result)
    assert likely(job, tmp_path / "a.pickle", size) == []
    of_size = classified(job, tmp_path / "b.pickle", size)
    assert categories(of_size) == [expected] * n_blocks


@pytest.mark.parametrize(("n_blocks", "expected"), [(12, [Category.WEIGHT] * 12), (8, [])])
def test_three_of_a_size_in_every_layer_are_no_keys_and_values(n_blocks, expected, tmp_path):
    """Four layers, each with four matrices of its attention; no result of forward shows widths."""
    size = 4096 * 2816
    job = inferred(size, n_blocks, others={4096 * 1024: 16})
    found = likely(job, tmp_path / "s.pickle", size)
    assert [category for category, _ in found] == expected


BUFFER = (
    frames(("at::_ops::zeros::call(at::Tensor const&)", "??"))
    + frames(("__init__", "/w/proj/replay.py"), ("__init__", "/w/proj/agent.py"))
    + MAIN
)


@pytest.mark.parametrize(
    ("gradient", "expected"), [(SUBJECT, Category.WEIGHT), (WEIGHTS[0], Category.INPUT)]
)
def test_what_nested_constructors_make_is_a_weight_where_backward_makes_its_gradient(
    gradient, expected, found
):
    """A replay buffer is built like a layer, and has no gradient."""
    job = Job()
    job.alloc(APPLY, WEIGHTS[0])
    job.alloc(BUFFER)
    job.does(FORWARD)
    addr = job.alloc(ENGINE, gradient)
    job.does(STEP)
    job.free(addr, MAIN)
    job.does(FORWARD, ENGINE)
    of_buffer, *_ = found(job)
    assert of_buffer[0] == expected
