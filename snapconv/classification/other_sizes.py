"""Blocks of sizes that no known parameter has: frozen weights, data, caches of keys and values, states.

The blocks of one size are judged together, by additive evidence: each row of ``EVIDENCE`` that
holds adds its bits to the categories, and the probabilities are proportional to 2 ** bits.
"""

from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Decided
from snapconv.classification.parameters import (
    LEAST_REPEATED,
    SMALL_BYTES,
    bytes_of,
    counted,
    layers_by_counts,
)

if TYPE_CHECKING:
    from snapconv.classification.inventory import Job

# Sizes of vectors, from which those of matrices between layers follow; hostile files have more of
# them.
_LEAST_WIDTH, _MOST_WIDTH, _MOST_WIDTHS = 64, 32768, 60
# A frozen model beside the trained one has at least this share of its bytes.
_FROZEN_SHARE = 0.3


class OtherSizes:
    """Judges the sizes of the open rows of a job."""

    def __init__(self, decided: Decided, job: "Job") -> None:
        features = decided.features
        self._judged: dict[int, dict[Category, float]] = {}
        self._job = job
        weights = counted(features.sizes[decided.has(Category.WEIGHT)]) + job.n
        repeated = [size for size, n in weights.items() if n >= LEAST_REPEATED]
        self._widths = sorted(s for s in repeated if _LEAST_WIDTH <= s <= _MOST_WIDTH)[
            -_MOST_WIDTHS:
        ]
        inputs = features.sizes[decided.has(Category.INPUT)]
        self._inputs = np.unique(inputs[inputs >= _LEAST_WIDTH])[-_MOST_WIDTHS:]
        self._n_layers = job.n_layers if job.n_layers > 1 else layers_by_counts(job.n)
        n_open = {s: n for s, n in job.n.items() if n >= LEAST_REPEATED and not job.sizes[s]}
        n_bytes = sum(s * n for s, n in n_open.items())
        n_large = sum(size >= SMALL_BYTES for size in n_open)
        self._has_frozen = (
            n_large >= LEAST_REPEATED and n_bytes > _FROZEN_SHARE * bytes_of(job.sizes) > 0
        )

    def seen(self, size: int) -> dict[str, bool]:
        """Say which of the ``EVIDENCE`` holds for the blocks of one size."""
        job = self._job
        n = self._job.n[size]
        is_repeated = n >= LEAST_REPEATED
        return {
            "any size": True,
            "one block": n == 1,
            "three and more": is_repeated,
            "so many for every layer": is_repeated
            and self._n_layers > 1
            and n % self._n_layers == 0,
            "a matrix between widths of layers": self._is_matrix(size),
            "several times an input": bool(
                np.any((size % self._inputs == 0) & (size >= 2 * self._inputs))
            ),
            "in inference": job.infers and not job.saves,
            "beside known parameters": bool(job.sizes),
            "three and more beside known parameters": bool(job.sizes) and is_repeated,
            "beside a model that is frozen": self._has_frozen,
            "a forward saves for a backward": bool(
                job.saves and not (job.sizes or job.is_training)
            ),
        }

    def _is_matrix(self, size: int) -> bool:
        """Whether a size is that of a vector of the model, or of a matrix between two."""
        widths = self._widths
        if not widths or size <= max(widths):
            return size in widths
        of_widths = set(widths)
        return any(size % a == 0 and (b * size // a) in of_widths for a in widths for b in (4, 2))

    def judge(self, size: int) -> dict[Category, float]:
        """Return the probability of each category of the blocks of one size, found once for a job."""
        if size not in self._judged:
            bits = np.array(
                [EVIDENCE[name] for name, holds in self.seen(size).items() if holds]
            ).sum(0)
            shares = np.exp2(np.append(bits, 0) - max(bits.max(), 0))
            self._judged[size] = dict(
                zip(CATEGORIES, (shares / shares.sum()).tolist(), strict=True)
            )
        return self._judged[size]


CATEGORIES = (
    Category.WEIGHT,
    Category.INPUT,
    Category.KV_CACHE,
    Category.OPTIMIZER_STATE,
    Category.ACTIVATION,
)


# For a weight, an input, a cache and a state, each against whatever else it may be. Fitted by
# logistic regression on 6,491 sizes of 207 programs of the benchmark, in all cuts: count these as
# seen. Of a quarter of the programs left out, 90 % of the bytes (by their square root) were right.
# Where the parameters are not known, a weight stands for all of the model: its gradients and states
# too.
EVIDENCE = {
    "any size": (3.6, 1.6, -1.0, -0.2),
    "one block": (0.1, 1.7, -0.2, -0.3),
    "three and more": (0.9, -0.6, 0.2, 0.5),
    "so many for every layer": (0.8, 0.0, 0.5, -0.3),
    "a matrix between widths of layers": (1.2, 0.3, -0.6, 0.2),
    "several times an input": (0.1, 0.8, 0.3, -0.5),
    "in inference": (1.2, -0.4, 0.8, -0.7),
    "beside known parameters": (-0.4, 0.7, -0.8, 1.8),
    "three and more beside known parameters": (-0.5, -0.4, -0.2, 1.4),
    "beside a model that is frozen": (1.9, -1.6, -0.2, 0.5),
    "a forward saves for a backward": (2.8, 1.3, -1.0, -1.4),
}
