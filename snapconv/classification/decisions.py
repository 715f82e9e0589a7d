"""What is decided of every allocation so far, conditions over it, and facts that decide more of it.

A condition is a named column of booleans, made when it is first needed; conditions are joined by ``&``, ``|``
and ``~``. A fact is a row of a table: whatever its condition holds for gets its category, unless an earlier
row has decided it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import NO_RULE, Category, Certainty, Evidence
from snapconv.classification.features import Features
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, distinct, has_code, read_only
from snapconv.torch_knowledge.frame_roles import Role

_Found = TypeVar("_Found")
FloatColumn = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The hypothesis about the whole job that explains most, and the next best one.

    ``explained`` and ``next_explained`` are shares of ``n_bytes``: the blocks without a decision by facts.
    ``probability`` is the hypothesis's own, ``source`` how the parameters are known. ``optimizers`` are those
    that were seen.
    """

    hypothesis: str
    explained: float
    next_best: str
    next_explained: float
    n_bytes: int
    probability: float
    source: str
    optimizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Classification:
    """One entry per allocation: codes of Category, Evidence and Certainty, and a position in ``reasons``.

    ``probability`` is that of the category; 1 for what is a fact, 0 for what is unknown. ``explanation``: of
    the whole job, where blocks from before the trace were explained by it.
    """

    category: Int8Column
    evidence: Int8Column
    reason_id: Int32Column
    reasons: tuple[str, ...]
    certainty: Int8Column
    probability: FloatColumn
    explanation: Explanation | None = None

    @property
    def is_certain(self) -> BoolColumn:
        """What is certain, or was recorded."""
        return np.asarray(self.certainty >= int(Certainty.CERTAIN))

    @property
    def is_likely(self) -> BoolColumn:
        """What is likely, and not certain."""
        return has_code(self.certainty, Certainty.LIKELY)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The category that a stage has evidence for, for the allocations that it marked (one bool each).

    ``probability`` has one entry per allocation, None for facts. ``is_certain`` is False for what is likely.
    """

    where: BoolColumn
    category: Category
    evidence: Evidence
    slug: str
    probability: FloatColumn | None = None
    is_certain: bool = True


class Stage(Protocol):
    """One place in the order of the classification."""

    def proposals(self, decided: "Decided") -> Iterator[Proposal]:
        """Yield what the stage has evidence for, strongest first."""


class Decided:
    """The categories that were decided so far. A row once decided stays."""

    def __init__(self, features: Features) -> None:
        n_rows = len(features.alloc)
        self.features = features
        self.category = np.zeros(n_rows, np.int8)
        self.explanation: Explanation | None = None
        self._evidence, self._certainty = np.zeros(n_rows, np.int8), np.zeros(n_rows, np.int8)
        self._reason_id, self._probability = np.zeros(n_rows, np.int32), np.zeros(n_rows, np.float32)
        self._reasons: dict[str, int] = {NO_RULE: 0}
        self._shared: dict[Callable[..., Any], Any] = {}

    @property
    def is_open(self) -> BoolColumn:
        """The allocations without a decision, not even that they are unknown."""
        return has_code(self._reason_id, 0)

    @property
    def is_likely(self) -> BoolColumn:
        """What is decided, but not certain."""
        return has_code(self._certainty, Certainty.LIKELY)

    def has(self, *categories: Category) -> BoolColumn:
        """Return the allocations that certainly have one of these categories."""
        found = np.zeros(len(self.category), np.bool_)
        for category in categories:
            found |= has_code(self.category, category)
        return found & ~self.is_likely

    def shared(self, find: Callable[["Decided"], _Found]) -> _Found:
        """Return what several conditions share, made when the first of them needs it."""
        if find not in self._shared:
            self._shared[find] = find(self)
        found: _Found = self._shared[find]
        return found

    def add(self, proposal: Proposal) -> None:
        """Give a category to the proposed rows that are still open."""
        rows = np.flatnonzero(proposal.where & self.is_open)
        if not len(rows):
            return
        self.category[rows], self._evidence[rows] = proposal.category, proposal.evidence
        self._reason_id[rows] = self._reasons.setdefault(proposal.slug, len(self._reasons))
        self._certainty[rows] = _certainty(proposal)
        if proposal.category:
            self._probability[rows] = 1 if proposal.probability is None else proposal.probability[rows]

    def result(self) -> Classification:
        """Return the finished columns."""
        return read_only(
            Classification(
                self.category,
                self._evidence,
                self._reason_id,
                tuple(self._reasons),
                self._certainty,
                self._probability,
                self.explanation,
            )
        )


def _certainty(proposal: Proposal) -> Certainty:
    if proposal.category is Category.UNKNOWN:
        return Certainty.UNKNOWN
    if proposal.evidence in (Evidence.USER_RULE, Evidence.METADATA):
        return Certainty.RECORDED
    return Certainty.CERTAIN if proposal.is_certain else Certainty.LIKELY


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A column of booleans, of one value for every row where it is about the whole recording."""

    name: str
    find: Callable[[Decided], BoolColumn | bool]

    def of(self, decided: Decided) -> BoolColumn:
        """Compute the column."""
        found = self.find(decided)
        return np.broadcast_to(np.asarray(found, np.bool_), decided.category.shape)

    def __and__(self, other: "Condition") -> "Condition":
        def find(decided: Decided) -> BoolColumn:
            mine = self.of(decided)
            return mine & other.of(decided) if mine.any() else mine

        return Condition(f"{self.name} & {other.name}", find)

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(
            f"({self.name} | {other.name})", lambda decided: self.of(decided) | other.of(decided)
        )

    def __invert__(self) -> "Condition":
        return Condition(f"~{self.name}", lambda decided: ~self.of(decided))


def atom(find: Callable[[Decided], BoolColumn | bool]) -> Condition:
    """Make a condition of a function, found once: for what does not depend on other decisions."""
    return Condition(find.__name__, lambda decided: decided.shared(find))


def judged(find: Callable[[Decided], BoolColumn | bool]) -> Condition:
    """Make a condition of a function that depends on what was decided before: found each time."""
    return Condition(find.__name__, find)


def made(role: Role) -> Condition:
    """Allocated through code of a role."""
    return Condition(f"made({role.name})", lambda decided: decided.features.made_through(role))


def freed(role: Role) -> Condition:
    """Freed from code of a role, where the file has the stacks of frees."""
    return Condition(f"freed({role.name})", lambda decided: decided.features.freed_through(role))


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of a table: the category of all rows for which a condition holds, and why.

    ``slug`` stands in every output, ``reason`` in the documentation. ``uses_phases``: it is about phases, and
    so has the evidence ``metadata`` where a recorder marked them. ``probability``: how often a row is right
    that is likely only.
    """

    category: Category
    slug: str
    reason: str
    evidence: Evidence
    where: Condition
    uses_phases: bool = False
    probability: float | None = None

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Return the allocations that the condition holds for."""
        by_record = self.uses_phases and decided.features.phases.is_recorded
        evidence = Evidence.METADATA if by_record else self.evidence
        where = self.where.of(decided)
        if self.probability is None:
            yield Proposal(where, self.category, evidence, self.slug)
        else:
            column: FloatColumn = np.full(len(where), self.probability, np.float32)
            yield Proposal(where, self.category, self.evidence, self.slug, column, is_certain=False)


@dataclass(frozen=True, slots=True)
class FrameFact:
    """A row about the stack that made an allocation, or that freed it: its role, given by a frame rule.

    The reason is that of the frame rule. ``where`` limits it.
    """

    category: Category
    role: Role
    where: Condition
    is_free_site: bool = False

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Yield what each frame rule of the role has evidence for."""
        features = decided.features
        table, roles = features.allocations, features.roles
        stack = table.free_stack_id if self.is_free_site else table.stack_id
        evidence = Evidence.FREE_SITE if self.is_free_site else Evidence.FRAMES
        has_role = (
            features.freed_through(self.role) if self.is_free_site else features.made_through(self.role)
        )
        if not has_role.any():
            return
        rows = np.flatnonzero(has_role & self.where.of(decided))
        rule_ids = roles.rule_id[self.role][stack[rows]]
        for number in distinct(rule_ids).tolist():
            where = features.mask(rows[rule_ids == number])
            yield Proposal(where, self.category, evidence, roles.rules[number].slug)


def mask_of(decided: Decided, rows: Int64Column) -> BoolColumn:
    """Rows by number -> one bool per allocation."""
    return decided.features.mask(rows)
