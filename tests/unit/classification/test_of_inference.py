"""Where nothing is trained, the order of sizes shows weights, and the number of layers shows caches."""

import numpy as np
import pytest

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rules.of_inference import may_be_copies
from tests.classified_jobs import (
    CACHE_UPDATE,
    CALL,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    OTHER,
    TORCH,
    ZERO_GRAD,
    ZEROS,
    Job,
    categories,
    classified,
    frames,
)

KIB, MIB = 1024, 1 << 20
EMBEDDING, LAYER, CACHE = 40 * KIB, (4 * KIB, 12 * KIB, 8 * KIB), 22 * KIB
N_LAYERS = 4


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


def model(n_layers=N_LAYERS, layer=LAYER):
    """A model that was there before the trace: embedding, layers, a last norm, an output layer."""
    return trained_model(1, n_layers, layer)


def trained_model(n_copies, n_layers=N_LAYERS, layer=LAYER):
    """The same with its gradients and states, or whatever there is one of for every weight."""
    job = Job()
    for size in (EMBEDDING, *layer * n_layers, layer[0], EMBEDDING) * n_copies:
        job.older(NO_FRAMES, size)
    return job


def test_sizes_that_take_turns_are_weights_with_what_lies_before_and_what_is_as_large(found):
    job = model()
    job.does(FORWARD)
    for size, n in zip((EMBEDDING, *LAYER), (2, N_LAYERS + 1, N_LAYERS, N_LAYERS), strict=True):
        assert found(job, size) == [(Category.WEIGHT, Evidence.SIZES, "alternating-sizes")] * n


@pytest.mark.parametrize(
    ("n_layers", "layer"), [(2, LAYER), (N_LAYERS, LAYER[:2])], ids=["few layers", "few sizes"]
)
def test_few_turns_are_not_accepted(n_layers, layer, found):
    job = model(n_layers, layer)
    job.does(FORWARD)
    assert {category for size in layer for category, *_ in found(job, size)} == {Category.UNKNOWN}


def test_what_is_between_two_models_larger_than_a_part_of_a_layer_and_alone_is_no_weight(found):
    job = model()
    job.older(NO_FRAMES, 100 * KIB)
    for size in (EMBEDDING, *LAYER * (N_LAYERS + 3), LAYER[0], EMBEDDING):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert {category for category, *_ in found(job, LAYER[1])} == {Category.WEIGHT}
    assert found(job, 100 * KIB)[0][0] is Category.UNKNOWN


@pytest.mark.parametrize(("n_copies", "n_weights"), [(2, 0), (3, N_LAYERS), (4, N_LAYERS)])
def test_what_may_be_a_model_with_gradients_and_states_is_not_all_weights(n_copies, n_weights, found):
    """Two copies may be anything; of three or four, one is of weights."""
    job = trained_model(n_copies)
    job.does(FORWARD)
    made = [category for category, *_ in found(job, LAYER[1])]
    assert made.count(Category.WEIGHT) == n_weights


# Four square matrices and two that are four times as large, which may as well have states of one byte.
ATTENTION = (4 * KIB,) * 4 + (16 * KIB,) * 2 + (2 * KIB,)


@pytest.mark.parametrize(
    ("n_ran", "category"), [(6, Category.WEIGHT), (3, Category.UNKNOWN), (0, Category.UNKNOWN)]
)
def test_one_block_of_a_size_for_every_layer_that_ran_has_no_states(n_ran, category, found):
    """Of six layers every size occurs a multiple of two and three times: or of three with their states."""
    job = Job()
    for size in (EMBEDDING, *ATTENTION * 6):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * n_ran, CALL, MAIN)
    assert {category for size in ATTENTION for category, *_ in found(job, size)} == {category}


NORM, SQUARE, WIDE, PAIR = KIB, 4 * KIB, 12 * KIB, 9 * KIB
# As small layers lie in memory: norms apart, squares and wide ones side by side.
SIDE_BY_SIDE = (EMBEDDING, *(NORM,) * 9, *(SQUARE,) * 16, *(WIDE,) * 12, EMBEDDING)


def beside_layers(*sizes, n_copies=1, n_ran=N_LAYERS):
    job = Job()
    for _ in range(3):
        job.older(MAIN, OTHER)  # no weights, and before all of them
    for size in (*SIDE_BY_SIDE * n_copies, *sizes):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * n_ran, CALL, MAIN)
    return job


def test_layers_that_do_not_alternate_are_known_by_how_often_they_ran(found):
    job = beside_layers()
    for size in (NORM, SQUARE, WIDE, EMBEDDING):
        assert set(found(job, size)) == {(Category.WEIGHT, Evidence.SIZES, "as-often-as-layers-ran")}


def test_large_layers_beside_small_norms_are_known_by_how_often_they_ran_too(found):
    """Norms and matrices are in segments of their own, and none of their sizes alternate."""
    square, wide, job = 11 * MIB, 12 * MIB, Job()
    for size in (*(NORM,) * 11, *(square,) * 20, *(wide,) * 15):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * 5, CALL, MAIN)
    for size in (NORM, square, wide):
        assert set(found(job, size)) == {(Category.WEIGHT, Evidence.SIZES, "as-often-as-layers-ran")}


@pytest.mark.parametrize(("n_copies", "n_ran"), [(1, 5), (1, 2), (2, N_LAYERS), (2, 2 * N_LAYERS)])
def test_other_numbers_of_layers_and_copies_of_a_model_are_not_known_so(n_copies, n_ran, found):
    job = beside_layers(n_copies=n_copies, n_ran=n_ran)
    assert "as-often-as-layers-ran" not in {reason for *_, reason in found(job, SQUARE)}


@pytest.mark.parametrize("n_each", [1, 2])
def test_up_to_two_for_every_layer_may_be_a_cache_after_all_of_them_and_among_them_are_weights(n_each, found):
    others = [PAIR] * n_each * N_LAYERS
    assert Category.WEIGHT not in {category for category, *_ in found(beside_layers(*others), PAIR)}
    job = Job()
    among = (*SIDE_BY_SIDE[:20], *others, *SIDE_BY_SIDE[20:])
    for size in among:
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * N_LAYERS, CALL, MAIN)
    assert {category for category, *_ in found(job, PAIR)} == {Category.WEIGHT}


def test_tables_of_words_positions_and_kinds_lie_before_the_layers(found):
    job = Job()
    for size in (EMBEDDING * 9, EMBEDDING * 8, EMBEDDING, 4 * KIB + 512, *LAYER * 5):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for size in (EMBEDDING * 8, EMBEDDING, 4 * KIB + 512):
        assert found(job, size) == [(Category.WEIGHT, Evidence.SIZES, "alternating-sizes")]
    assert [category for category, *_ in found(job, EMBEDDING * 9)] == [Category.UNKNOWN]


# A row of it is as wide as a norm. No size of the layers is a multiple of so many numbers.
N_WORDS = 1500
TABLE = N_WORDS * NORM


LOOKUP = frames(("embedding", f"{TORCH}/nn/functional.py")) + FORWARD


def beside_a_table(*sizes, made, stack=FORWARD, lookup=LOOKUP):
    """Layers in segments for small blocks, large blocks elsewhere, and what a forward makes besides."""
    job = beside_layers(*sizes)
    job.does(lookup)
    job.free(job.alloc(stack, made), stack)
    return job


# What the last layer makes of three words: for each as many numbers, in full precision or in half.
@pytest.mark.parametrize("n_bytes", [2, 4])
@pytest.mark.parametrize("n_tables", [1, 2])
def test_a_table_far_from_the_layers_has_a_row_for_every_number_of_the_last_layer(n_bytes, n_tables, found):
    job = beside_a_table(*[TABLE] * n_tables, made=3 * N_WORDS * n_bytes)
    expected = (Category.WEIGHT, Evidence.SIZES, "as-wide-as-what-the-last-layer-makes")
    assert found(job, TABLE) == [expected] * n_tables


def test_where_no_words_are_looked_up_rows_may_be_those_of_an_index(found):
    job = beside_a_table(TABLE, made=3 * N_WORDS * 4, lookup=FORWARD)
    assert found(job, TABLE)[0][0] is Category.UNKNOWN


@pytest.mark.parametrize(
    ("n_vectors", "are_among", "is_table"), [(2, True, False), (3, True, True), (3, False, False)]
)
def test_a_table_is_as_wide_as_vectors_that_repeat_among_weights(n_vectors, are_among, is_table, found):
    """Those of a second model, of 180 numbers each; beyond all weights they may be data."""
    vectors, table = [720] * n_vectors, N_WORDS * 720
    sizes = (*vectors, NORM, table) if are_among else (table, *vectors)
    job = beside_a_table(*sizes, made=3 * N_WORDS * 4)
    assert found(job, 720)[0][0] is Category.UNKNOWN
    assert (found(job, table)[0][0] is Category.WEIGHT) is is_table


@pytest.mark.parametrize(
    ("sizes", "made", "stack"),
    [
        ((TABLE,), 3 * N_WORDS * 4 + 4, FORWARD),
        ((TABLE,), 3 * N_WORDS, FORWARD),
        ((TABLE,), 3 * N_WORDS * 4, MAIN),  # a product with rows of data
        ((TABLE,), 3 * N_WORDS * 4, ENGINE),
        ((TABLE,) * 3, 3 * N_WORDS * 4, FORWARD),
        ((TABLE + 512,), 3 * N_WORDS * 4, FORWARD),
    ],
    ids=["no multiple", "less than a number", "no module", "trained", "three", "not so wide"],
)
def test_what_the_last_layer_does_not_show_is_no_table(sizes, made, stack, found):
    job = beside_a_table(*sizes, made=made, stack=stack)
    assert {category for category, *_ in found(job, sizes[0])} == {Category.UNKNOWN}


def test_a_table_with_as_many_words_as_a_part_of_a_layer_has_numbers_shows_nothing(found):
    # What a module makes may be as many rows of that part.
    n_words = SQUARE // 4
    job = beside_a_table(1200 * KIB, n_words * NORM, made=3 * n_words * 4)
    job.does(frames(("embedding", f"{TORCH}/nn/functional.py")) + FORWARD)
    assert found(job, n_words * NORM)[0][0] is Category.UNKNOWN


def test_results_of_which_some_filled_holes_are_no_weights(found):
    job, result = Job(), 6 * KIB
    for size in (EMBEDDING, *(*LAYER, result) * 5, *(result,) * 8):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert {category for category, *_ in found(job, result)} == {Category.UNKNOWN}
    assert {category for category, *_ in found(job, LAYER[1])} == {Category.WEIGHT}


@pytest.mark.parametrize(
    ("sizes", "counts", "may_be"),
    [
        ((1536, 512, 256, 384, 128, 1), (18, 12, 12, 6, 4, 13), False),
        ((1536, 384, 4096, 1024, 1), (6, 12, 6, 12, 13), True),
        ((1536, 768, 1), (18, 6, 13), True),
    ],
    ids=["a gate and two more beside a query", "two states in bytes", "masters and two states"],
)
def test_three_matrices_four_times_as_large_as_a_fourth_are_of_a_layer(sizes, counts, may_be):
    """Of Qwen3 with heads of 128 numbers; nothing in full precision is beside bytes three times as often."""
    assert may_be_copies(KIB * np.array(sizes), np.array(counts)) is may_be


HALF, FULL, BYTES = 1, 2, 0.5


@pytest.mark.parametrize(
    "precisions",
    [(HALF, FULL, FULL, FULL), (HALF, FULL, FULL), (HALF, BYTES, BYTES)],
    ids=["masters and two states", "masters and momentum", "states of one byte"],
)
def test_states_in_another_precision_are_no_weights(precisions, found):
    job = Job()
    for factor in precisions:
        for size in (2_000_000, 6_000_000, 3072, 5120) * 7:
            job.older(NO_FRAMES, int(factor * size))
    job.does(FORWARD, FORWARD)
    for size in (1_000_000, 2_000_000, 4_000_000, 6_000_000, 12_000_000):
        assert {category for category, *_ in found(job, size)} <= {Category.UNKNOWN}


@pytest.mark.parametrize(
    ("n_kept", "n_freed", "category"),
    [(4, 0, Category.UNKNOWN), (2, 2, Category.UNKNOWN), (1, 2, Category.WEIGHT)],
    ids=["all", "half", "a third"],
)
def test_a_forward_that_keeps_half_of_what_it_makes_is_one_of_training(n_kept, n_freed, category, found):
    job = model()
    for _ in range(n_kept):
        job.alloc(FORWARD, OTHER)
    for _ in range(n_freed):
        job.free(job.alloc(FORWARD, OTHER), FORWARD)
    assert found(job, LAYER[1])[0][0] is category


def test_a_vector_of_some_hundred_bytes_is_one_of_the_sizes_of_a_layer(found):
    """A norm of 192 numbers: with it, the layers have three sizes that repeat."""
    layer = (4 * KIB, 768, 8 * KIB)
    job = model(N_LAYERS, layer)
    job.does(FORWARD)
    assert {category for size in layer for category, *_ in found(job, size)} == {Category.WEIGHT}


def test_a_counter_of_every_layer_is_none_of_its_sizes(found):
    layer = (4 * KIB, 64, 8 * KIB)
    job = model(N_LAYERS, layer)
    job.does(FORWARD)
    assert found(job, 4 * KIB)[0][0] is Category.UNKNOWN


@pytest.mark.parametrize(
    ("other", "category"),
    [(10 * KIB + 512, Category.WEIGHT), (3 * KIB, Category.UNKNOWN)],
    ids=["two fifths are no pairs", "a sixth is"],
)
def test_nearly_all_bytes_are_of_pairs_of_precisions_where_a_model_has_states_in_another_one(
    other, category, found
):
    """Of each layer, 16 KiB look like weights and their two states in half the bytes."""
    job = Job()
    for size in (EMBEDDING, *(4 * KIB, other, 4 * KIB, 8 * KIB) * 5):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert found(job, other)[0][0] is category


def test_the_number_of_layers_divides_how_often_nearly_all_sizes_occur(found):
    """Each of four layers has one matrix twice and another once: eight divides most bytes, not all."""
    layer, cache = (512, 6 * KIB, 6 * KIB, 8 * KIB), 22 * KIB
    job = model(N_LAYERS, layer)
    for _ in range(N_LAYERS):
        job.older(NO_FRAMES, cache)
    for _ in range(2):
        job.does(*[FORWARD] * N_LAYERS, CALL, MAIN)
    assert found(job, 6 * KIB)[0][0] is Category.WEIGHT
    assert [category for category, *_ in found(job, cache)] == [Category.KV_CACHE] * N_LAYERS


def test_what_lies_before_the_embedding_and_what_fills_a_hole_is_no_weight(found):
    job, others = Job(), (300 * KIB, 26 * KIB)
    job.older(NO_FRAMES, others[0])
    for size in (EMBEDDING, *LAYER * 2, *[others[1]] * 5, *LAYER * 2, LAYER[0], EMBEDDING):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert {category for size in others for category, *_ in found(job, size)} == {Category.UNKNOWN}
    assert [category for category, *_ in found(job, EMBEDDING)] == [Category.WEIGHT] * 2


def test_a_table_of_positions_comes_between_words_and_layers(found):
    job, words = Job(), 900 * KIB
    for size in (words, EMBEDDING, *LAYER * N_LAYERS, LAYER[0]):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert found(job, words)[0][0] is found(job, EMBEDDING)[0][0] is Category.WEIGHT


def test_a_forward_that_only_blocks_show_counts(found):
    job = model()
    job.older(FORWARD, OTHER)
    inferred = found(job, OTHER)
    assert inferred == [(Category.ACTIVATION, Evidence.LIFETIME, "made-in-forward-and-live-at-dump")]
    assert found(job, LAYER[1])[0][0] is Category.WEIGHT


def test_without_any_forward_turns_are_no_evidence(found):
    job = model()
    job.does(MAIN)
    assert found(job, LAYER[1])[0][0] is Category.UNKNOWN


def test_where_something_is_trained_turns_are_no_evidence(found):
    job = model()
    job.does(FORWARD, ENGINE)
    assert found(job, LAYER[0])[0][0] is Category.UNKNOWN


@pytest.mark.parametrize("n_each", [1, 2])
@pytest.mark.parametrize("stack", [None, ZEROS, MAIN], ids=["older", "zeros", "python"])
def test_as_many_blocks_as_there_are_layers_are_a_cache(stack, n_each, found):
    job = model()
    for _ in range(n_each * N_LAYERS):
        job.older(NO_FRAMES, CACHE) if stack is None else job.alloc(stack, CACHE)
    job.does(FORWARD)
    inferred = (Category.KV_CACHE, Evidence.SIZES, "one-for-every-layer")
    assert found(job, CACHE) == [inferred] * n_each * N_LAYERS


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
    assert not {Category.ACTIVATION, Category.KV_CACHE} & {category for category, *_ in found(job, CACHE)}


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
        assert found(job, size) == [(Category.KV_CACHE, Evidence.LIFETIME, "cache-that-lengthened")] * 2


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


@pytest.mark.parametrize(
    ("other", "category"), [(MIB, Category.UNKNOWN), (MIB + 512, Category.WEIGHT)], ids=["small", "large"]
)
def test_between_large_layers_is_only_what_the_allocator_puts_there(other, category, found):
    """Up to 1 MiB is in segments of its own, wherever these are."""
    job = Job()
    layer = (11 * MIB, 13 * MIB, 12 * MIB)
    for size in (*layer * 3, other, *layer * 2):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert found(job, 12 * MIB)[0][0] is Category.WEIGHT
    assert found(job, other)[0][0] is category


def test_what_is_between_the_first_layer_and_the_last_is_a_weight(found):
    job, others = Job(), (5 * KIB, 7 * KIB)
    layers = (LAYER[0], others[0], *LAYER[1:], *LAYER * 3, *LAYER[:2], others[1], LAYER[2])
    for size in (EMBEDDING, *layers, 9 * KIB):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for size in others:
        assert found(job, size) == [(Category.WEIGHT, Evidence.SIZES, "alternating-sizes")]
    assert found(job, 9 * KIB)[0][0] is Category.UNKNOWN


def test_without_weights_nothing_shows_a_number_of_layers(found):
    job = Job()
    for _ in range(4):
        job.alloc(ZEROS, CACHE)
    job.does(FORWARD)
    assert Category.KV_CACHE not in {category for category, *_ in found(job, CACHE)}


@pytest.mark.parametrize("n_layers", [3, N_LAYERS])
def test_a_cache_of_one_block_for_every_layer_has_at_least_four_of_them(n_layers, found):
    job = model(n_layers)
    for _ in range(n_layers):
        job.older(NO_FRAMES, CACHE)
    job.does(FORWARD)
    expected = Category.KV_CACHE if n_layers >= 4 else Category.UNKNOWN
    assert {category for category, *_ in found(job, CACHE)} == {expected}


def test_a_table_is_eight_times_as_large_as_the_next_one(found):
    for before, category in ((8 * EMBEDDING, Category.WEIGHT), (7 * EMBEDDING, Category.UNKNOWN)):
        job = Job()
        for size in (before, EMBEDDING, *LAYER * 5):
            job.older(NO_FRAMES, size)
        job.does(FORWARD)
        assert found(job, before)[0][0] is category
        assert found(job, EMBEDDING)[0][0] is Category.WEIGHT


def test_three_tables_at_most_are_before_the_layers(found):
    # All of them in segments for small blocks, which end with 1 MiB.
    job, tables = Job(), [2 * 8**n * KIB for n in (3, 2, 1, 0)]
    for size in (*tables, *LAYER * 5):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert [found(job, size)[0][0] is Category.WEIGHT for size in tables] == [False, True, True, True]


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


def test_what_a_prompt_leaves_is_a_cache_where_it_is_freed_as_one(found):
    cached = (Category.KV_CACHE, Evidence.FREE_SITE, "freed-with-a-cache")
    assert found(answered(), 40 * KIB) == [cached] * 2
    assert set(categories(found(answered(), 50 * KIB))) == {Category.TEMPORARY}


def test_what_only_one_layer_leaves_is_no_cache(found):
    job = answered(n_prompt=1)  # as an encoder, whose output is dropped with the caches
    assert set(categories(found(job, LENGTHENED[0]))) == {Category.KV_CACHE}
    assert categories(found(job, 40 * KIB)) == [Category.TEMPORARY]


def test_in_a_validation_what_is_freed_as_a_cache_may_be_anything(found):
    job = answered(cache=CACHE_UPDATE, trained_before=True)
    assert set(categories(found(job, LENGTHENED[0]))) == {Category.KV_CACHE}
    assert Category.KV_CACHE not in categories(found(job, 40 * KIB))


@pytest.mark.parametrize(
    "job",
    [answered(keeps_all=True), answered(freed_by=LOAD)],
    ids=["kept for every token", "freed elsewhere"],
)
def test_other_results_that_are_kept_are_no_cache(job, found):
    assert categories(found(job, 40 * KIB)) == [Category.TEMPORARY] * 2


@pytest.mark.parametrize(
    ("n_bytes", "category"), [(40 * KIB, Category.KV_CACHE), (41 * KIB, Category.ACTIVATION)]
)
def test_where_forwards_left_more_than_caches_they_were_trained(n_bytes, category, found):
    """A state without events: all that is known is what was there, and who had made it."""
    job = Job()
    job.older(NO_FRAMES, 900 * KIB)  # weights, which no forward made
    job.older(CACHE_UPDATE, 40 * KIB)
    job.older(FORWARD, n_bytes)
    job.does(MAIN)
    assert categories(found(job, 40 * KIB))[0] is category


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


def test_as_many_blocks_as_a_cache_that_grew_has_are_the_cache_before_it(found):
    rows = found(after_another_answer(), FIRST + 800)
    assert rows[:N_LAYERS] == [(Category.KV_CACHE, Evidence.SIZES, "as-many-as-caches-that-grew")] * N_LAYERS


@pytest.mark.parametrize(
    "other",
    [{"n_before": N_LAYERS - 1}, {"n_before": N_LAYERS + 1}, {"size": FIRST + 900}, {"freed_at": ENGINE}],
    ids=["fewer", "more", "another size", "freed by backward"],
)
def test_other_numbers_and_sizes_than_those_of_the_cache_are_none_before_it(other, found):
    rows = found(after_another_answer(**other), other.get("size", FIRST + 800))
    assert rows[0][2] != "as-many-as-caches-that-grew"


@pytest.mark.parametrize(("size", "category"), [(64, Category.UNKNOWN), (128, Category.WEIGHT)])
def test_three_blocks_of_128_bytes_for_every_layer_are_weights_and_smaller_ones_counters(
    size, category, found
):
    job = beside_layers(*[size] * 3 * N_LAYERS)
    assert {category for category, *_ in found(job, size)} == {category}


@pytest.mark.parametrize(("n_among", "category"), [(4, Category.WEIGHT), (3, Category.UNKNOWN)])
def test_nearly_all_blocks_of_a_size_are_among_the_layers_where_they_are_weights(n_among, category, found):
    """One for each of five layers, between norms that are three for every layer."""
    job = Job()
    norms, wide = [NORM] * 15, [WIDE] * 5
    for size in (*norms[:9], *[SQUARE] * n_among, *norms[9:], *wide, *norms[:1], *[SQUARE] * (5 - n_among)):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * 5, CALL, MAIN)
    assert {category for category, *_ in found(job, SQUARE)} == {category}


@pytest.mark.parametrize(
    ("runs", "category"),
    [((2, 1, 1), Category.WEIGHT), ((3, 1, 1), Category.UNKNOWN), ((2, 2), Category.UNKNOWN)],
    ids=["half of them", "most of them", "two runs"],
)
def test_sizes_alternate_that_are_three_times_apart_and_no_more_than_half_side_by_side(runs, category, found):
    """Behind the layers, with one block of another size after each run."""
    job, size = model(), 6 * KIB
    for number, n_side_by_side in enumerate(runs):
        for _ in range(n_side_by_side):
            job.older(NO_FRAMES, size)
        job.older(NO_FRAMES, 3 * KIB + 16 * number)
    job.does(FORWARD)
    assert {category for category, *_ in found(job, size)} == {category}


def test_what_forward_makes_is_no_layer(found):
    """Of two layers, and results as large as their weights, in turn."""
    job = model(2)
    for addr in [job.alloc(FORWARD, size) for size in LAYER * 3]:
        job.free(addr, FORWARD)
    assert found(job, LAYER[1])[0][0] is Category.UNKNOWN


def test_what_the_trace_makes_as_often_as_layers_ran_was_there_for_none_of_them(found):
    job = beside_layers()
    for _ in range(3 * N_LAYERS):
        job.alloc(MAIN, PAIR)
    assert Category.WEIGHT not in categories(found(job, PAIR))


def test_a_table_of_words_is_larger_than_the_weights_of_layers(found):
    job = beside_a_table(*[TABLE + 100 * KIB] * 3 * N_LAYERS, TABLE, made=3 * N_WORDS * 4)
    assert categories(found(job, TABLE)) == [Category.UNKNOWN]
    assert set(categories(found(job, TABLE + 100 * KIB))) == {Category.WEIGHT}


# Of 256 numbers in full precision.
@pytest.mark.parametrize(("n_words", "category"), [(257, Category.WEIGHT), (255, Category.UNKNOWN)])
def test_a_table_has_more_words_than_a_row_has_numbers(n_words, category, found):
    job = beside_a_table(n_words * NORM, made=3 * n_words * 4)
    assert categories(found(job, n_words * NORM)) == [category]


def test_where_layers_are_trained_and_a_table_is_not_it_may_be_anything(found):
    job = beside_a_table(TABLE, made=3 * N_WORDS * 4)
    gradients = [job.alloc(ENGINE, size) for size in SIDE_BY_SIDE]
    for addr in gradients:
        job.free(addr, ZERO_GRAD)
    assert Category.WEIGHT in categories(found(job, SQUARE))
    assert categories(found(job, TABLE)) == [Category.UNKNOWN]


def test_three_layers_are_enough(found):
    job = model(3)
    job.does(FORWARD)
    assert {category for size in LAYER for category in categories(found(job, size))} == {Category.WEIGHT}


def test_two_sizes_that_occur_as_often_as_layers_ran_may_be_anything(found):
    job = Job()
    for size in (*(NORM,) * 9, *(SQUARE,) * 16):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * N_LAYERS, CALL, MAIN)
    assert set(categories(found(job, SQUARE))) == {Category.UNKNOWN}


def test_two_large_matrices_in_turn_are_enough_where_vectors_are_elsewhere(found):
    job, layer = Job(), (11 * MIB, 13 * MIB, KIB)
    for size in layer * 5:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert set(categories(found(job, layer[0]))) == {Category.WEIGHT}


def test_a_table_before_the_layers_is_one_whatever_lies_behind_them(found):
    job = Job()
    for size in (EMBEDDING, *LAYER * 5, 9 * EMBEDDING):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert categories(found(job, EMBEDDING)) == [Category.WEIGHT]
    assert categories(found(job, 9 * EMBEDDING)) == [Category.UNKNOWN]


def test_what_a_line_makes_longer_and_frees_before_it_runs_again_is_no_cache(found):
    """As scores of attention are, which go on to the next forward."""
    job = Job()
    for size in LENGTHENED:
        scores = job.alloc(FORWARD, size)
        job.does(MAIN)
        job.free(scores, MAIN)
    for size in LENGTHENED:
        assert categories(found(job, size)) == [Category.TEMPORARY]


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


def test_a_table_is_as_wide_as_any_size_that_repeats(found):
    """Also beside biases, which are smaller than norms."""
    job = beside_a_table(*[512] * 3 * N_LAYERS, TABLE, made=2 * N_WORDS)
    assert set(categories(found(job, 512))) == set(categories(found(job, TABLE))) == {Category.WEIGHT}


@pytest.mark.parametrize(("n_norms", "category"), [(3, Category.WEIGHT), (2, Category.UNKNOWN)])
def test_a_table_is_as_wide_as_a_norm_of_three_layers(n_norms, category, found):
    job = Job()
    for size in (*[SQUARE] * 12, *[NORM] * n_norms, *[8 * KIB] * 4, *[WIDE] * 9, TABLE):
        job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(*[FORWARD] * 3, CALL, MAIN)
    job.does(LOOKUP)
    job.free(job.alloc(FORWARD, 3 * N_WORDS * 4), FORWARD)
    assert set(categories(found(job, SQUARE))) == {Category.WEIGHT}
    assert categories(found(job, TABLE)) == [category]
