"""What is decided of every allocation so far, conditions over it, and facts that decide more of it.

A condition is a column of booleans, joined by ``&``, ``|`` and ``~``. A fact is a row of a table:
where its condition holds, the allocation gets its category, unless an earlier fact has decided it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    read_only,
    rows_of,
)
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

_Found = TypeVar("_Found")
FloatColumn = NDArray[np.float32]

# From these probabilities on a category is certain, or likely: below it is unknown.
CERTAIN, LIKELY = 0.97, 0.7
LIKELY_ONLY = "likely-only"


@dataclass(frozen=True, slots=True)
class Classification:
    """One entry per allocation: codes of Category, Evidence and Certainty, and a position in ``reasons``.

    ``probability``: 1 for a fact, 0 for what is unknown. ``explanation``: the sentence about the
    job, or "".
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
        return np.isin(
            self.reason_id, [self.reasons.index(slug) for slug in slugs if slug in self.reasons]
        )

    def only_certain(self) -> "Classification":
        """Count what is likely as unknown."""
        if not self.is_likely.any():
            return self
        found: dict[str, Any] = {
            "reason_id": np.where(self.is_likely, np.int32(len(self.reasons)), self.reason_id)
        }
        for name in ("category", "evidence", "certainty", "probability"):
            found[name] = getattr(self, name) * ~self.is_likely
        return read_only(replace(self, **found, reasons=(*self.reasons, LIKELY_ONLY)))


@dataclass(frozen=True, slots=True)
class Proposal:
    """The category of the allocations that a stage marks, with a probability for each unless it is a fact."""

    where: BoolColumn
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
        found = np.zeros(len(self.category), bool)
        for category in categories:
            found |= has_code(self.category, category)
        return found & ~has_code(self._certainty, Certainty.LIKELY)

    def shared(self, find: Callable[["Decided"], _Found]) -> _Found:
        """Return what several conditions share, made when the first of them needs it."""
        if find not in self._shared:
            self._shared[find] = find(self)
        found: _Found = self._shared[find]
        return found

    def add(self, proposal: Proposal) -> None:
        """Give a category to the proposed rows that are still open."""
        rows = rows_of(proposal.where & self.is_open)
        if not len(rows):
            return
        self.is_open[rows], self.category[rows] = False, int(proposal.category)
        self._evidence[rows] = int(proposal.evidence)
        self._reason_id[rows] = self._reasons.setdefault(proposal.slug, len(self._reasons))
        if proposal.category:
            is_recorded = proposal.evidence in (Evidence.USER_RULE, Evidence.METADATA)
            self._certainty[rows] = int(Certainty.RECORDED if is_recorded else Certainty.CERTAIN)
            self._probability[rows] = (
                1 if proposal.probability is None else proposal.probability[rows]
            )
            if proposal.probability is not None:
                self._certainty[rows[proposal.probability[rows] < CERTAIN]] = int(Certainty.LIKELY)

    def result(self) -> Classification:
        """Return the finished columns."""
        columns = (self.category, self._evidence, self._reason_id)
        reasons = tuple(self._reasons)
        by_certainty = self._certainty, self._probability
        return read_only(Classification(*columns, reasons, *by_certainty, self.explanation))


# One place in the order of the classification: it yields what it has evidence for, strongest first.
Stage = Callable[[Decided], Iterator[Proposal]]


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A column of booleans, or one bool for all rows where it is about the whole recording."""

    find: Callable[[Decided], BoolColumn | bool]

    def of(self, decided: Decided) -> BoolColumn:
        """Compute the column."""
        found = self.find(decided)
        return (
            found if isinstance(found, np.ndarray) else np.full(len(decided.category), found, bool)
        )

    def __and__(self, other: "Condition") -> "Condition":
        def find(decided: Decided) -> BoolColumn | bool:
            mine = self.find(decided)
            return mine & other.find(decided) if np.count_nonzero(mine) else mine

        return Condition(find)

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(lambda decided: self.find(decided) | other.find(decided))

    def __invert__(self) -> "Condition":
        return Condition(lambda decided: np.logical_not(self.find(decided)))


def atom(find: Callable[[Decided], BoolColumn | bool]) -> Condition:
    """Make a condition of a function, found once: for what does not depend on other decisions."""
    return Condition(lambda decided: decided.shared(find))


def made(role: Role) -> Condition:
    """Allocated through code of a role."""
    return Condition(lambda decided: decided.features.made_through(role))


def freed(role: Role) -> Condition:
    """Freed from code of a role, where the file has the stacks of frees."""
    return Condition(lambda decided: decided.features.freed_through(role))


class _FeatureConditions:
    """A condition for every feature, by its name."""

    def __getattr__(self, name: str) -> Condition:
        assert hasattr(Features, name) or name in Features.__annotations__, name
        return Condition(lambda decided: getattr(decided.features, name))


feature = _FeatureConditions()


class Reason(NamedTuple):
    """Why an allocation has its category: a stable short name, and what the name stands for."""

    slug: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of a table: the category of all rows for which a condition holds, and why.

    ``by_phases``: it follows from phases, if not from sizes, and so has the evidence ``metadata``
    where a recorder marked them. ``probability``: how often a row is right that is likely only.
    """

    category: Category
    reason: Reason
    where: Condition
    evidence: Evidence = Evidence.LIFETIME
    probability: float | None = None
    by_phases: bool = True

    def __call__(self, decided: Decided) -> Iterator[Proposal]:
        """Propose the category for the allocations that the condition holds for."""
        where = self.where.of(decided)
        column = None
        by_record = self.by_phases and decided.features.phases.is_recorded and not self.probability
        by_record &= self.evidence not in (Evidence.SIZES, Evidence.NONE)
        if self.probability:
            column = np.full(len(where), self.probability, np.float32)
        evidence = Evidence.METADATA if by_record else self.evidence
        yield Proposal(where, self.category, evidence, self.reason.slug, column)


@dataclass(frozen=True, slots=True)
class FrameFact:
    """A row about the role of the stack that made or freed an allocation; the reason is the frame rule's."""

    category: Category
    role: Role
    where: Condition
    is_free_site: bool = False

    def __call__(self, decided: Decided) -> Iterator[Proposal]:
        """Yield what each frame rule of the role has evidence for."""
        features = decided.features
        table = features.allocations
        roles = features.roles
        if self.is_free_site:
            has_role = features.freed_through(self.role)
            stack = table.free_stack_id
        else:
            has_role = features.made_through(self.role)
            stack = table.stack_id
        if not has_role.any():
            return
        evidence = Evidence.FREE_SITE if self.is_free_site else Evidence.FRAMES
        rows = rows_of(has_role & self.where.find(decided))
        rule_ids = roles.rule_id[self.role][stack[rows]]
        for number in distinct(rule_ids).tolist():
            where = features.mask(rows[rule_ids == number])
            yield Proposal(where, self.category, evidence, FRAME_RULES[number].slug)
