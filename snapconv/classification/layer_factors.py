"""Square matrices that a program keeps for the two sides of its layers: the factors of a preconditioner.

K-FAC and Shampoo keep, for a weight of m x n, one matrix of m x m and one of n x n, their roots or inverses
beside them. Where a bias is a further column, a side is longer by one.
"""

from math import isqrt

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features, at, of_fullest
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import counted
from snapconv.columns import BoolColumn, Int64Column, is_among
from snapconv.phases.trace_phases import Phase

# Factors are in full precision, also beside weights in half.
_FACTOR_BYTES, _WEIGHT_BYTES = 4, (4, 2)
# Smaller blocks are squares by chance.
_LEAST_SIDE = 16
# Of pairs: fewer may agree by chance, and so may those of few of the weights.
_LEAST_PAIRS, _LEAST_SHARE = 2, 0.5
# A model has hundreds of sizes at most; of more, nothing is looked for.
_MOST_SIDES = 1000

# How often each of some numbers occurs.
_Counts = dict[int, int]


def factors_of_layers(features: Features, decided: Decided) -> BoolColumn:
    """What is kept through a whole backward, or the whole trace, and is a square of a side of the layers.

    A weight may be such a square itself: of those sizes only what a line makes that makes others too.
    """
    kept = decided.is_open & (_outlives_next_backward(features) | features.lasts_throughout)
    weights = features.sizes[_layers(features, decided)]
    sides = _sides(features.sizes[kept])
    if not _LEAST_PAIRS <= len(sides) <= _MOST_SIDES:
        return np.zeros(len(kept), np.bool_)
    # Of weights in half precision there may be copies in full.
    copies = np.concatenate((weights, 2 * weights))
    for n_bytes in _WEIGHT_BYTES:
        found = _sides_in_pairs(sides, counted(weights[weights % n_bytes == 0] // n_bytes), _sides(copies))
        if len(found):
            return _of_sides(features, kept, found, copies)
    return np.zeros(len(kept), np.bool_)


def _layers(features: Features, decided: Decided) -> Int64Column:
    """The rows of the weights, or where they are not known, of the gradients of one iteration."""
    weights = np.flatnonzero(decided.has(Category.WEIGHT))
    gradients = np.flatnonzero(decided.has(Category.GRADIENT))
    return weights if len(weights) else of_fullest(gradients, features.iteration, features.sizes)


def _outlives_next_backward(features: Features) -> BoolColumn:
    """In use when another forward has begun, after that of its own, and the backward after it is over."""
    own = np.maximum(features.alloc, features.alloc_run_end)
    begins = features.phases.next_after(Phase.BACKWARD, features.phases.next_after(Phase.FORWARD, own))
    ends = at(features.phases.run_end, begins, features.n_events)
    return np.asarray(features.end > ends)


def _sides(sizes: Int64Column) -> _Counts:
    """The sides of those blocks that are square matrices, and how many blocks have them."""
    found = (
        (isqrt(n), n, count)
        for n, count in counted(sizes[sizes % _FACTOR_BYTES == 0] // _FACTOR_BYTES).items()
    )
    return {side: count for side, n, count in found if side * side == n and side >= _LEAST_SIDE}


def _sides_in_pairs(sides: _Counts, weights: _Counts, of_weights: _Counts) -> Int64Column:
    """The sides that are those of weights, if most of the weights have both of theirs, each one its own.

    Of a copy of the model every square is as large as a weight: two sides at least must be of no such square.
    """
    found, n_pairs, explained = set[int](), 0, 0
    for size, count in weights.items():
        often = [side for side, n in sides.items() if n >= count]
        pairs = [{side, other} for side in often for other in _others(size, side) if other in often]
        pairs = [pair for pair in pairs if not pair <= of_weights.keys()]
        if pairs:
            found |= set[int]().union(*pairs)
            n_pairs, explained = n_pairs + 1, explained + size * count
    total = sum(size * count for size, count in weights.items())
    is_new = len(found - of_weights.keys()) >= _LEAST_PAIRS
    is_most = n_pairs >= _LEAST_PAIRS and explained >= _LEAST_SHARE * total
    return np.array(sorted(found) if is_new and is_most else [], np.int64)


def _others(size: int, side: int) -> tuple[int, ...]:
    """The other side of a weight that has this one, which may have a bias's column more."""
    return tuple(size // each for each in (side, side - 1) if size % each == 0)


def _of_sides(features: Features, kept: BoolColumn, sides: Int64Column, copies: Int64Column) -> BoolColumn:
    sizes, line = features.sizes, features.lines()
    is_square = kept & is_among(sizes, _FACTOR_BYTES * sides * sides)
    found = is_square & ~is_among(sizes, copies)
    return np.asarray(found | (is_square & (line >= 0) & is_among(line, line[found])))
