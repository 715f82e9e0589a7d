"""Weights and caches of a trace in which nothing is trained.

No gradient shows there which blocks are weights. But models are built layer by layer, so that the sizes of
weights take turns in memory, while a cache is as many blocks of one size, side by side, as there are layers.
"""

from collections import Counter

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, next_of, of_fullest
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.tables_of_words import table_of_words
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among, run_starts
from snapconv.torch_knowledge.frame_roles import Role

IN_TURN = Reason(
    "alternating-sizes",
    "pre-existing, where nothing is trained; sizes alternate in memory as those of layers do",
)
AS_LAYERS = Reason(
    "as-often-as-layers-ran",
    "pre-existing, where nothing is trained, and so often for every layer that ran: three times and more, or "
    "among such blocks in memory",
)
FOR_EVERY_LAYER = Reason(
    "one-for-every-layer",
    "kept outside of modules where nothing is trained, once or twice for every layer: a cache",
)

AS_ITS_NEXT = Reason(
    "as-many-as-caches-that-grew",
    "pre-existing, freed by the program, as large as a cache that the trace makes, and as many: the cache of "
    "the request before",
)

# The caching allocator keeps what is larger in other segments (c10/core/AllocatorConfig.h, kSmallSize).
_SMALL_POOL_BYTES = 2**20
# A model has at least this many layers, with weights of this many sizes: two matrices and a vector, which
# the allocator keeps elsewhere.
LEAST_TURNS = 3
LEAST_SIZES = 3
_LEAST_IN_TURN = 2
# What is smaller is no weight of a layer, but a counter or another scalar.
SMALL_BYTES = 128
# A weight with its momentum, or with Adam's two states; with a gradient besides, they are twice two.
_COPIES = (2, 3)
# How many times as large a size is as one beside it, and how often it occurs for that one: full precision
# beside half, for masters and two states or masters and momentum; and two states in bytes beside either.
_OTHER_PRECISIONS = ((2, 3, 1), (2, 2, 1), (2, 1, 2), (4, 1, 2))
# What a transformer widens to has so many times as many numbers.
FEED_FORWARD = 4
# A table of words is so much larger than that of positions, and this than one of kinds of text.
_TABLE_TO_NEXT = 8
_MOST_TABLES = 3
# Of what forward makes, inference keeps a cache; training keeps most.
MOST_KEPT = 0.4
_MOST_LAYERS = 1000
# A cache has keys and values: of what there is more for every layer are weights.
_LEAST_OF_WEIGHTS = 3
# A cache has keys and values. Fewer blocks of one size may be anything.
_LEAST_CACHE_BLOCKS = 4
_NEARLY = 0.8


def only_infers(features: Features) -> bool:
    """Whether modules ran and nothing shows that anything is trained."""
    if len(features.phases.events_of_training) or _saves(features):
        return False
    return bool((features.in_forward | features.preexisting_in_forward).any())


def _saves(features: Features) -> bool:
    """Whether forward keeps so much that it is for a backward, which the trace did not live to see."""
    sizes, made = features.sizes, features.in_forward
    return bool(sizes[made & features.is_live_at_dump].sum() > MOST_KEPT * sizes[made].sum())


@rule(IN_TURN, Category.WEIGHT, Evidence.SIZES)
def sizes_in_turn(features: Features, decided: Decided) -> BoolColumn:
    """Blocks whose sizes alternate are weights, and so is what is between them, and embeddings."""
    sizes, addr = features.sizes, features.allocations.addr
    weights = np.zeros(len(sizes), np.bool_)
    rows = np.flatnonzero(features.unrecorded & decided.is_open)
    rows = rows[np.argsort(addr[rows])]
    found, counts = np.unique(sizes[rows][sizes[rows] >= SMALL_BYTES], return_counts=True)
    repeated, n_repeated = found[counts >= LEAST_TURNS], counts[counts >= LEAST_TURNS]
    # States show that something is trained, though the trace has only a forward of it.
    is_trained = bool(decided.has(Category.OPTIMIZER_STATE).any())
    if not only_infers(features) or is_trained or len(repeated) < LEAST_SIZES:
        return weights
    turning = [(pool, _sizes_in_turn(sizes[pool])) for pool in _pools(rows, sizes)]
    if max(len(of_pool) for _, of_pool in turning) < _LEAST_IN_TURN:
        return weights
    # One block of a size for every layer that ran is a weight without gradient or states.
    in_turn = is_among(repeated, [size for _, of_pool in turning for size in of_pool])
    # Nor has a model whose table of words is there once.
    is_one_model = (
        _layers_that_ran(features) in n_repeated[in_turn]
        or len(table_of_words(features, decided, rows[sizes[rows] > repeated.max()])) == 1
    )
    if not is_one_model and may_be_copies(repeated, n_repeated):
        return weights
    for pool, of_pool in turning:
        layers = np.flatnonzero(is_among(sizes[pool], of_pool))
        if len(layers):
            weights[pool[_embedding(sizes[pool], layers)]] = True
            weights[pool[_between(sizes[pool], layers)]] = True
    # An output layer comes last, and is as large as the embedding whose inverse it is.
    weights[rows] |= is_among(sizes[rows], distinct(sizes[weights]))
    return weights


def _between(sizes: Int64Column, layers: Int64Column) -> BoolColumn:
    """Which blocks of a pool, in the order of memory, are between the first and the last of a model's layers.

    But none of a size of which several are side by side: what is kept fills holes. Nor one that is larger
    than any part of a layer and the only one of its size: it may be a cache, made between two models.
    """
    found = np.zeros(len(sizes), np.bool_)
    lengths = np.diff(np.append(run_starts(sizes), len(sizes)))
    n_equal = np.repeat(lengths, lengths)
    first, last = int(layers[0]), int(layers[-1])
    inside = sizes[first : last + 1]
    of_size, counts = np.unique(sizes, return_counts=True)
    is_alone = is_among(inside, of_size[(counts == 1) & (of_size > sizes[layers].max())])
    found[first : last + 1] = ~is_among(inside, sizes[n_equal >= LEAST_TURNS]) & ~is_alone
    found[layers] = True
    return found


def _embedding(sizes: Int64Column, layers: Int64Column) -> slice:
    """The tables before a model's layers: of words, then of positions and kinds, each far smaller."""
    begin = first = int(layers[0])
    while begin > 0 and (begin == first or sizes[begin - 1] >= _TABLE_TO_NEXT * sizes[begin]):
        begin -= 1
        if first - begin == _MOST_TABLES:
            break
    return slice(begin, first)


def _layers_that_ran(features: Features) -> int:
    """What divides how often every line of modules allocates that does so repeatedly, in the fullest forward.

    A line may allocate several times in every layer. Between two allocations outside of modules is a forward.
    """
    rows = np.flatnonzero(features.by_module)
    forward = next_of(features.alloc[features.outside], features.alloc, features.n_events)
    rows = of_fullest(rows, forward, np.ones(len(forward), np.int64))
    made = np.stack((features.allocations.stack_id[rows], features.sizes[rows]))
    _, counts = np.unique(made, axis=1, return_counts=True)
    return int(np.gcd.reduce(counts[counts >= LEAST_TURNS], initial=0))


def may_be_copies(sizes: Int64Column, counts: Int64Column) -> bool:
    """Whether sizes may occur so often because a model was trained, and has gradients or states.

    Then all counts are multiples, or most bytes are of sizes that have another size beside them so many times
    as often: states in another precision.
    """
    if any(not np.any(counts % n_copies) for n_copies in _COPIES):
        return True
    n_of = Counter(dict(np.column_stack((sizes, counts)).tolist()))
    total = sum(size * n for size, n in n_of.items())
    for larger, more, less in _OTHER_PRECISIONS:
        pairs = [size for size, n in n_of.items() if n_of[larger * size] * less == n * more]
        paired = set(pairs) | {larger * size for size in pairs}
        # A transformer's layer has four squares, and two matrices four times as large: one such pair.
        are_layers = larger == FEED_FORWARD and len(pairs) == 1
        if not are_layers and sum(size * n_of[size] for size in paired) > _NEARLY * total:
            return True
    return False


def _sizes_in_turn(sizes: Int64Column) -> list[int]:
    """The sizes that come again and again with others between them; ``sizes`` are in the order of memory.

    Not those that mostly are side by side: some of many results that are kept may have filled holes.
    """
    begins = run_starts(sizes)
    lengths: dict[int, list[int]] = {}
    length_of_runs = np.diff(np.append(begins, len(sizes)))
    for size, length in np.column_stack((sizes[begins], length_of_runs)).tolist():
        lengths.setdefault(size, []).append(length)
    return [
        size for size, found in lengths.items() if len(found) >= LEAST_TURNS and 2 * max(found) <= sum(found)
    ]


@rule(AS_LAYERS, Category.WEIGHT, Evidence.SIZES)
def as_often_as_layers(features: Features, decided: Decided) -> BoolColumn:
    """Small layers lie side by side in segments for small blocks, so that their sizes do not alternate.

    A cache has one block or two for every layer, and lies outside of them; three and more are weights. Copies
    of a model have no size just once for every layer, and their last norms are more than one.
    """
    sizes, weights = features.sizes, np.zeros(len(features.alloc), np.bool_)
    n_layers = _layers_that_ran(features)
    if n_layers < LEAST_TURNS or not only_infers(features) or decided.has(Category.OPTIMIZER_STATE).any():
        return weights
    rows = np.flatnonzero(
        features.unrecorded & (decided.is_open | decided.has(Category.WEIGHT)) & (sizes >= SMALL_BYTES)
    )
    found, counts = np.unique(sizes[rows], return_counts=True)
    times, rest = np.divmod(counts, n_layers)
    is_of_layers = (times >= 1) & (rest <= 1)
    is_one_model = np.any(is_of_layers & ((counts == n_layers) | (rest == 1)))
    if np.count_nonzero(is_of_layers) < LEAST_SIZES or not is_one_model:
        return weights
    if may_be_copies(found[is_of_layers], counts[is_of_layers]):
        return weights
    sure = is_among(sizes, found[is_of_layers & ((times >= _LEAST_OF_WEIGHTS) | (rest == 1))])
    for pool in _pools(rows[np.argsort(features.allocations.addr[rows])], sizes):
        layers = np.flatnonzero(sure[pool])
        if len(layers):
            weights[pool[layers]] = True
            among = pool[layers[0] : layers[-1]]
            for size in found[is_of_layers & (times < _LEAST_OF_WEIGHTS)].tolist():
                of_size = pool[sizes[pool] == size]
                if np.count_nonzero(is_among(of_size, among)) >= _NEARLY * len(of_size):
                    weights[of_size] = True
            weights[pool[_embedding(sizes[pool], layers)]] = True
    # An output layer comes last, and is as large as the embedding whose inverse it is.
    weights[rows] |= is_among(sizes[rows], distinct(sizes[weights]))
    return weights


def _pools(rows: Int64Column, sizes: Int64Column) -> tuple[Int64Column, Int64Column]:
    is_small = sizes[rows] <= _SMALL_POOL_BYTES
    return rows[is_small], rows[~is_small]


@rule(FOR_EVERY_LAYER, Category.KV_CACHE, Evidence.SIZES)
def one_for_every_layer(features: Features, decided: Decided) -> BoolColumn:
    """One block or two for every layer that are no weights, and contain no data copied from elsewhere.

    Nor are they as large as a weight, its half or its double: those may be states of an optimizer.
    """
    sizes = features.sizes
    weights = sizes[decided.has(Category.WEIGHT)]
    n_layers = number_of_layers(weights)
    if not only_infers(features):
        return np.zeros(len(sizes), np.bool_)
    from_elsewhere = features.made_through(Role.COPY) | features.made_through(Role.CLONE)
    filled = features.made_through(Role.FACTORY) | features.has_no_frames | np.bool_(not features.has_cpp)
    outside = features.outside | features.preexisting_outside | features.has_no_frames
    kept = features.is_live_at_dump & outside & filled & ~from_elsewhere & decided.is_open
    kept &= ~is_among(sizes, np.concatenate((weights, 2 * weights, weights // 2)))
    found, counts = np.unique(sizes[kept], return_counts=True)
    is_cache = ((counts == n_layers) | (counts == 2 * n_layers)) & (counts >= _LEAST_CACHE_BLOCKS)
    return kept & is_among(sizes, found[is_cache])


@rule(AS_ITS_NEXT, Category.KV_CACHE, Evidence.SIZES)
def caches_before(features: Features, decided: Decided) -> BoolColumn:
    """What a program that answers one request after another keeps until the next one has begun."""
    sizes, is_cache = features.sizes, decided.has(Category.KV_CACHE) & features.is_traced
    former = ~features.is_traced & features.is_freed & ~features.is_freed_by_engine & decided.is_open
    made, n_made = np.unique(sizes[is_cache], return_counts=True)
    freed, n_freed = np.unique(sizes[former], return_counts=True)
    _, of_made, of_freed = np.intersect1d(made, freed, return_indices=True)
    is_same = (n_freed[of_freed] == n_made[of_made]) & (n_freed[of_freed] >= _LEAST_CACHE_BLOCKS)
    return former & is_among(sizes, freed[of_freed[is_same]])


def number_of_layers(weights: Int64Column) -> int:
    """How many layers a model has: the largest number that divides how often nearly all sizes occur."""
    found, counts = np.unique(weights, return_counts=True)
    found, counts = found[counts >= LEAST_TURNS], counts[counts >= LEAST_TURNS]
    n_bytes = found * counts
    numbers = range(min(int(counts.max(initial=1)), _MOST_LAYERS), 0, -1)
    return next(n for n in numbers if n_bytes[counts % n == 0].sum() >= _NEARLY * n_bytes.sum())


OF_LAYERS: tuple[PipelineRule, ...] = (sizes_in_turn, as_often_as_layers)
# After the weights: what is none of them.
OF_CACHES: tuple[PipelineRule, ...] = (one_for_every_layer, caches_before)
