"""What is decided of every allocation so far, conditions over it, and facts that decide more of it.

A condition is a column of booleans, joined by ``&``, ``|`` and ``~``. A fact is a row of a table:
where its condition holds, the allocation gets its category, unless an earlier fact has decided it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import NO_RULE, Category, Certainty, Evidence
from snapconv.classification.features import Features
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    distinct,
    has_code,
    is_among,
    read_only,
    rows_of,
)
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

_Value = TypeVar("_Value")
FloatColumn = NDArray[np.float32]

# From these probabilities on a category is certain, or likely: below it is unknown.
CERTAIN, LIKELY = 0.97, 0.7
LIKELY_ONLY = "likely-only"
# The user, or the recorder, has said what it is.
_RECORDED_EVIDENCE = (Evidence.USER_RULE, Evidence.METADATA)


@dataclass(frozen=True, slots=True)
class Classification:
    """One entry per allocation: its category, the evidence for it, and how sure it is, as codes.

    ``reason_id`` is a position in ``reasons``. ``probability``: 1 for a fact, 0 for what is
    unknown. ``explanation``: the sentence about the job, or "".
    """

    category: Int8Column
    evidence: Int8Column
    reason_id: Int32Column
    reasons: tuple[str, ...]
    certainty: Int8Column
    probability: FloatColumn
    explanation: str = ""

    @property
    def is_certain(self) -> BoolColumn:
        """What is certain, or was recorded."""
        return np.asarray(self.certainty >= int(Certainty.CERTAIN))

    @property
    def is_likely(self) -> BoolColumn:
        """What is likely, and not certain."""
        return has_code(self.certainty, Certainty.LIKELY)

    def has_reason(self, *slugs: str) -> BoolColumn:
        """Mark what was decided for one of some reasons."""
        reason_ids = [self.reasons.index(slug) for slug in slugs if slug in self.reasons]
        return is_among(self.reason_id, reason_ids)

    def only_certain(self) -> "Classification":
        """Count what is likely as unknown."""
        is_likely = self.is_likely
        if not is_likely.any():
            return self
        stays = ~is_likely
        certain = Classification(
            category=self.category * stays,
            evidence=self.evidence * stays,
            reason_id=np.where(is_likely, np.int32(len(self.reasons)), self.reason_id),
            reasons=(*self.reasons, LIKELY_ONLY),
            certainty=self.certainty * stays,
            probability=self.probability * stays,
            explanation=self.explanation,
        )
        return read_only(certain)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The category of the allocations that a stage marks.

    ``probability`` has one entry per allocation; None where the category is a fact.
    """

    marked: BoolColumn
    category: Category
    evidence: Evidence
    slug: str
    probability: FloatColumn | None = None


class Decided:
    """The categories that were decided so far. A row once decided stays."""

    def __init__(self, features: Features) -> None:
        n_rows = len(features.alloc)
        self.features = features
        self.category = np.zeros(n_rows, np.int8)
        # Without a decision, not even that they are unknown.
        self.is_open = np.ones(n_rows, bool)
        self.explanation = ""
        self._evidence = np.zeros(n_rows, np.int8)
        self._certainty = np.zeros(n_rows, np.int8)
        self._reason_id = np.zeros(n_rows, np.int32)
        self._probability = np.zeros(n_rows, np.float32)
        self._reasons: dict[str, int] = {NO_RULE: 0}
        self._shared: dict[Callable[..., Any], Any] = {}

    def has(self, *categories: Category) -> BoolColumn:
        """Return the allocations that certainly have one of these categories."""
        marked = np.zeros(len(self.category), bool)
        for category in categories:
            marked |= has_code(self.category, category)
        return marked & ~has_code(self._certainty, Certainty.LIKELY)

    def shared(self, find: Callable[["Decided"], _Value]) -> _Value:
        """Return what several conditions share, computed when the first of them needs it."""
        if find not in self._shared:
            self._shared[find] = find(self)
        value: _Value = self._shared[find]
        return value

    def add(self, proposal: Proposal) -> None:
        """Give a category to the proposed rows that are still open."""
        rows = rows_of(proposal.marked & self.is_open)
        if not len(rows):
            return
        self.is_open[rows] = False
        self.category[rows] = int(proposal.category)
        self._evidence[rows] = int(proposal.evidence)
        self._reason_id[rows] = self._reasons.setdefault(proposal.slug, len(self._reasons))
        if not proposal.category:
            return
        is_recorded = proposal.evidence in _RECORDED_EVIDENCE
        self._certainty[rows] = int(
            Certainty.RECORDED if is_recorded else Certainty.CERTAIN
        )
        if proposal.probability is None:
            self._probability[rows] = 1
        else:
            probability = proposal.probability[rows]
            self._probability[rows] = probability
            self._certainty[rows[probability < CERTAIN]] = int(Certainty.LIKELY)

    def result(self) -> Classification:
        """Return the finished columns."""
        classification = Classification(
            category=self.category,
            evidence=self._evidence,
            reason_id=self._reason_id,
            reasons=tuple(self._reasons),
            certainty=self._certainty,
            probability=self._probability,
            explanation=self.explanation,
        )
        return read_only(classification)


# A step of the classification: it yields what it has evidence for, strongest first.
Stage = Callable[[Decided], Iterator[Proposal]]


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A column of booleans, or one bool for all rows where it is about the whole recording."""

    find: Callable[[Decided], BoolColumn | bool]

    def column(self, decided: Decided) -> BoolColumn:
        """Compute the column."""
        holds = self.find(decided)
        if isinstance(holds, np.ndarray):
            return holds
        return np.full(len(decided.category), holds, bool)

    def __and__(self, second: "Condition") -> "Condition":
        def find(decided: Decided) -> BoolColumn | bool:
            holds = self.find(decided)
            # The second is not computed where it cannot matter.
            return holds & second.find(decided) if np.count_nonzero(holds) else holds

        return Condition(find)

    def __or__(self, second: "Condition") -> "Condition":
        def find(decided: Decided) -> BoolColumn | bool:
            return self.find(decided) | second.find(decided)

        return Condition(find)

    def __invert__(self) -> "Condition":
        def find(decided: Decided) -> BoolColumn | bool:
            return np.logical_not(self.find(decided))

        return Condition(find)


def shared_condition(find: Callable[[Decided], BoolColumn | bool]) -> Condition:
    """Make a condition that is computed once: it does not depend on other decisions."""

    def find_once(decided: Decided) -> BoolColumn | bool:
        return decided.shared(find)

    return Condition(find_once)


def feature_condition(find: Callable[[Features], BoolColumn | bool]) -> Condition:
    """Make a condition of a function of the features alone."""

    def find_in_features(decided: Decided) -> BoolColumn | bool:
        return find(decided.features)

    return Condition(find_in_features)


def feature(column: object) -> Condition:
    """Make a condition of a cached property of the features, such as ``Features.is_freed``."""
    # mypy takes such a property for a function.
    assert isinstance(column, cached_property), column

    def find(decided: Decided) -> BoolColumn:
        value: BoolColumn = column.__get__(decided.features)
        return value

    return Condition(find)


def made_through(role: Role) -> Condition:
    """Allocated through code of a role."""

    def find(decided: Decided) -> BoolColumn:
        return decided.features.made_through(role)

    return Condition(find)


def freed_through(role: Role) -> Condition:
    """Freed from code of a role, where the file has the stacks of frees."""

    def find(decided: Decided) -> BoolColumn:
        return decided.features.freed_through(role)

    return Condition(find)


class Reason(NamedTuple):
    """Why an allocation has its category: a stable short name, and what the name stands for."""

    slug: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of a table: the category of all rows for which a condition holds, and why.

    ``follows_phases``: it follows from phases, if not from sizes, and so has the evidence
    ``metadata`` where a recorder marked them. ``probability``: how often a row is right that is
    likely only.
    """

    category: Category
    reason: Reason
    condition: Condition
    evidence: Evidence = Evidence.LIFETIME
    probability: float | None = None
    follows_phases: bool = True

    def __call__(self, decided: Decided) -> Iterator[Proposal]:
        """Propose the category for the allocations that the condition holds for."""
        marked = self.condition.column(decided)
        evidence = self.evidence
        probability = None
        if self.probability:
            probability = np.full(len(marked), self.probability, np.float32)
        elif self._follows_record(decided):
            evidence = Evidence.METADATA
        yield Proposal(marked, self.category, evidence, self.reason.slug, probability)

    def _follows_record(self, decided: Decided) -> bool:
        has_evidence = self.evidence not in (Evidence.SIZES, Evidence.NONE)
        return has_evidence and self.follows_phases and decided.features.phases.is_recorded


@dataclass(frozen=True, slots=True)
class FrameFact:
    """A row about the role of a stack that made or freed memory; the frame rule has the reason."""

    category: Category
    role: Role
    condition: Condition
    is_free_site: bool = False

    def __call__(self, decided: Decided) -> Iterator[Proposal]:
        """Yield what each frame rule of the role has evidence for."""
        features = decided.features
        table = features.allocations
        if self.is_free_site:
            evidence = Evidence.FREE_SITE
            has_role = features.freed_through(self.role)
            stack_id = table.free_stack_id
        else:
            evidence = Evidence.FRAMES
            has_role = features.made_through(self.role)
            stack_id = table.stack_id
        if not has_role.any():
            return
        rows = rows_of(has_role & self.condition.find(decided))
        rule_ids = features.roles.rule_id[self.role][stack_id[rows]]
        for rule_id in distinct(rule_ids).tolist():
            marked = features.mask(rows[rule_ids == rule_id])
            yield Proposal(marked, self.category, evidence, FRAME_RULES[rule_id].slug)
