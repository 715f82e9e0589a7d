"""A graph from before the trace, which the same call's next output replaces within it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    DESTROYED,
    FORWARD,
    LAYER,
    NO_FRAMES,
    Job,
    categories,
    cpp,
    frames,
    likely,
)

WEIGHT, ACTIVATION = Category.WEIGHT, Category.ACTIVATION
CAST = frames(cpp("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)")) + LAYER
# Two weights of each layer in float32; autocast makes copies of half their sizes, and layers results.
WEIGHT_SIZES, RESULT = (8000, 24000), 6000
SMALL_COPY, LARGE_COPY = 4000, 12000
N_LAYERS = 4


def replaced_graph(more_results=(), old_results=None):
    """Both calls keep copies of all weights, results, and more results, which the old may lack."""
    job = Job()
    for size in WEIGHT_SIZES * N_LAYERS:
        job.older(NO_FRAMES, size)

    def call(results, alloc):
        blocks = []
        for size in WEIGHT_SIZES * N_LAYERS:
            blocks.append(alloc(CAST, size // 2))
            blocks.append(alloc(LAYER, RESULT))
        return blocks + [alloc(FORWARD, size) for size in (*results, RESULT - 1000)]

    old_graph = call(
        more_results if old_results is None else old_results,
        lambda _, size: job.older(NO_FRAMES, size),
    )
    call(more_results, job.alloc)
    for addr in old_graph:
        job.free(addr, DESTROYED)
    return job


def test_copies_of_weights_in_an_old_graph_are_those_of_the_same_call(found):
    job = replaced_graph()
    for size in (SMALL_COPY, LARGE_COPY):
        assert categories(found(job, size)) == [WEIGHT] * 2 * N_LAYERS
    assert categories(found(job, RESULT)) == [ACTIVATION] * 4 * N_LAYERS


@pytest.mark.parametrize("old_results", [[], [LARGE_COPY], [LARGE_COPY, 10_000]])
def test_another_call_shows_no_copies_in_an_old_graph(old_results, found):
    job = replaced_graph([10_000], old_results)
    assert categories(found(job, SMALL_COPY))[:N_LAYERS] == [ACTIVATION] * N_LAYERS


@pytest.mark.parametrize(
    ("n_results", "expected"),
    [(1, (WEIGHT, 0.8)), (16, (ACTIVATION, 0.8)), (100, (ACTIVATION, 0.9))],
)
def test_of_a_size_that_results_have_too_most_are_named_as_likely_as_they_are_many(
    n_results, expected, tmp_path
):
    """There are four copies: of 5, of 20 and of 104 blocks."""
    job = replaced_graph([LARGE_COPY] * n_results)
    rows = likely(job, tmp_path / "snapshot.pickle", LARGE_COPY)
    assert rows == [expected] * (N_LAYERS + n_results)


def test_of_a_size_of_as_many_copies_as_results_an_old_block_may_be_either(found):
    job = replaced_graph([LARGE_COPY] * N_LAYERS)
    rows = found(job, LARGE_COPY)[: 2 * N_LAYERS]
    assert {(category, reason) for category, _, reason in rows} == {
        (Category.UNKNOWN, "copy-of-a-weight-or-activation")
    }
