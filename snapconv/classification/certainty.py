"""Certainty: from what stated probability on a category is certain, likely, or nothing, and what is stated.

Stated probabilities are calibrated: of what is stated with 90 %, 90 % is right, on recordings of its kind.
"""

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Decided, FloatColumn, Proposal
from snapconv.columns import Int64Column, distinct

SLUG, GRADIENT_OR_STATE = "explained-by-the-job", "gradient-or-optimizer-state"
REASONS = {
    SLUG: "one hypothesis about the whole job explains how often this size and the others occur: so many "
    "weights, "
    "states, gradients and copies of the model",
    GRADIENT_OR_STATE: "a gradient or a state of the optimizer: as many of a size as both have, and nothing "
    "shows "
    "which",
}


class Regime(IntEnum):
    """What is known of the job: its parameters, a forward at least, or nothing."""

    PARAMETERS = 0
    FORWARD = 1
    NOTHING = 2


# From this probability on a category is certain: of what was stated so, 99 % was right on 69 programs in late
# recordings, 98 % where only a forward was seen.
CERTAIN = {Regime.PARAMETERS: 0.9, Regime.FORWARD: 0.95, Regime.NOTHING: 0.98}
# From this probability on it is likely. What is stated lower was right less often than stated (0.5: 36 %); so
# was, without a trace, all below 0.8 (0.7: 63 %).
LIKELY = {Regime.PARAMETERS: 0.6, Regime.FORWARD: 0.5, Regime.NOTHING: 0.8}
# From this sum on it is one of the two.
EITHER = 0.7


def decided_by(
    decided: Decided, rows: Int64Column, probabilities: NDArray[np.float64], regime: Regime
) -> Iterator[Proposal]:
    """Propose the most probable category of each row, as certain or as likely, or that it is one of two."""
    best, stated = probabilities.argmax(1), probabilities.max(1)
    column: FloatColumn = np.zeros(len(decided.category), np.float32)
    column[rows] = stated
    for least, is_certain in ((CERTAIN[regime], True), (LIKELY[regime], False)):
        for code in distinct(best[stated >= least]).tolist():
            if code:
                where = decided.features.mask(rows[(best == code) & (stated >= least)])
                yield Proposal(where, Category(code), Evidence.SIZES, SLUG, column, is_certain)
    both = probabilities[:, Category.GRADIENT] + probabilities[:, Category.OPTIMIZER_STATE]
    where = decided.features.mask(rows[both >= EITHER])
    yield Proposal(where, Category.UNKNOWN, Evidence.NONE, GRADIENT_OR_STATE)
