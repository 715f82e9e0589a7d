"""Tables of words: as wide as the layers of a model, and as what forward looks up in them."""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.columns import Int64Column, distinct
from snapconv.torch_knowledge.frame_roles import Role

# Norms and biases are vectors as wide as the model. What is smaller is a counter or another scalar.
LEAST_VECTOR_BYTES, MOST_VECTOR_BYTES = 128, 2**17
_LEAST_VECTORS = 3
# A table and its inverse.
_MOST_TABLES = 2
# A table of words is so much larger than what else is as wide.
_TABLE_TO_NEXT = 8


def table_of_words(features: Features, decided: Decided, rows: Int64Column) -> Int64Column:
    """Of some rows what forward looks up rows in: far larger than the others and than all weights."""
    sizes, widths = features.sizes, _widths(features, decided)
    rows = rows[np.any(sizes[rows][:, None] % widths == 0, axis=1)]
    if not len(rows):
        return rows
    is_largest = sizes[rows] == sizes[rows].max()
    weights = sizes[decided.has(Category.WEIGHT)]
    next_size = max(sizes[rows[~is_largest]].max(initial=0), weights.max(initial=0))
    is_clear = (
        np.count_nonzero(is_largest) <= _MOST_TABLES and sizes[rows].max() >= _TABLE_TO_NEXT * next_size
    )
    return rows[is_largest] if is_clear else rows[:0]


def _widths(features: Features, decided: Decided) -> Int64Column:
    """Bytes of the vectors that repeat before the trace, and divide what forward looks up in a table."""
    sizes = features.sizes
    looked_up = distinct(sizes[features.in_forward & features.made_through(Role.LOOKUP)])
    may_be_weight = features.unrecorded & (decided.is_open | decided.has(Category.WEIGHT))
    vectors, counts = np.unique(sizes[may_be_weight], return_counts=True)
    vectors = vectors[(counts >= _LEAST_VECTORS) & (vectors >= LEAST_VECTOR_BYTES)]
    vectors = vectors[vectors <= MOST_VECTOR_BYTES]
    widths: Int64Column = vectors[np.any(looked_up[:, None] % vectors == 0, axis=0)]
    return widths
