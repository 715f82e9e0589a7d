"""Where nothing is trained, the order of sizes shows weights, and the number of layers shows caches."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    CACHE_UPDATE,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    ZEROS,
    Job,
    at_line,
    categories,
    frames,
    likely,
)

KIB, MIB = 1024, 1 << 20
EMBEDDING, LAYER, CACHE = 40 * KIB, (4 * KIB, 12 * KIB, 8 * KIB), 22 * KIB
N_LAYERS = 4


def model():
    """A model that was there before the trace: embedding, layers, a last norm, an output layer."""
    job = Job()
    for size in (EMBEDDING, *LAYER * N_LAYERS, LAYER[0], EMBEDDING):
        job.older(NO_FRAMES, size)
    return job


@pytest.mark.parametrize("factor", [0.5, 1, 2], ids=["half", "as large", "double"])
def test_what_is_made_for_every_weight_may_be_states_and_is_no_cache(factor, found):
    job = model()
    for _ in range(2 * N_LAYERS):
        job.alloc(ZEROS, int(factor * LAYER[1]))
    job.does(FORWARD)
    made = found(job, int(factor * LAYER[1]))
    assert not {Category.ACTIVATION, Category.KV_CACHE} & {category for category, *_ in made}


@pytest.mark.parametrize(("n_blocks", "stack"), [(3, ZEROS), (5, ZEROS), (4, COPY)])
def test_other_numbers_and_copied_data_are_no_cache(n_blocks, stack, found):
    job = model()
    for _ in range(n_blocks):
        job.alloc(stack, CACHE)
    job.does(FORWARD)
    assert not {Category.ACTIVATION, Category.KV_CACHE} & {
        category for category, *_ in found(job, CACHE)
    }


def decoded(sizes, *, backward=False):
    """Two layers whose line makes a block of each of these sizes, token by token, and frees those before."""
    job, before = Job(), []
    for size in sizes:
        longer = [job.alloc(FORWARD, size) for _ in range(2)]
        job.does(MAIN)
        for addr in before:
            job.free(addr, MAIN)
        before = longer
    if backward:
        job.does(ENGINE)
    return job


LENGTHENED = [20 * KIB, 24 * KIB, 28 * KIB, 32 * KIB]


def test_what_a_line_makes_longer_by_the_same_for_every_token_is_a_cache(found):
    job = decoded(LENGTHENED)
    for size in LENGTHENED:
        assert (
            found(job, size)
            == [(Category.KV_CACHE, Evidence.LIFETIME, "cache-that-lengthened")] * 2
        )


@pytest.mark.parametrize(
    "job",
    [
        decoded([20 * KIB] * 4),
        decoded([20 * KIB, 24 * KIB, 30 * KIB, 32 * KIB]),
        decoded(LENGTHENED[::-1]),
        decoded(LENGTHENED[:2]),
        decoded(LENGTHENED, backward=True),
    ],
    ids=["equal", "by different steps", "shorter", "two lengths", "training"],
)
def test_what_does_not_lengthen_so_is_no_cache(job, found):
    assert Category.KV_CACHE not in {category for category, *_ in found(job, 20 * KIB)}


def test_three_lengths_show_a_cache(found):
    job = decoded(LENGTHENED[:3])
    assert {category for category, *_ in found(job, LENGTHENED[0])} == {Category.KV_CACHE}


def test_a_cache_begins_anew_with_every_text_and_is_one_up_to_its_last_token(found):
    job = decoded([*LENGTHENED, *LENGTHENED])
    for size in LENGTHENED:
        assert categories(found(job, size)) == [Category.KV_CACHE] * 4


PROJECTED = frames(("project", "/w/proj/attention.py")) + FORWARD
ANSWER = frames(("answer", "/w/proj/head.py")) + FORWARD


def answered(*, n_prompt=2, keeps_all=False, freed_by=MAIN, cache=FORWARD, trained_before=False):
    """A prompt's keys and values lie in what is projected; a token's are copied into a longer cache."""
    job = Job()
    job.does(*[FORWARD, ENGINE] * trained_before)
    before = [job.alloc(PROJECTED, 40 * KIB) for _ in range(n_prompt)]
    prompt, projected = list(before), []
    job.does(MAIN)
    for size in LENGTHENED:
        of_token = [job.alloc(PROJECTED, OTHER) for _ in range(2)]
        longer = [job.alloc(cache, size) for _ in range(2)]
        for addr in () if keeps_all else of_token:
            job.free(addr, FORWARD)
        job.free(job.alloc(ANSWER, 50 * KIB), freed_by)  # where the prompt's are freed
        projected += of_token
        job.does(MAIN)
        for addr in before:
            job.free(addr, freed_by if addr in prompt else MAIN)
        before = longer
    for addr in projected if keeps_all else ():
        job.free(addr, MAIN)
    return job


def test_what_layers_keep_of_a_prompt_and_free_with_caches_is_likely_one(tmp_path):
    """It has keys and values of the prompt, which the first longer cache replaces."""
    assert likely(answered(), tmp_path / "s.pickle", 40 * KIB) == [(Category.KV_CACHE, 0.9)] * 2


def test_what_only_one_layer_leaves_is_no_cache(found):
    job = answered(n_prompt=1)  # as an encoder, whose output is dropped with the caches
    assert set(categories(found(job, LENGTHENED[0]))) == {Category.KV_CACHE}
    assert categories(found(job, 40 * KIB)) == [Category.TEMPORARY]


@pytest.mark.parametrize(
    "job",
    [answered(keeps_all=True), answered(freed_by=LOAD)],
    ids=["kept for every token", "freed elsewhere"],
)
def test_other_results_that_are_kept_are_no_cache(job, found):
    assert categories(found(job, 40 * KIB)) == [Category.TEMPORARY] * 2


FIRST = 6_000


def after_another_answer(*, n_before=N_LAYERS, size=FIRST + 800, freed_at=MAIN):
    """A cache from before the trace is freed while another grows by a token, with a block for every layer."""
    job = Job()
    former = [job.older(NO_FRAMES, size) for _ in range(n_before)]
    blocks = [0] * N_LAYERS
    for token in range(5):
        for layer in range(N_LAYERS):
            block = job.alloc(CACHE_UPDATE, FIRST + 200 * token)
            if token:
                job.free(blocks[layer], CACHE_UPDATE)
            blocks[layer] = block
        job.does(FORWARD, MAIN)
    for addr in [job.alloc(FORWARD, FIRST + 900) for _ in range(N_LAYERS)]:
        job.free(addr, FORWARD)  # as many, but no cache
    for addr in former:
        job.free(addr, freed_at)
    return job


@pytest.mark.parametrize(
    "other",
    [
        {"n_before": N_LAYERS - 1},
        {"n_before": N_LAYERS + 1},
        {"size": FIRST + 900},
        {"freed_at": ENGINE},
    ],
    ids=["fewer", "more", "another size", "freed by backward"],
)
def test_other_numbers_and_sizes_than_those_of_the_cache_are_none_before_it(other, found):
    rows = found(after_another_answer(**other), other.get("size", FIRST + 800))
    assert rows[0][2] != "as-many-as-caches-that-grew"


def test_what_the_line_of_a_cache_frees_within_its_forward_is_none(found):
    job, before = Job(), []
    for size in LENGTHENED:
        longer = [job.alloc(FORWARD, size) for _ in range(2)]
        job.free(job.alloc(FORWARD, 10 * KIB), FORWARD)
        job.does(MAIN)
        for addr in before:
            job.free(addr, MAIN)
        before = longer
    assert set(categories(found(job, LENGTHENED[0]))) == {Category.KV_CACHE}
    assert set(categories(found(job, 10 * KIB))) == {Category.TEMPORARY}


def test_what_one_line_of_a_forward_without_training_keeps_may_be_temporary(found):
    job = model()
    job.does(*[FORWARD] * 5)
    job.alloc(FORWARD)
    assert categories(found(job)) == [Category.UNKNOWN]


def test_what_one_line_keeps_when_its_forward_is_over_is_its_result(found):
    job = model()
    job.does(*[FORWARD] * 5)
    job.alloc(FORWARD)
    job.does(MAIN)
    job.alloc(FORWARD)
    assert categories(found(job)) == [Category.ACTIVATION] * 2


def test_a_cache_of_keys_in_a_forward_that_keeps_most_of_its_results_is_for_backward(found):
    job = model()
    for line in range(6):
        job.alloc(at_line(FORWARD, line))
    job.alloc(CACHE_UPDATE)
    job.does(MAIN)
    assert categories(found(job)) == [Category.ACTIVATION] * 7


def test_what_only_the_loss_uses_is_no_batch_for_sure(found):
    """It may be a cast of the result, made where labels are put on the device."""
    job = model()
    job.free(job.alloc(LOAD, KIB), MAIN)
    job.alloc(FORWARD)
    cast = job.alloc(COPY)
    job.alloc(LOSS)
    job.free(cast, MAIN)
    job.does(LOSS)
    assert categories(found(job))[1] is Category.UNKNOWN
