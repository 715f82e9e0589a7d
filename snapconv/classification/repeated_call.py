"""Results of a call from before the trace, by those of the same call within it.

The trace may begin with the graph of a call whose stacks are lost, and free it at once where the
next call's output replaces it. Where what the next one has made by then are blocks of the same
sizes, as many of each, it is the same call: what its blocks of a size are, the old ones are.
"""

from collections.abc import Iterator

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import LIKELY, Decided, FloatColumn, Proposal
from snapconv.classification.features import Features
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among, rows_of
from snapconv.torch_knowledge.frame_patterns import Role

COPY_OF_BEFORE = "copy-of-a-weight-in-an-old-graph"
COPY_OR_ACTIVATION = "copy-of-a-weight-or-activation"
REASONS = {
    COPY_OF_BEFORE: "from before the trace, and freed with its graph, when the same call had made "
    "blocks of the same sizes, as many of each: those of its size are copies of weights, or most "
    "are that or results",
    COPY_OR_ACTIVATION: "from before the trace, and freed with its graph, when the same call had "
    "made blocks of the same sizes: of its size some are copies of weights, and some are results",
}
# Fewer sizes may agree by chance.
_LEAST_SIZES = 3
# A program has one or two; hostile files have any number.
_MOST_GRAPHS = 4
# Of a size that results have too, none is certain, however few these are.
_MOST_LIKELY = 0.9


def copies_in_old_graphs(decided: Decided) -> Iterator[Proposal]:
    """Name the copies of weights that autocast has made in a graph from before the trace.

    Their sizes are those of the copies that the same call makes in the trace. Where results have
    that size too, nothing shows which is which: most are named, as likely as they are many.
    """
    features = decided.features
    is_copy = decided.has(Category.WEIGHT) & features.in_forward
    may_be_copy = ~features.is_traced & features.freed_through(Role.RELEASE)
    may_be_copy &= is_among(features.sizes, distinct(features.sizes[is_copy]))
    if not may_be_copy.any():
        return
    copies = _shares_of_copies(features, may_be_copy, is_copy)
    has_copies = may_be_copy & (copies > 0)
    yield Proposal(
        has_copies & (copies == 1), Category.WEIGHT, Evidence.SIZES, COPY_OF_BEFORE
    )
    for category, share in ((Category.WEIGHT, copies), (Category.ACTIVATION, 1 - copies)):
        is_likely = has_copies & (share >= LIKELY)
        probability = np.minimum(share, _MOST_LIKELY)
        yield Proposal(is_likely, category, Evidence.SIZES, COPY_OF_BEFORE, probability)
    yield Proposal(has_copies, Category.UNKNOWN, Evidence.NONE, COPY_OR_ACTIVATION)


def _shares_of_copies(
    features: Features, may_be_copy: BoolColumn, is_copy: BoolColumn
) -> FloatColumn:
    """Return, for each block of a repeated call, which share of its size are copies there."""
    shares: FloatColumn = np.zeros(len(features.alloc), np.float32)
    for old_rows, new_rows in _repeated(features, may_be_copy):
        sizes, size_id = np.unique(features.sizes[new_rows], return_inverse=True)
        size_shares = np.bincount(size_id, is_copy[new_rows]) / np.bincount(size_id)
        shares[old_rows] = size_shares[np.searchsorted(sizes, features.sizes[old_rows])]
    return shares


def _repeated(
    features: Features, may_be_copy: BoolColumn
) -> Iterator[tuple[Int64Column, Int64Column]]:
    """Yield what is from before the trace and freed at once, with the same call's blocks.

    These are what the trace has made by then and still uses: as many of each size.
    """
    freed_rows = rows_of(~features.is_traced & features.is_freed)
    n_made_before = np.searchsorted(np.sort(features.alloc), features.end)
    graphs = [
        rows
        for rows in grouped(freed_rows, n_made_before, min_rows=_LEAST_SIZES)
        if may_be_copy[rows].any()
    ]
    for old_rows in sorted(graphs, key=len)[-_MOST_GRAPHS:]:
        is_new = features.is_traced & (features.alloc < features.end[old_rows].min())
        is_new &= features.end > features.end[old_rows].max()
        new_rows = rows_of(is_new)
        old_sizes, new_sizes = (
            np.sort(features.sizes[rows]) for rows in (old_rows, new_rows)
        )
        is_same = np.array_equal(old_sizes, new_sizes)
        if is_same and len(distinct(old_sizes)) >= _LEAST_SIZES:
            yield old_rows, new_rows
