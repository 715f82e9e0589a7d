"""Blocks of sizes that no known parameter has: frozen weights, data, caches, states.

The blocks of one size are judged together, by additive evidence: each sign that holds adds its bits
to the categories, and the probabilities are proportional to 2 ** bits.
"""

from collections.abc import Set
from enum import Enum

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Decided
from snapconv.classification.features import Features
from snapconv.classification.job import Job
from snapconv.classification.parameters import (
    LEAST_REPEATED,
    LEAST_WIDTH,
    MOST_WIDTHS,
    SMALL_BYTES,
    bytes_of,
    counted,
    layers_by_counts,
    vector_sizes,
)

# Results of forward, the largest, whose widths are compared.
_MOST_RESULTS = 200
# Fewer blocks are no keys and values of layers.
_LEAST_CACHES = 4
# Kernels of convolutions, in one dimension and in two.
_KERNEL_AREAS = (3, 5, 7, 9, 25, 49)
# A frozen model beside the trained one has at least this share of its bytes.
_FROZEN_SHARE = 0.3


CATEGORIES = (
    Category.WEIGHT,
    Category.INPUT,
    Category.KV_CACHE,
    Category.OPTIMIZER_STATE,
    Category.ACTIVATION,
)


class Sign(Enum):
    """What may be seen of the blocks of one size, or of their job, with its bits.

    For a weight, an input, a cache and a state, each against whatever else it may be. Fitted by
    logistic regression on 6,491 sizes of 207 programs of the benchmark, in all cuts: count these as
    seen. Of a quarter of the programs left out, 90 % of the bytes (by their square root) were
    right. Where the parameters are not known, a weight stands for all of the model: its gradients
    and states too.
    """

    ANY_SIZE = (3.6, 1.6, -1.0, -0.2)
    ONE_BLOCK = (0.1, 1.7, -0.2, -0.3)
    THREE_AND_MORE = (0.9, -0.6, 0.2, 0.5)
    # So many for every layer.
    SAME_FOR_EVERY_LAYER = (0.8, 0.0, 0.5, -0.3)
    # A matrix between widths of layers.
    MATRIX_OF_WIDTHS = (1.2, 0.3, -0.6, 0.2)
    SEVERAL_TIMES_AN_INPUT = (0.1, 0.8, 0.3, -0.5)
    IN_INFERENCE = (1.2, -0.4, 0.8, -0.7)
    BESIDE_PARAMETERS = (-0.4, 0.7, -0.8, 1.8)
    THREE_AND_MORE_BESIDE_PARAMETERS = (-0.5, -0.4, -0.2, 1.4)
    BESIDE_FROZEN_MODEL = (1.9, -1.6, -0.2, 0.5)
    # Keys and values of every layer may be as many, unless a result of forward shows a matrix. Not
    # fitted: beside the other signs of inference, neither is likely.
    PAIRS_IN_INFERENCE = (-3.0, 0.0, 3.5, 0.0)
    # The optimizer keeps states that are not as large as weights.
    OPTIMIZER_HAS_OTHER_SIZES = (0.0, 0.0, 0.0, 6.0)
    # A forward saves for a backward.
    FORWARD_SAVES = (2.8, 1.3, -1.0, -1.4)


class OtherSizes:
    """Judges the sizes of the open rows of a job."""

    def __init__(self, decided: Decided, job: Job) -> None:
        features = decided.features
        self._judged: dict[int, dict[Category, float]] = {}
        self._job = job
        weights = counted(features.sizes[decided.has(Category.WEIGHT)]) + job.counts
        self._widths = vector_sizes(weights)
        inputs = features.sizes[decided.has(Category.INPUT)]
        self._inputs = np.unique(inputs[inputs >= LEAST_WIDTH])[-MOST_WIDTHS:]
        self._n_layers = job.n_layers if job.n_layers > 1 else layers_by_counts(job.counts)
        self._has_frozen = _has_frozen_model(job)
        self._main_widths = sorted(self._widths, key=lambda size: weights[size])[-1:]
        self._widths_of_results = _widths_of_results(features, self._main_widths)

    def _signs(self, size: int) -> list[Sign]:
        """Return the signs that the blocks of one size have."""
        job = self._job
        n = job.counts[size]
        is_repeated = n >= LEAST_REPEATED
        is_for_layers = is_repeated and self._n_layers > 1 and n % self._n_layers == 0
        is_multiple = (size % self._inputs == 0) & (size >= 2 * self._inputs)
        infers = job.infers and not job.saves
        forward_saves = job.saves and not (job.sizes or job.is_training)
        conditions = (
            (True, Sign.ANY_SIZE),
            (n == 1, Sign.ONE_BLOCK),
            (is_repeated, Sign.THREE_AND_MORE),
            (is_for_layers, Sign.SAME_FOR_EVERY_LAYER),
            (self._is_matrix(size, infers=infers), Sign.MATRIX_OF_WIDTHS),
            (np.any(is_multiple), Sign.SEVERAL_TIMES_AN_INPUT),
            (infers, Sign.IN_INFERENCE),
            (infers and self._may_be_caches(size), Sign.PAIRS_IN_INFERENCE),
            (job.sizes, Sign.BESIDE_PARAMETERS),
            (job.sizes and is_repeated, Sign.THREE_AND_MORE_BESIDE_PARAMETERS),
            (self._has_frozen, Sign.BESIDE_FROZEN_MODEL),
            (job.keeps_other_sizes, Sign.OPTIMIZER_HAS_OTHER_SIZES),
            (forward_saves, Sign.FORWARD_SAVES),
        )
        return [sign for holds, sign in conditions if holds]

    def _is_matrix(self, size: int, *, infers: bool) -> bool:
        """Whether a size is that of a vector of the model, or of a matrix between two.

        In inference, results of forward show widths too.
        """
        if infers and _is_between(size, self._main_widths, self._widths_of_results):
            return True
        widths = self._widths
        if not widths or size <= max(widths):
            return size in widths
        return _is_between(size, widths, set(widths))

    def _may_be_caches(self, size: int) -> bool:
        """Whether blocks of a size may be keys and values: in pairs, and no matrices of the model.

        Every layer has one pair at most, and may have three matrices of its feed-forward network.
        Its matrices are between its main width and those of results of forward, or are kernels
        between two widths.
        """
        n = self._job.counts[size]
        widths = set(self._widths)
        if size in widths or size < SMALL_BYTES or n < _LEAST_CACHES or n % 2:
            return False
        if 1 < layers_by_counts(self._job.counts) < n // 2:
            return False
        if _is_between(size, self._main_widths, self._widths_of_results | widths):
            return False
        return not any(
            size % area == 0 and _is_between(size // area, self._widths, widths)
            for area in _KERNEL_AREAS
        )

    def judge(self, size: int) -> dict[Category, float]:
        """Return the probability of each category of the blocks of one size, once for a job."""
        if size not in self._judged:
            bits = np.array([sign.value for sign in self._signs(size)]).sum(0)
            shares = np.exp2(np.append(bits, 0) - max(bits.max(), 0))
            probabilities = (shares / shares.sum()).tolist()
            self._judged[size] = dict(zip(CATEGORIES, probabilities, strict=True))
        return self._judged[size]


def _is_between(size: int, widths: list[int], other_widths: Set[int]) -> bool:
    """Return whether a size is that of a matrix between two widths, each as bytes of a vector."""
    for width in widths:
        quotient, remainder = divmod(size, width)
        if not remainder and not other_widths.isdisjoint((4 * quotient, 2 * quotient)):
            return True
    return False


def _widths_of_results(features: Features, main_widths: list[int]) -> set[int]:
    """Return widths of what modules make, where most results have the main width."""
    widths = set(main_widths)
    sizes, counts = np.unique(features.sizes[features.by_module], return_counts=True)
    if main_widths and len(sizes):
        (width,) = main_widths
        usual_bytes = int(sizes[counts.argmax()])
        for n_bytes in sizes.tolist()[-_MOST_RESULTS:]:
            result_width, remainder = divmod(n_bytes * width, usual_bytes)
            if not remainder:
                widths.add(result_width)
    return widths


def _has_frozen_model(job: Job) -> bool:
    """Return whether the blocks of repeated sizes may be a model beside the trained one."""
    counts = {}
    for size, n in job.counts.items():
        if n >= LEAST_REPEATED and not job.sizes[size]:
            counts[size] = n
    n_bytes = sum(size * n for size, n in counts.items())
    n_large = sum(size >= SMALL_BYTES for size in counts)
    return n_large >= LEAST_REPEATED and n_bytes > _FROZEN_SHARE * bytes_of(job.sizes) > 0
