"""Sums by category of the live memory of a device, with how much of each is likely only."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.classification.certainty import GRADIENT_OR_STATE, SLUG
from snapconv.classification.decisions import Classification
from snapconv.classification.features import of_fullest
from snapconv.classification.inventory import sentence
from snapconv.classification.parameters import SMALL_BYTES, counted
from snapconv.columns import BoolColumn, Int64Column, has_code
from snapconv.units import format_bytes

# Of a sum: less than this is not worth a word.
_NEXT_TO_NOTHING = 0.01
# The row of summaries for what is one of two categories.
EITHER_LABEL = "gradient or optimizer state"

# Of the bytes of all weights: each model may have a few that are not trained, and a copy lack a few.
_NEARLY = 0.95
# Fewer sizes may be there as often by chance: of two networks that mirror each other, the largest layers.
_LEAST_SIZES = 3
# A policy, its reference, a reward and a value model. More are rather layers, of which only one is trained.
_MOST_MODELS = 4


@dataclass(frozen=True, slots=True)
class CategoryTotal:
    """The bytes of one category.

    ``n_models``: of weights, how many models of equal sizes, if several. ``likely_bytes``: those of
    ``block_bytes`` that are likely, and not certain.
    """

    category: str
    n_allocations: int
    requested_bytes: int
    block_bytes: int
    n_models: int | None = None
    likely_bytes: int = 0

    @property
    def certainty(self) -> str:
        """How much of it is likely, in words; empty for next to nothing."""
        return likely_words(self.block_bytes, self.likely_bytes)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, without the name."""
        return {
            "n_allocations": self.n_allocations,
            "requested_bytes": self.requested_bytes,
            "block_bytes": self.block_bytes,
            "n_models": self.n_models,
            "likely_bytes": self.likely_bytes,
        }


def totals_by_category(analysis: DeviceAnalysis, live: BoolColumn) -> Iterator[CategoryTotal]:
    """Sum every category, also those without memory."""
    for category in (*list(Category)[1:], Category.UNKNOWN):
        rows = live & has_code(analysis.classification.category, category)
        models = n_models(analysis, live) if category == Category.WEIGHT else None
        yield _total(analysis, rows, category.label, models)


def total_of_either(analysis: DeviceAnalysis, live: BoolColumn) -> CategoryTotal:
    """Sum what is a gradient or an optimizer state, of which nothing shows which; it counts as unknown."""
    return _total(analysis, live & is_either(analysis), EITHER_LABEL)


def is_either(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the allocations that are a gradient or an optimizer state."""
    reasons, reason_id = analysis.classification.reasons, analysis.classification.reason_id
    if GRADIENT_OR_STATE not in reasons:
        return np.zeros(len(reason_id), np.bool_)
    return np.asarray(reason_id == reasons.index(GRADIENT_OR_STATE))


def job_sentence(analysis: DeviceAnalysis) -> str | None:
    """Say which hypothesis about the job explains the memory from before the trace; None: no part."""
    explanation, reasons = analysis.classification.explanation, analysis.classification.reasons
    has_decided = not {SLUG, GRADIENT_OR_STATE}.isdisjoint(reasons)
    return sentence(explanation) if explanation and has_decided else None


def _total(analysis: DeviceAnalysis, rows: BoolColumn, name: str, models: int | None = None) -> CategoryTotal:
    allocations, is_likely = analysis.allocations, analysis.classification.is_likely
    return CategoryTotal(
        category=name,
        n_allocations=int(np.count_nonzero(rows)),
        requested_bytes=int(allocations.requested_bytes[rows].sum()),
        block_bytes=int(allocations.block_bytes[rows].sum()),
        n_models=models,
        likely_bytes=int(allocations.block_bytes[rows & is_likely].sum()),
    )


def rows_of_summary(
    categories: tuple[CategoryTotal, ...], either: CategoryTotal
) -> tuple[CategoryTotal, ...]:
    """Take what is one of two categories out of the unknown, as a row of its own."""
    unknown = Category.UNKNOWN.label
    rows = [_without(row, either) if row.category == unknown else row for row in categories]
    return (*rows, either)


def likely_words(block_bytes: int, likely_bytes: int) -> str:
    """Say how much of a sum is likely: ``likely``, or so many bytes; empty for next to nothing of it."""
    if likely_bytes <= _NEXT_TO_NOTHING * block_bytes:
        return ""
    is_all = likely_bytes >= (1 - _NEXT_TO_NOTHING) * block_bytes
    return "likely" if is_all else f"{format_bytes(likely_bytes)} of it likely"


def codes_with_likely(found: Classification) -> Int64Column:
    """Return a code for every allocation's category that separates what is likely from what is certain."""
    return 2 * found.category.astype(np.int64) + found.is_likely


def label_with_likely(code: int) -> str:
    """Name one of these codes: ``weight``, or ``weight (likely)``."""
    return f"{Category(code // 2).label}{' (likely)' if code % 2 else ''}"


def _without(row: CategoryTotal, part: CategoryTotal) -> CategoryTotal:
    return CategoryTotal(
        row.category,
        row.n_allocations - part.n_allocations,
        row.requested_bytes - part.requested_bytes,
        row.block_bytes - part.block_bytes,
    )


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
