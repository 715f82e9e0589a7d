"""What a rule of the classification is, and the state in which the rules leave what they decided.

A rule sees the features and what stronger rules have decided, and marks the allocations that it has evidence
for. It decides nothing itself: ``Decided`` gives a category to what is still open.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from snapconv.classification.categories import NO_RULE, Category, Evidence
from snapconv.classification.features import Features
from snapconv.columns import BoolColumn, Int8Column, Int32Column, distinct, has_code, read_only
from snapconv.torch_knowledge.frame_roles import Role

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a category was given: ``slug`` stands in every output, ``text`` in the documentation.

    ``uses_phases``: the reason is about phases, and so has the evidence ``metadata`` where a recorder
    marked them. ``seen``: the versions of torch in which it was seen, empty for any.
    """

    slug: str
    text: str
    uses_phases: bool = False
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The category that a rule has evidence for, for the allocations that it marked (one bool each)."""

    where: BoolColumn
    category: Category
    evidence: Evidence
    slug: str


class PipelineRule(Protocol):
    """One place in the order of the classification."""

    @property
    def name(self) -> str:
        """Names the rule among all others."""

    def proposals(self, features: Features, decided: "Decided") -> Iterator[Proposal]:
        """What the rule has evidence for, strongest first."""


@dataclass(frozen=True, slots=True)
class Classification:
    """One entry per allocation: codes of Category and Evidence, and a position in ``reasons``."""

    category: Int8Column
    evidence: Int8Column
    reason_id: Int32Column
    reasons: tuple[str, ...]


class Decided:
    """The categories that were decided so far. A row once decided stays."""

    def __init__(self, n_allocations: int) -> None:
        self.category = np.zeros(n_allocations, np.int8)
        self._evidence = np.zeros(n_allocations, np.int8)
        self._reason_id = np.zeros(n_allocations, np.int32)
        self._reasons: dict[str, int] = {}
        self._number_of(NO_RULE)
        self._shared: dict[Callable[..., Any], Any] = {}

    @property
    def is_open(self) -> BoolColumn:
        """The allocations that no rule has decided yet, were it that they cannot be known."""
        return has_code(self._reason_id, 0)

    def has(self, category: Category) -> BoolColumn:
        """The allocations that have been given a category."""
        return has_code(self.category, category)

    def shared(self, find: Callable[[Features, "Decided"], _Found], features: Features) -> _Found:
        """What several rules share: found, from what is decided then, when the first of them is evaluated."""
        if find not in self._shared:
            self._shared[find] = find(features, self)
        found: _Found = self._shared[find]
        return found

    def add(self, proposal: Proposal) -> None:
        """Give a category to the proposed rows that are still open."""
        rows = np.flatnonzero(proposal.where & self.is_open)
        if len(rows):
            self.category[rows] = proposal.category
            self._evidence[rows] = proposal.evidence
            self._reason_id[rows] = self._number_of(proposal.slug)

    def _number_of(self, slug: str) -> int:
        return self._reasons.setdefault(slug, len(self._reasons))

    def result(self) -> Classification:
        """The finished columns."""
        return read_only(Classification(self.category, self._evidence, self._reason_id, tuple(self._reasons)))


Where = Callable[[Features, Decided], BoolColumn]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that gives one category, for one reason, on one kind of evidence.

    Several rules may have the same reason: it then applies in several situations, each with its own place in
    the order.
    """

    name: str
    reason: Reason
    category: Category
    evidence: Evidence
    where: Where

    def proposals(self, features: Features, decided: Decided) -> Iterator[Proposal]:
        """What the rule has evidence for."""
        by_record = self.reason.uses_phases and features.phases.is_recorded
        evidence = Evidence.METADATA if by_record else self.evidence
        yield Proposal(self.where(features, decided), self.category, evidence, self.reason.slug)


def rule(reason: Reason, category: Category, evidence: Evidence) -> Callable[[Where], Rule]:
    """Make a Rule of the function that marks its allocations; it is named after the function."""

    def make(where: Where) -> Rule:
        return Rule(where.__name__, reason, category, evidence, where)

    return make


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A rule for the allocations whose stack, or whose free's stack, has a role.

    The reason is that of the frame rule which gave the role.
    """

    name: str
    role: Role
    category: Category
    where: Where
    is_free_site: bool

    def proposals(self, features: Features, decided: Decided) -> Iterator[Proposal]:
        """What each frame rule of the role has evidence for."""
        table, roles = features.allocations, features.roles
        stack = table.free_stack_id if self.is_free_site else table.stack_id
        evidence = Evidence.FREE_SITE if self.is_free_site else Evidence.FRAMES
        rows = np.flatnonzero(self.where(features, decided) & roles.of(self.role, stack))
        rule_ids = roles.rule_id[self.role][stack[rows]]
        for number in distinct(rule_ids).tolist():
            where = features.mask(rows[rule_ids == number])
            yield Proposal(where, self.category, evidence, roles.rules[number].slug)


def role_rule(role: Role, category: Category, *, is_free_site: bool = False) -> Callable[[Where], RoleRule]:
    """Make a RoleRule of the function that limits it; it is named after the function."""

    def make(where: Where) -> RoleRule:
        return RoleRule(where.__name__, role, category, where, is_free_site)

    return make
