"""How many models of equal sizes the weights are: one that is trained, and copies of it.

A teacher, a reference, a target network, an average of the weights. Which block of a size is of which of them
no file shows, where nothing else does.
"""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import of_fullest
from snapconv.classification.size_references import SMALL_BYTES, counted
from snapconv.columns import BoolColumn
from snapconv.findings.device_analysis import DeviceAnalysis

# Of the bytes of all weights: each model may have a few that are not trained, and a copy lack a few.
_NEARLY = 0.95
# Two sizes may be equally often more by chance.
_LEAST_SIZES = 3


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
    n_bytes: dict[int, int] = {}
    for size, n in weights.items():
        times, rest = divmod(n, trained.get(size, n + 1))
        if not rest:
            n_bytes[times] = n_bytes.get(times, 0) + size * n
    times = max(n_bytes, key=lambda times: n_bytes[times], default=0)
    is_whole = len(trained) >= _LEAST_SIZES and n_bytes.get(times, 0) >= _NEARLY * total
    return times if is_whole and times > 1 else None
