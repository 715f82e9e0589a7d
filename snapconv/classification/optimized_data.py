"""Data that an optimizer changes: a picture, a latent code or noise, made as a batch is.

What has a gradient and states of its size is a parameter, whoever made it. Where no other weight
may be that parameter, data of the size is; of more blocks than parameters, nothing shows which.
"""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Condition, Decided
from snapconv.classification.features import Features
from snapconv.classification.parameters import (
    SMALL_BYTES,
    find_parameters,
    most_at_once,
)
from snapconv.columns import BoolColumn, Int64Column, grouped, is_among, rows_of
from snapconv.phases.trace_phases import Phase

# What hostile files may cost: the largest sizes are looked at.
_MOST_SIZES = 200


@Condition
def is_optimized(decided: Decided) -> BoolColumn:
    """Be there as long as states of the size, where no weight may be their parameter."""
    return decided.shared(_optimized)[0]


@Condition
def is_equal_to_optimized(decided: Decided) -> BoolColumn:
    """Be there so long, where there is more data of the size than such parameters."""
    return decided.shared(_optimized)[1]


def _optimized(decided: Decided) -> tuple[BoolColumn, BoolColumn]:
    """Find data that is a parameter, and data of which only some is."""
    features = decided.features
    sizes = features.sizes
    is_all, is_some = (np.zeros(len(sizes), bool) for _ in range(2))
    rows = _lasting_data(decided)
    is_weight = decided.has(Category.WEIGHT) | (decided.is_open & features.unrecorded)
    n_parameters = find_parameters(decided).sizes if len(rows) else {}
    for size_rows in grouped(rows, sizes):
        size = int(sizes[size_rows[0]])
        n_missing = n_parameters[size] - np.count_nonzero(is_weight & (sizes == size))
        if n_missing > 0:
            counts = most_at_once(
                sizes[size_rows], features.alloc[size_rows], features.end[size_rows]
            )
            (is_all if counts[size] <= n_missing else is_some)[size_rows] = True
    return is_all, is_some


def _lasting_data(decided: Decided) -> Int64Column:
    """Find open data that is there as long as states of its size, which follow a gradient."""
    features = decided.features
    sizes = features.sizes
    is_state = decided.has(Category.OPTIMIZER_STATE) & features.made_in_step
    state_rows = rows_of(is_state & features.outlives_run)
    gradient_rows = rows_of(decided.has(Category.GRADIENT) & features.by_engine)
    trained_sizes = np.intersect1d(sizes[state_rows], sizes[gradient_rows])
    trained_sizes = trained_sizes[trained_sizes >= SMALL_BYTES][-_MOST_SIZES:]
    is_data = decided.is_open & (features.outside | features.preexisting_outside)
    rows = [state_rows[:0]]
    for size_rows in grouped(rows_of(is_data & is_among(sizes, trained_sizes)), sizes):
        size = sizes[size_rows[0]]
        gradients = gradient_rows[sizes[gradient_rows] == size]
        states = state_rows[sizes[state_rows] == size]
        rows.append(size_rows[_outlive_states(features, size_rows, gradients, states)])
    return np.concatenate(rows)


def _outlive_states(
    features: Features,
    rows: Int64Column,
    gradient_rows: Int64Column,
    state_rows: Int64Column,
) -> BoolColumn:
    """Mark the rows that a gradient follows, and then a state that lives no longer than the row.

    An optimizer keeps its parameters: they are there as long as their states, but for the end of a
    function, which frees both.
    """
    gradients = np.append(np.sort(features.alloc[gradient_rows]), features.n_events)
    state_rows = state_rows[np.argsort(features.alloc[state_rows], kind="stable")]
    state_alloc = features.alloc[state_rows]
    state_end = np.append(features.end[state_rows], features.n_events)
    gradient = gradients[np.searchsorted(gradients[:-1], features.alloc[rows], "right")]
    state = np.searchsorted(state_alloc, gradient, "right")
    end = features.end[rows]
    next_use = features.phases.next_after(Phase.BACKWARD, end)
    is_there = end > np.append(state_alloc, features.n_events)[state]
    return np.asarray(is_there & (next_use >= state_end[state]))
