"""Weights of a trace in which nothing is trained, by widths: vectors, as of norms, that repeat.

Where layers do not alternate in memory, or ran in no one number of times, their sizes still are those of
matrices between a few widths.
"""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.data_on_device import drawn_from
from snapconv.classification.features import Features
from snapconv.classification.frozen_layers import have_width
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.rules.of_inference import (
    FEED_FORWARD,
    LEAST_SIZES,
    LEAST_TURNS,
    SMALL_BYTES,
    may_be_copies,
    number_of_layers,
    only_infers,
)
from snapconv.classification.tables_of_words import LEAST_VECTOR_BYTES, MOST_VECTOR_BYTES, table_of_words
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.torch_knowledge.frame_roles import Role

BY_WIDTH = Reason(
    "layers-of-one-width",
    "pre-existing, where nothing is trained, of several sizes that repeat, nearly all of them several times "
    "a vector, and more than two for every layer, or two that are four times as large as what has four and "
    "the only ones that are larger",
)
BETWEEN_WIDTHS = Reason(
    "matrix-between-two-widths",
    "pre-existing, where nothing is trained and no cache lasts, and as large as a matrix between two vectors "
    "of layers that repeat, or as its kernels of 3 x 3",
)
OF_WORDS = Reason(
    "as-wide-as-what-the-last-layer-makes",
    "pre-existing, where nothing is trained, larger than the weights of layers, and with as many rows as a "
    "module makes numbers of every word, or with rows that one looks up: a table of words, or the layer that "
    "is its inverse",
)
# The table of words and its inverse; in half precision or in full. A norm is a vector.
_MOST_OF_WORDS = 2
_NUMBER_BYTES = (2, 4)
_KERNEL_AREAS = (1, 9)
_MOST_WIDTHS = 200


@rule(BY_WIDTH, Category.WEIGHT, Evidence.SIZES)
def layers_of_one_width(features: Features, decided: Decided) -> BoolColumn:
    """Layers of several models, or that ran differently often: by a vector that divides them.

    Of what a cache has as well, once or twice for every layer, nothing is said.
    """
    sizes, weights = features.sizes, np.zeros(len(features.alloc), np.bool_)
    if not only_infers(features) or decided.has(Category.OPTIMIZER_STATE).any():
        return weights
    may_be_weight = (decided.is_open & ~drawn_from(features, decided)) | decided.has(Category.WEIGHT)
    rows = np.flatnonzero(features.unrecorded & may_be_weight & (sizes >= SMALL_BYTES))
    found, counts = np.unique(sizes[rows], return_counts=True)
    repeats = counts >= LEAST_TURNS
    if np.count_nonzero(repeats) < LEAST_SIZES or may_be_copies(found[repeats], counts[repeats]):
        return weights
    of_layers = rows[is_among(sizes[rows], found[repeats])]
    if not have_width(features, decided, of_layers):
        return weights
    n_layers = number_of_layers(sizes[of_layers])
    sure = repeats & (counts > 2 * n_layers) & (n_layers >= LEAST_TURNS)
    sure |= repeats & _are_feed_forward(found, counts)
    weights[rows] = is_among(sizes[rows], found[sure])
    return weights


def _are_feed_forward(sizes: Int64Column, counts: Int64Column) -> BoolColumn:
    """Two for every layer, four times as large as a size that has four: as a transformer's layer has them.

    If other sizes above that one repeat, they are what the layers widen to, and such a pair may be a cache.
    """
    n_of = dict(np.column_stack((sizes, counts)).tolist())
    n_layers = np.array([n_of.get(size / FEED_FORWARD, 0) // 4 for size in n_of], np.int64)
    pairs = sizes[(n_layers >= LEAST_TURNS) & (counts == 2 * n_layers)]
    if not len(pairs):
        return is_among(sizes, pairs)
    squares = pairs // FEED_FORWARD
    wider = sizes[(counts >= LEAST_TURNS) & (sizes > squares.min())]
    return is_among(sizes, pairs) & is_among(wider, np.concatenate((pairs, squares))).all()


@rule(BETWEEN_WIDTHS, Category.WEIGHT, Evidence.SIZES)
def matrices_between_widths(features: Features, decided: Decided) -> BoolColumn:
    """What has a number, or a kernel of 3 x 3, for each pair of numbers of two vectors of known layers.

    A cache may be as large by chance. There is none from before the trace where forward is seen to look up no
    words, or makes its caches anew. Pictures and batches of them are powers of two, if there is only one.
    """
    sizes, unrecorded = features.sizes, features.unrecorded
    makes_caches = bool((decided.has(Category.KV_CACHE) & features.is_traced).any())
    has_words = features.made_through(Role.LOOKUP) | features.made_through(Role.COMPILED)
    is_trained = not only_infers(features) or decided.has(Category.OPTIMIZER_STATE).any()
    if is_trained or (has_words.any() and not makes_caches):
        return np.zeros(len(sizes), np.bool_)
    weights = unrecorded & decided.has(Category.WEIGHT)
    is_open = unrecorded & decided.is_open & ~drawn_from(features, decided)
    matrices = _matrices_of(sizes[weights], sizes[weights | _among_weights(features, decided)])
    found, counts = np.unique(sizes[is_open], return_counts=True)
    is_power_of_two = found & (found - 1) == 0
    return is_open & is_among(sizes, found[is_among(found, matrices) & ((counts > 1) | ~is_power_of_two)])


def _matrices_of(weights: Int64Column, vectors: Int64Column) -> Int64Column:
    """The bytes of matrices and kernels between those of the ``vectors`` that repeat (all: bytes of each).

    Numbers have as many bytes as explain most of the larger ``weights``, and half of them at least.
    """
    found = _repeated_vectors(vectors)
    best, most = found[:0], 0
    for n_bytes in _NUMBER_BYTES:
        # A small matrix is no larger than a vector may be.
        widths = found[~is_among(found, _between_two_of(found, n_bytes))]
        matrices, larger = _between_two_of(widths, n_bytes), weights[weights > widths.max(initial=0)]
        explained = int(larger[is_among(larger, matrices)].sum())
        if explained > most and 2 * explained >= larger.sum():
            best, most = matrices[matrices > widths.max()], explained
    return best


def _among_weights(features: Features, decided: Decided) -> BoolColumn:
    """The open blocks that lie between the small weights: data comes after the models."""
    addr, is_small = features.allocations.addr, features.sizes <= MOST_VECTOR_BYTES
    weights = addr[features.unrecorded & decided.has(Category.WEIGHT) & is_small]
    is_open = features.unrecorded & decided.is_open & is_small
    if not len(weights):
        return np.zeros(len(addr), np.bool_)
    return np.asarray(is_open & (addr > weights.min()) & (addr < weights.max()))


def _repeated_vectors(sizes: Int64Column) -> Int64Column:
    """Vectors that occur as often as layers do; nothing where there are more of them than models have."""
    found, counts = np.unique(sizes, return_counts=True)
    is_vector = (found >= LEAST_VECTOR_BYTES) & (found <= MOST_VECTOR_BYTES)
    vectors = found[is_vector & (counts >= LEAST_TURNS)]
    return vectors if len(vectors) <= _MOST_WIDTHS else vectors[:0]


def _between_two_of(widths: Int64Column, n_bytes: int) -> Int64Column:
    pairs = distinct(np.outer(widths, widths).ravel())
    return np.concatenate([pairs * area // n_bytes for area in _KERNEL_AREAS])


@rule(OF_WORDS, Category.WEIGHT, Evidence.SIZES)
def tables_of_words(features: Features, decided: Decided) -> BoolColumn:
    """Where layers are so small that they lie in other segments, the table of words is not beside them.

    It has a row of one width, that of a norm, for every word, and the last layer makes a number of each, or
    the first one looks rows up.
    """
    sizes, weights = features.sizes, np.zeros(len(features.alloc), np.bool_)
    weight_like = features.unrecorded & decided.has(Category.WEIGHT)
    layers, n_layers = np.unique(sizes[weight_like], return_counts=True)
    widths = layers[(n_layers >= LEAST_TURNS) & (layers <= MOST_VECTOR_BYTES)]
    has_words = features.made_through(Role.LOOKUP) | features.made_through(Role.COMPILED)
    is_trained = not only_infers(features) or decided.has(Category.OPTIMIZER_STATE).any()
    # Without words, rows of a width are those of an index that pictures are looked up in.
    if not len(widths) or is_trained or not has_words.any():
        return weights
    open_vectors = _repeated_vectors(sizes[_among_weights(features, decided)])
    widths = distinct(np.concatenate((widths, open_vectors)))
    made = distinct(sizes[features.by_module])
    rows = np.flatnonzero(features.unrecorded & decided.is_open & (sizes > layers.max()))
    found, counts = np.unique(sizes[rows], return_counts=True)
    for size in found[counts <= _MOST_OF_WORDS].tolist():
        for n_bytes in _NUMBER_BYTES:
            # More words than a row has numbers, and another number than a part of the layers.
            in_all = size * n_bytes
            of_words = in_all // widths[(in_all % widths == 0) & (in_all >= widths**2)]
            of_words = of_words[~np.any(layers[:, None] % of_words == 0, axis=0)]
            if np.any(made[:, None] % of_words == 0):
                weights[rows[sizes[rows] == size]] = True
    weights[table_of_words(features, decided, rows[~weights[rows]])] = True
    return weights


OF_WIDTHS: tuple[PipelineRule, ...] = (layers_of_one_width, matrices_between_widths, tables_of_words)
