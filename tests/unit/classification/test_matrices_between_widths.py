"""Where nothing is trained, a block as large as a matrix between two widths of the layers is a weight."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    CACHE_UPDATE,
    COMPILED_FILE,
    ENGINE,
    FORWARD,
    INDEX,
    MAIN,
    NO_FRAMES,
    STEP,
    TORCH,
    Job,
    classified,
    frames,
)

KIB = 1024
# Layers of 128 numbers that widen to 320, of four bytes each: a norm, a bias, and two matrices.
NARROW, WIDE = 512, 1280
MATRIX = 128 * 320 * 4
LAYER = (NARROW, WIDE, MATRIX, 128 * 128 * 4)
BETWEEN = (Category.WEIGHT, Evidence.SIZES, "matrix-between-two-widths")
LOOKUP = frames(("embedding", f"{TORCH}/nn/functional.py")) + FORWARD
# A kernel of 3 x 3 from 320 numbers to 320.
KERNEL = 320 * 320 * 9 * 4


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


def beside_layers(*sizes, does=(), layer=LAYER):
    job = Job()
    for _ in range(4):
        for size in layer:
            job.older(NO_FRAMES, size)
    for size in sizes:
        # Far from the layers.
        job.older(MAIN, 9 * KIB)
        job.older(NO_FRAMES, size)
    for _ in range(4):
        job.does(FORWARD)
    job.does(*does)
    return job


@pytest.mark.parametrize(
    ("size", "is_weight"),
    [
        (KERNEL, True),
        (640 * 640 * 9 * 2, False),
        (320 * 320 * 4, True),
        (KERNEL // 2, False),
        (KERNEL + 512, False),
        (320 * 320 * 25 * 4, False),
    ],
    ids=[
        "kernels",
        "of two bytes",
        "a matrix",
        "half of them",
        "another size",
        "kernels of 5 x 5",
    ],
)
def test_a_block_as_large_as_a_matrix_between_two_widths_is_a_weight(size, is_weight, found):
    assert (found(beside_layers(size), size) == [BETWEEN]) is is_weight


@pytest.mark.parametrize(("n", "is_weight"), [(1, False), (2, True)])
def test_a_power_of_two_is_as_large_as_a_picture_if_there_is_one(n, is_weight, found):
    layer = (NARROW, 2048, 128 * 512 * 4, 128 * 128 * 4)
    assert (BETWEEN in found(beside_layers(*[512 * 512 * 4] * n, layer=layer), 512 * 512 * 4)) is is_weight


def test_vectors_are_no_larger_than_those_of_models(found):
    """A matrix that is smaller than a matrix of layers is one, too."""
    layer = (*LAYER, 4 * 320 * 320 * 4)
    assert found(beside_layers(320 * 320 * 4, layer=layer), 320 * 320 * 4) == [BETWEEN]


def test_numbers_have_as_many_bytes_as_in_the_layers(found):
    halves = tuple(size // 2 for size in LAYER)
    assert found(beside_layers(KERNEL // 2, layer=halves), KERNEL // 2) == [BETWEEN]
    assert found(beside_layers(KERNEL, layer=halves), KERNEL) != [BETWEEN]


@pytest.mark.parametrize("does", [(ENGINE,), (STEP,)], ids=["backward", "a step"])
def test_where_something_is_trained_it_may_be_a_state(does, found):
    assert found(beside_layers(KERNEL, does=does), KERNEL) != [BETWEEN]


def test_what_batches_are_drawn_from_is_no_weight(found):
    """Pictures and their labels, of which a forward gets the hundredth part."""
    pictures, labels = KERNEL, 36 * KIB
    job = beside_layers(pictures, labels)
    assert found(job, pictures) == [BETWEEN]
    for _ in range(3):
        batch = [job.alloc(INDEX, size // 36) for size in (pictures, labels)]
        job.does(*[FORWARD] * 4)
        for addr in batch:
            job.free(addr, MAIN)
    assert BETWEEN not in found(job, pictures)


def test_compiled_code_may_look_up_words(found):
    compiled = frames(("call", COMPILED_FILE)) + FORWARD
    assert found(beside_layers(KERNEL, does=(compiled,)), KERNEL) != [BETWEEN]


def test_where_words_are_looked_up_it_may_be_a_cache_unless_caches_are_made_anew(found):
    assert found(beside_layers(KERNEL, does=(LOOKUP,)), KERNEL) != [BETWEEN]
    job = beside_layers(KERNEL, does=(LOOKUP, MAIN))
    cache = job.alloc(CACHE_UPDATE, 3000)
    for n_words in range(2, 5):
        job.does(*[FORWARD] * 4, MAIN)
        former, cache = cache, job.alloc(CACHE_UPDATE, 3000 * n_words)
        job.free(former, CACHE_UPDATE)
    job.does(MAIN)
    assert found(job, 3000)[0][0] == Category.KV_CACHE
    assert found(job, KERNEL) == [BETWEEN]


@pytest.mark.parametrize(
    ("n_vectors", "are_among", "is_weight"), [(2, True, False), (3, True, True), (3, False, False)]
)
def test_vectors_that_repeat_among_weights_are_widths_though_they_are_not_known(
    n_vectors, are_among, is_weight, found
):
    """Those of a second model, of 192 numbers each; beyond all weights they may be data."""
    vector, kernel = 192 * 4, 192 * 320 * 9 * 4
    job, vectors = Job(), [vector] * n_vectors
    for size in (*LAYER * 2, *(vectors if are_among else ()), *LAYER * 2, *(() if are_among else vectors)):
        job.older(NO_FRAMES, size)
    job.older(MAIN, 9 * KIB)
    job.older(NO_FRAMES, kernel)
    job.does(*[FORWARD] * 4)
    assert (found(job, kernel) == [BETWEEN]) is is_weight


@pytest.mark.parametrize(("n_others", "is_weight"), [(100, True), (199, False)])
def test_of_more_than_200_widths_nothing_is_looked_for(n_others, is_weight, found):
    layer = (*LAYER, *range(20_001, 20_001 + 2 * n_others, 2))
    assert (found(beside_layers(KERNEL, layer=layer), KERNEL) == [BETWEEN]) is is_weight


def test_without_vectors_of_known_layers_nothing_has_a_width(found):
    job = Job()
    for size in (NARROW, WIDE, KERNEL) * 2:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert BETWEEN not in found(job, KERNEL)
