"""Blocks that have no gradient: layers that repeat, tables of words, and data."""

from types import SimpleNamespace

import numpy as np
import pytest

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.frozen_layers import frozen_layers
from snapconv.classification.rule import Decided, Proposal
from snapconv.classification.tables_of_words import table_of_words

KIB = 1024
WIDTH = 512  # bytes of a norm, and of a row of a table
N_WORDS = 4000
TABLE = N_WORDS * WIDTH
LAYER = (WIDTH, 24 * KIB, 16 * KIB)
# A hundred words looked up.
LOOKED_UP = 100 * WIDTH


def chosen(choose, sizes, *, looked_up=LOOKED_UP, weights=()):
    """Sizes that ``choose`` takes of blocks from before the trace; ``weights`` are known beside them.

    Forward looked up rows of ``looked_up`` bytes.
    """
    of_all = np.array([*sizes, *weights, looked_up], np.int64)
    rows, n_older = np.arange(len(of_all)), len(sizes) + len(weights)
    is_looked_up, is_older = rows == n_older, rows < n_older
    features = SimpleNamespace(
        sizes=of_all,
        unrecorded=is_older,
        in_forward=is_looked_up,
        is_traced=~is_older,
        alloc_phase=np.full(len(of_all), -1),
        made_through=lambda _: is_looked_up,
        mask=lambda chosen: np.isin(rows, chosen),
        outside=np.zeros(len(of_all), np.bool_),
        is_live_at_dump=is_older,
        alloc=np.where(is_older, -1, 0),
        first=lambda _: 0,
        has_cpp=True,
        phases=SimpleNamespace(events_of_training=()),
    )
    decided = Decided(len(of_all))
    is_weight = is_older & (rows >= len(sizes))
    decided.add(Proposal(is_weight, Category.WEIGHT, Evidence.SIZES, "known"))
    return sorted(of_all[choose(features, decided, rows[: len(sizes)])].tolist())


@pytest.mark.parametrize("n_layers", [3, 5])
def test_layers_with_a_table_of_words_are_a_model_and_so_is_the_rest(n_layers):
    sizes = [*LAYER * n_layers, TABLE, 10 * KIB]
    assert chosen(frozen_layers, sizes) == sorted(sizes)


def test_where_forward_looks_nothing_up_as_wide_as_a_norm_a_large_block_may_be_data():
    assert chosen(frozen_layers, [*LAYER * 3, TABLE], looked_up=100 * WIDTH + 4) == []


def test_layers_with_different_counts_are_weights_beside_data_that_is_larger():
    """A list of batches has as many of each of its sizes."""
    data = 9_999_999
    layers = [*LAYER * 3, WIDTH]
    assert chosen(frozen_layers, [*layers, data]) == sorted(layers)
    assert chosen(frozen_layers, [*LAYER * 3, data]) == []


def test_two_of_a_small_size_are_parts_of_two_sets_of_data():
    data = (6, 576, 4 * KIB, 3000 * KIB)
    assert chosen(frozen_layers, [*data * 2, 1000 * KIB]) == []
    assert chosen(frozen_layers, [*data * 2, 576, 1000 * KIB]) != []


@pytest.mark.parametrize(
    ("sizes", "are_layers"),
    [
        ((512, 24 * KIB, 16 * KIB), True),
        ((512, 24 * KIB, 16 * KIB, 4 * KIB + 4), True),
        ((512, 24 * KIB, 16 * KIB, 5 * KIB + 4), False),
        ((24 * KIB, 16 * KIB, 8 * KIB), False),
        ((130 * KIB, 260 * KIB, 520 * KIB), False),
        ((128, 1280, 12_800), True),
        ((124, 1240, 12_400), False),
    ],
    ids=[
        "rows of one width",
        "nine tenths",
        "less",
        "the smallest is no row",
        "no vector",
        "of 128 bytes",
        "of fewer",
    ],
)
def test_nearly_all_of_the_layers_are_whole_rows_of_a_vector_that_repeats(sizes, are_layers):
    """Columns of a data set have as many rows, and no vector beside them."""
    blocks = [*sizes * 3, sizes[0]]
    assert bool(chosen(frozen_layers, blocks)) == are_layers


@pytest.mark.parametrize(("n_vectors", "are_layers"), [(1, False), (2, True)])
def test_a_known_vector_that_occurs_once_shows_no_width(n_vectors, are_layers):
    sizes = [24 * KIB, 16 * KIB, 9 * KIB] * 3 + [9 * KIB]
    assert bool(chosen(frozen_layers, sizes, weights=[WIDTH] * n_vectors)) == are_layers


def test_what_is_all_smaller_than_a_kibibyte_is_no_layers():
    assert chosen(frozen_layers, [128, 256, 512] * 3 + [128]) == []


def test_what_batches_are_drawn_from_is_no_layer(monkeypatch):
    sizes = [*LAYER * 3, TABLE, 10 * KIB]
    assert chosen(frozen_layers, sizes) != []
    monkeypatch.setattr(
        "snapconv.classification.frozen_layers.drawn_from",
        lambda features, _: np.ones(len(features.sizes), np.bool_),
    )
    assert chosen(frozen_layers, sizes) == []


def test_with_only_two_sizes_that_repeat_nothing_is_a_layer():
    assert chosen(frozen_layers, LAYER[1:] * 4) == []


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([TABLE], [TABLE]),
        ([TABLE, TABLE], [TABLE, TABLE]),
        ([TABLE, 300 * WIDTH], [TABLE]),
        ([TABLE, TABLE, TABLE], []),
        ([TABLE, 600 * WIDTH], []),
        ([TABLE + 4], []),
    ],
    ids=["one", "with its inverse", "and positions", "three", "and one nearly as large", "of other rows"],
)
def test_the_table_of_words_is_far_larger_than_what_else_is_as_wide(sizes, expected):
    assert chosen(table_of_words, sizes, weights=LAYER * 3) == expected


def test_where_a_known_weight_is_nearly_as_large_the_block_may_be_a_cache():
    assert chosen(table_of_words, [TABLE], weights=[*LAYER * 3, TABLE // 2]) == []


@pytest.mark.parametrize("width", [64, 256 * KIB], ids=["a counter", "a matrix"])
def test_what_repeats_and_is_no_vector_shows_no_width(width):
    sizes, weights = [4000 * width], [width] * 3
    assert chosen(table_of_words, sizes, weights=weights, looked_up=100 * width) == []


def test_vectors_that_do_not_repeat_as_layers_do_show_no_width():
    assert chosen(table_of_words, [TABLE], weights=[WIDTH] * 2) == []
