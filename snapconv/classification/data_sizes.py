"""Sizes that show data: what stays on the device, and of which batches are rows.

A replay buffer, the storage of rollouts and a data set have several columns of as many rows, and so
have the batches that are taken from them: each column is as many times as large as its batch. Data
that is used as a whole has as many rows as what forward makes of it.
"""

from collections import defaultdict
from math import gcd

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Condition, Decided
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among

# What hostile files may cost: the largest sizes are compared.
_MOST_SIZES, _MOST_BATCHES = 200, 60
# So many columns are as many times as large as their batches: fewer, if the number is no power of
# two, nor small beside one. Weights are products of such numbers.
_LEAST_COLUMNS, _LEAST_FACTOR = 3, 8
# Data has more than this share of the sizes that nothing trains: a frozen model has tens of sizes,
# of which some are by chance as many times as large as some batch.
_LEAST_SHARE = 1 / 3
# Powers of two apart, results of forward have at least this factor in common, and weights have not.
_LEAST_ROWS = 100
# This share of the bytes of results of forward: the others are scalars, and statistics.
_MOST_RESULTS = 0.9


@Condition
def has_rows_of_batches(decided: Decided) -> BoolColumn:
    """Be as many times as large as a batch as other data is as another batch."""
    features = decided.features
    sizes = features.sizes
    is_batch = features.is_traced & (decided.has(Category.INPUT) | features.outside)
    n_batches = _counts(sizes[is_batch], _MOST_BATCHES)
    n_blocks = _counts(sizes[decided.is_open & features.unrecorded], len(sizes))
    untrained_sizes = _untrained_sizes(decided)
    columns = defaultdict(set)
    for size in untrained_sizes:
        for batch_bytes, n_of_batch in n_batches.items():
            # Each column has a batch; equal weights of frozen layers are more.
            if 0 < batch_bytes < size and n_blocks[size] <= n_of_batch:
                divisor = gcd(size, batch_bytes)
                columns[size // divisor, batch_bytes // divisor].add(size)
    data_sizes = [
        size
        for (n_rows, n_in_batch), column_sizes in columns.items()
        if len(column_sizes) > _LEAST_SHARE * len(untrained_sizes)
        and len(column_sizes) >= _least_columns(n_rows * n_in_batch)
        for size in column_sizes
    ]
    return features.unrecorded & is_among(sizes, data_sizes)


@Condition
def has_rows_of_results(decided: Decided) -> BoolColumn:
    """Be a multiple of a number of rows that all results of forward have, and no weight."""
    features = decided.features
    sizes = features.sizes
    row_bytes = _common_divisor(sizes[features.in_forward])
    trained_sizes = _trained_sizes(decided)
    if _odd_part(row_bytes) < _LEAST_ROWS or not len(trained_sizes):
        return np.zeros(len(sizes), np.bool_)
    if np.any(trained_sizes[trained_sizes > 0] % row_bytes == 0):
        return np.zeros(len(sizes), np.bool_)
    data_sizes = [size for size in _untrained_sizes(decided) if size % row_bytes == 0]
    return features.unrecorded & is_among(sizes, data_sizes)


def _least_columns(number: int) -> int:
    """Return how many columns show that data has so many times the rows of a batch."""
    return 2 if _odd_part(number) >= _LEAST_FACTOR else _LEAST_COLUMNS


def _untrained_sizes(decided: Decided) -> list[int]:
    """Return the largest open sizes from before the trace that nothing of training has."""
    features = decided.features
    if not decided.has(Category.GRADIENT, Category.OPTIMIZER_STATE).any():
        return []  # weights may be as large
    trained_sizes = _trained_sizes(decided)
    open_sizes = distinct(features.sizes[decided.is_open & features.unrecorded])
    open_sizes = np.setdiff1d(open_sizes, trained_sizes)
    largest: list[int] = open_sizes[-_MOST_SIZES:].tolist()
    return largest


def _trained_sizes(decided: Decided) -> Int64Column:
    """Return the sizes of gradients, states and weights, and of what backward or a step makes."""
    features = decided.features
    is_by_training = (features.by_engine | features.made_in_step) & features.outlives_run
    is_known = decided.has(Category.GRADIENT, Category.OPTIMIZER_STATE, Category.WEIGHT)
    return distinct(features.sizes[is_by_training | is_known])


def _counts(sizes: Int64Column, n_most: int) -> dict[int, int]:
    """Return how often the largest sizes occur."""
    unique_sizes, counts = np.unique(sizes, return_counts=True)
    rows = zip(unique_sizes[-n_most:].tolist(), counts[-n_most:].tolist(), strict=True)
    return dict(rows)


def _common_divisor(sizes: Int64Column) -> int:
    """Return what divides the sizes that have most of the bytes."""
    unique_sizes, counts = np.unique(sizes, return_counts=True)
    n_bytes = unique_sizes * counts
    order = np.argsort(-n_bytes, kind="stable")
    before = np.cumsum(n_bytes[order]) - n_bytes[order]
    chosen = unique_sizes[order[before < _MOST_RESULTS * n_bytes.sum()]]
    return int(np.gcd.reduce(chosen, initial=0))


def _odd_part(number: int) -> int:
    return number // (number & -number) if number else 0
