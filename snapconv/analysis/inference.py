"""Weights and caches of a trace in which nothing is trained.

No gradient tells there which blocks are weights. But models are built layer by layer, so that the sizes of
weights take turns in memory, while a cache is as many blocks of one size, side by side, as there are layers.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Decisions
from snapconv.analysis.facts import Facts, next_of
from snapconv.analysis.phases import Phase
from snapconv.analysis.rules import Role

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]

# The caching allocator keeps what is larger in other segments (c10/core/AllocatorConfig.h, kSmallSize).
_SMALL_POOL_BYTES = 2**20
# A model has at least this many layers, with weights of this many sizes: two matrices and a vector, which
# the allocator keeps elsewhere.
_LEAST_TURNS = 3
_LEAST_SIZES = 3
_LEAST_IN_TURN = 2
# What is smaller is no weight of a layer, but a counter or another scalar.
_SMALL_BYTES = 128
# A weight with its momentum, with Adam's two states, and with a gradient besides.
_COPIES = (2, 3, 4)
# Full precision beside half, and bytes beside either; and how often the larger size occurs for the smaller
# one: masters and two states, masters and momentum, or bytes for two states.
_PRECISIONS = (2, 4)
_TIMES_AS_OFTEN = ((3, 1), (2, 1), (1, 2))
# A table of words is so much larger than that of positions, and this than one of kinds of text.
_TABLE_TO_NEXT = 8
_MOST_TABLES = 3
# Of what forward makes, inference keeps a cache; training keeps most.
_MOST_KEPT = 0.4
_MOST_LAYERS = 1000
# A cache has keys and values. Fewer blocks of one size may be anything.
_LEAST_CACHE_BLOCKS = 4
_NEARLY = 0.8


def decide_inference(decisions: Decisions, facts: Facts) -> None:
    """Decide old weights without frames, and caches, where modules ran and none shows to be trained."""
    trains = (facts.phases.certain == Phase.BACKWARD) | (facts.phases.certain == Phase.OPTIMIZER)
    if trains.any() or _saves(facts) or not (facts.in_forward | facts.old_in_forward).any():
        return
    _weights(decisions, facts)
    _caches(decisions, facts)


def _saves(facts: Facts) -> bool:
    """Whether forward keeps so much that it is for a backward, which the trace did not live to see."""
    sizes, made = facts.allocations.requested_bytes, facts.in_forward
    return bool(sizes[made & facts.is_live_at_dump].sum() > _MOST_KEPT * sizes[made].sum())


def _weights(decisions: Decisions, facts: Facts) -> None:
    """Old blocks whose sizes take turns are weights, and so is what lies between them, and embeddings."""
    sizes, addr = facts.allocations.requested_bytes, facts.allocations.addr
    is_open = ~facts.is_traced & facts.is_live_at_dump & facts.has_no_frames
    rows = np.flatnonzero(is_open & (decisions.category == Category.UNKNOWN))
    rows = rows[np.argsort(addr[rows])]
    found, counts = np.unique(sizes[rows][sizes[rows] >= _SMALL_BYTES], return_counts=True)
    repeated, n_repeated = found[counts >= _LEAST_TURNS], counts[counts >= _LEAST_TURNS]
    if len(repeated) < _LEAST_SIZES:
        return
    is_small = sizes[rows] <= _SMALL_POOL_BYTES
    pools = rows[is_small], rows[~is_small]
    turning = [np.array(list(_sizes_in_turn(sizes[pool])), np.int64) for pool in pools]
    if max(map(len, turning)) < _LEAST_IN_TURN:
        return
    layers = [np.flatnonzero(np.isin(sizes[p], found)) for p, found in zip(pools, turning, strict=True)]
    embeddings = [
        pool[_embedding(sizes[pool], of_layers)] for pool, of_layers in zip(pools, layers, strict=True)
    ]
    # One block of a size for every layer that ran is a weight without gradient or states.
    in_turn = np.isin(repeated, np.concatenate(turning))
    if _layers_that_ran(facts) not in n_repeated[in_turn] and _may_be_copies(repeated, n_repeated):
        return
    weights = np.zeros(len(sizes), np.bool_)
    weights[np.concatenate(embeddings)] = True
    for pool, of_layers in zip(pools, layers, strict=True):
        weights[pool[_between(sizes[pool], of_layers)]] = True
    # An output layer comes last, and is as large as the embedding whose inverse it is.
    weights[rows] |= np.isin(sizes[rows], np.unique(sizes[weights]))
    decisions.decide(weights, Category.WEIGHT, Evidence.SIZES, "sizes-in-turn")


def _between(sizes: Int64Column, layers: Int64Column) -> BoolColumn:
    """Which blocks of a pool, in the order of memory, lie between the first and the last of a model's layers.

    But none of a size of which several lie side by side: what is kept fills holes.
    """
    found = np.zeros(len(sizes), np.bool_)
    if not len(layers):
        return found
    begins = np.flatnonzero(np.concatenate(([True], sizes[1:] != sizes[:-1])))
    n_equal = np.repeat(np.diff(np.append(begins, len(sizes))), np.diff(np.append(begins, len(sizes))))
    first, last = int(layers[0]), int(layers[-1])
    found[first : last + 1] = ~np.isin(sizes[first : last + 1], sizes[n_equal >= _LEAST_TURNS])
    found[layers] = True
    return found


def _embedding(sizes: Int64Column, layers: Int64Column) -> slice:
    """The tables before a model's layers: of words, then of positions and kinds, each far smaller."""
    first = int(layers[0]) if len(layers) else 0
    begin = max(first - 1, 0)
    while first - _MOST_TABLES < begin and begin > 0 and sizes[begin - 1] >= _TABLE_TO_NEXT * sizes[begin]:
        begin -= 1
    return slice(begin, first)


def _layers_that_ran(facts: Facts) -> int:
    """What divides how often every line of modules allocates that does so repeatedly, in the fullest forward.

    A line may allocate several times in every layer. Between two allocations outside of modules is a forward.
    """
    rows = np.flatnonzero(facts.made_by_module & (facts.allocations.stack_id >= 0))
    if not len(rows):
        return 0
    forward = next_of(facts.alloc[facts.outside], facts.alloc[rows], facts.n_events)
    found, n_made = np.unique(forward, return_counts=True)
    rows = rows[forward == found[n_made.argmax()]]
    made = np.stack((facts.allocations.stack_id[rows], facts.allocations.requested_bytes[rows]))
    _, counts = np.unique(made, axis=1, return_counts=True)
    return int(np.gcd.reduce(counts[counts >= _LEAST_TURNS], initial=0))


def _may_be_copies(sizes: Int64Column, counts: Int64Column) -> bool:
    """Whether sizes may occur so often because a model was trained, and has gradients or states.

    Then all counts are multiples, or most bytes are of sizes that have another size beside them so many times
    as often: states in another precision.
    """
    if any(not np.any(counts % n_copies) for n_copies in _COPIES):
        return True
    n_of = dict(zip(sizes.tolist(), counts.tolist(), strict=True))
    total = sum(size * n for size, n in n_of.items())
    for larger in _PRECISIONS:
        for more, less in _TIMES_AS_OFTEN:
            pairs = [size for size, n in n_of.items() if n_of.get(larger * size, 0) * less == n * more]
            paired = set(pairs) | {larger * size for size in pairs}
            if sum(size * n_of[size] for size in paired) > _NEARLY * total:
                return True
    return False


def _sizes_in_turn(sizes: Int64Column) -> Iterator[int]:
    """The sizes that come again and again with others between them; ``sizes`` are in the order of memory.

    Not those that mostly lie side by side: some of many results that are kept may have filled holes.
    """
    begins = np.flatnonzero(np.concatenate(([True], sizes[1:] != sizes[:-1]))) if len(sizes) else sizes
    lengths: dict[int, list[int]] = {}
    for size, length in zip(
        sizes[begins].tolist(), np.diff(np.append(begins, len(sizes))).tolist(), strict=True
    ):
        lengths.setdefault(size, []).append(length)
    for size, found in lengths.items():
        if len(found) >= _LEAST_TURNS and 2 * max(found) <= sum(found):
            yield size


def _caches(decisions: Decisions, facts: Facts) -> None:
    """One block or two for every layer that are no weights, and hold no data that came from elsewhere.

    Nor are they as large as a weight, its half or its double: those may be states of an optimizer.
    """
    sizes, category = facts.allocations.requested_bytes, decisions.category
    weights = sizes[category == Category.WEIGHT]
    n_layers = _layers(weights)
    if n_layers is None:
        return
    from_elsewhere = facts.has(Role.COPY) | facts.has(Role.CLONE)
    filled = facts.has(Role.FACTORY) | facts.has_no_frames | np.bool_(not facts.roles.has_cpp)
    kept = facts.is_live_at_dump & (facts.outside | facts.old_outside | facts.has_no_frames)
    kept &= filled & ~from_elsewhere & (category == Category.UNKNOWN)
    kept &= ~np.isin(sizes, np.concatenate((weights, 2 * weights, weights // 2)))
    found, counts = np.unique(sizes[kept], return_counts=True)
    is_cache = ((counts == n_layers) | (counts == 2 * n_layers)) & (counts >= _LEAST_CACHE_BLOCKS)
    decisions.decide(
        kept & np.isin(sizes, found[is_cache]), Category.ACTIVATION, Evidence.SIZES, "one-for-every-layer"
    )


def _layers(weights: Int64Column) -> int | None:
    """How many layers a model has: the largest number that divides how often nearly all sizes occur."""
    found, counts = np.unique(weights, return_counts=True)
    found, counts = found[counts >= _LEAST_TURNS], counts[counts >= _LEAST_TURNS]
    n_bytes = found * counts
    for n_layers in range(min(int(counts.max(initial=1)), _MOST_LAYERS), 1, -1):
        if n_bytes[counts % n_layers == 0].sum() >= _NEARLY * n_bytes.sum():
            return n_layers
    return None
