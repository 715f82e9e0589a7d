"""Layers that are not trained, and the tables of words beside them: blocks from before the trace.

No gradient is as large as they are. What else stays so long is data, or kept by the optimizer for a part of a
weight.
"""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.data_on_device import drawn_from, may_be_data
from snapconv.classification.factored_states import sizes_made_in_steps
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import SMALL_BYTES
from snapconv.classification.size_splits import LEAST_SIZES
from snapconv.classification.tables_of_words import LEAST_VECTOR_BYTES, MOST_VECTOR_BYTES, table_of_words
from snapconv.columns import Int64Column, is_among

# A layer has a norm, and a model several layers.
_LEAST_NORMS = 2
# Of frozen layers in 50 programs 99 % and more are; of data that lies on the device 70 %.
_NEARLY = 0.9


def frozen_layers(features: Features, decided: Decided, rows: Int64Column) -> Int64Column:
    """Which of some rows, as large as none of the gradients, are weights.

    Layers repeat, and so do several sizes of frozen weights; where they and a table of words are most of the
    bytes, the rest is weights, too. Data that stays is a few large blocks, or a list of batches, each of as
    many. What is as large as something that the optimizer computes may be its own.
    """
    sizes = features.sizes
    rows = rows[decided.is_open[rows] & ~is_among(sizes[rows], sizes_made_in_steps(features))]
    rows = rows[~drawn_from(features, decided)[rows]]
    found, counts = np.unique(sizes[rows], return_counts=True)
    # Two of a small size are parts of two data sets, as soon as those of a layer.
    repeats = ((counts > 1) & (found >= SMALL_BYTES)) | ((counts > 2) & (found >= LEAST_VECTOR_BYTES))
    if np.count_nonzero(repeats) < LEAST_SIZES:
        return rows[:0]
    of_layers = rows[is_among(sizes[rows], found[repeats])]
    n_bytes = found * counts
    # A replay buffer has most columns twice: of a step, and of the next one.
    are_pairs = 2 * n_bytes[counts == 2].sum() > n_bytes[repeats].sum()
    if are_pairs and may_be_data(features, decided, of_layers):
        return rows[:0]
    if not have_width(features, decided, of_layers):
        return rows[:0]
    known = np.concatenate(
        (of_layers, table_of_words(features, decided, rows[sizes[rows] > found[repeats].max()]))
    )
    if 2 * sizes[known].sum() >= sizes[rows].sum():
        return rows
    takes_turns = counts[repeats].min() < counts[repeats].max()
    return known if takes_turns else rows[:0]


def have_width(features: Features, decided: Decided, rows: Int64Column) -> bool:
    """Whether nearly all bytes are of whole rows: of several times a vector, as of a norm, that repeats.

    True proves little, for what is a power of two divides another one; False shows that they are no layers.
    """
    sizes = features.sizes
    may_be_weight = features.unrecorded & decided.has(Category.WEIGHT)
    may_be_weight[rows] = True
    vectors, counts = np.unique(sizes[may_be_weight], return_counts=True)
    is_vector = (vectors >= LEAST_VECTOR_BYTES) & (vectors <= MOST_VECTOR_BYTES)
    vectors = vectors[is_vector & (counts >= _LEAST_NORMS)]
    of_rows, n_of_rows = np.unique(sizes[rows][sizes[rows] >= SMALL_BYTES], return_counts=True)
    several = of_rows[:, None] > vectors
    is_multiple = np.any(several & (of_rows[:, None] % vectors == 0), axis=1)
    n_bytes = of_rows * n_of_rows
    return bool(n_bytes.any() and n_bytes[is_multiple].sum() >= _NEARLY * n_bytes.sum())
