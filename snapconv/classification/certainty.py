"""Certainty: from what stated probability on a category is certain, likely, or nothing, and what is stated.

What hypotheses state is turned into how often that was right, on recordings of its kind.
"""

from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.classification.decisions import Classification, Decided, FloatColumn, Proposal
from snapconv.columns import Int64Column, distinct, read_only

SLUG, GRADIENT_OR_STATE = "explained-by-the-job", "gradient-or-optimizer-state"
LIKELY_ONLY = "likely-only"
REASONS = {
    SLUG: "one hypothesis about the whole job explains how often this size and the others occur: so many "
    "weights, "
    "states, gradients and copies of the model",
    GRADIENT_OR_STATE: "a gradient or a state of the optimizer: as many of a size as both have, and nothing "
    "shows "
    "which",
    LIKELY_ONLY: "it is likely only, and --certain counts that as unknown",
}


class Regime(IntEnum):
    """What is known of the job: its parameters, a forward at least, or nothing."""

    PARAMETERS = 0
    FORWARD = 1
    NOTHING = 2


# How often what hypotheses state is right, by what is known: measured on 207 recordings in all cuts, all seen
# by the authors; a line between the points. Without a trace a dump at a peak looks like one at rest.
_STATED = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_RIGHT = {
    Regime.PARAMETERS: (0.60, 0.65, 0.70, 0.75, 0.86, 0.91, 0.97, 0.99),
    Regime.FORWARD: (0.55, 0.70, 0.82, 0.85, 0.92, 0.97, 0.98, 0.99),
    Regime.NOTHING: (0.30, 0.32, 0.34, 0.36, 0.45, 0.69, 0.72, 0.99),
}
# From these on a category is certain, likely, or one of two.
CERTAIN, LIKELY, EITHER = 0.97, 0.7, 0.7


def decided_by(
    decided: Decided, rows: Int64Column, probabilities: NDArray[np.float64], regime: Regime
) -> Iterator[Proposal]:
    """Propose the most probable category of each row, as certain or as likely, or that it is one of two."""
    best = probabilities.argmax(1)
    stated = np.interp(probabilities.max(1), _STATED, _RIGHT[regime])
    column: FloatColumn = np.zeros(len(decided.category), np.float32)
    column[rows] = stated
    for least, is_certain in ((CERTAIN, True), (LIKELY, False)):
        for code in distinct(best[stated >= least]).tolist():
            if code:
                where = decided.features.mask(rows[(best == code) & (stated >= least)])
                yield Proposal(where, Category(code), Evidence.SIZES, SLUG, column, is_certain)
    both = probabilities[:, Category.GRADIENT] + probabilities[:, Category.OPTIMIZER_STATE]
    where = decided.features.mask(rows[both >= EITHER])
    yield Proposal(where, Category.UNKNOWN, Evidence.NONE, GRADIENT_OR_STATE)


def only_certain(found: Classification) -> Classification:
    """Count what is likely as unknown."""
    is_likely = found.is_likely
    if not is_likely.any():
        return found
    return read_only(
        replace(
            found,
            category=np.where(is_likely, Category.UNKNOWN, found.category).astype(np.int8),
            evidence=np.where(is_likely, Evidence.NONE, found.evidence).astype(np.int8),
            reason_id=np.where(is_likely, len(found.reasons), found.reason_id).astype(np.int32),
            reasons=(*found.reasons, LIKELY_ONLY),
            certainty=np.where(is_likely, Certainty.UNKNOWN, found.certainty).astype(np.int8),
            probability=np.where(is_likely, 0, found.probability).astype(np.float32),
        )
    )
