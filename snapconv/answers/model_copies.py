"""How many models of equal sizes the weights are: one that is trained, and copies of it.

A teacher, a reference, a target network, an average of the weights. The size of a block does not show which
of them it belongs to.
"""

from math import gcd

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.classification.features import of_fullest
from snapconv.classification.size_references import SMALL_BYTES, counted
from snapconv.columns import BoolColumn

# Of the bytes of all weights: each model may have a few that are not trained, and a copy lack a few.
_NEARLY = 0.95
# Fewer sizes may be there as often by chance: of two networks that mirror each other, the largest layers.
_LEAST_SIZES = 3
# A policy, its reference, a reward and a value model. More are rather layers, of which only one is trained.
_MOST_MODELS = 4


def n_models(analysis: DeviceAnalysis, live: BoolColumn) -> int | None:
    """How often nearly all of the weights are there that have gradients, at the marked moment: twice or more.

    None: once, or not a whole number of times, or there are no gradients. Where some of the weights are
    unknown, there may be more.
    """
    sizes, category = analysis.allocations.requested_bytes, analysis.classification.category
    gradients = np.flatnonzero((category == Category.GRADIENT) & (sizes >= SMALL_BYTES))
    trained = counted(sizes[of_fullest(gradients, analysis.features.iteration, sizes)])
    weights = counted(sizes[live & (category == Category.WEIGHT) & (sizes >= SMALL_BYTES)])
    total = sum(size * n for size, n in weights.items())
    as_often: dict[int, list[int]] = {}
    for size, n in weights.items():
        times, rest = divmod(n, trained.get(size, n + 1))
        if not rest:
            as_often.setdefault(times, []).append(size)
    n_bytes = {times: sum(size * weights[size] for size in found) for times, found in as_often.items()}
    times = max(n_bytes, key=lambda times: n_bytes[times], default=0)
    found = as_often.get(times, [])
    is_whole = len(found) >= _LEAST_SIZES and n_bytes[times] >= _NEARLY * total
    # With a common divisor, they may be of some of the layers: others are frozen, or have no gradients yet.
    is_model = gcd(*(trained[size] for size in found)) == 1
    return times if is_whole and is_model and 1 < times <= _MOST_MODELS else None
