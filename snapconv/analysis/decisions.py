"""Where categories are decided: the first decision on a row stands, with its evidence and reason."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.columns import read_only
from snapconv.analysis.reasons import RULES_BY_PHASE
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.rules import Role
from snapconv.analysis.stack_roles import StackRoles

BoolColumn = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Classification:
    """One entry per allocation: codes of Category and Evidence, and a position in ``reasons``."""

    category: NDArray[np.int8]
    evidence: NDArray[np.int8]
    reason_id: NDArray[np.int32]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one rule says of one allocation, whether it decided or came too late."""

    row: int
    category: Category
    evidence: Evidence
    reason: str


class Decisions:
    """Categories as they are decided; a row once decided stays.

    ``opinions`` has what every rule says of the ``watched`` rows, in the order in which they are asked.
    Where ``phases_are_recorded``, what a rule concludes from a phase has that as its evidence.
    """

    def __init__(
        self,
        allocations: AllocationTable,
        roles: StackRoles,
        *,
        watched: NDArray[np.int64] | None = None,
        phases_are_recorded: bool = False,
    ) -> None:
        n = len(allocations)
        self.allocations, self.roles = allocations, roles
        self.category = np.zeros(n, np.int8)
        self.evidence = np.zeros(n, np.int8)
        self.reason_id = np.zeros(n, np.int32)
        self.reasons: dict[str, int] = {"none": 0}
        self.opinions: list[Opinion] = []
        self._watched = watched
        self._by_record = RULES_BY_PHASE if phases_are_recorded else frozenset()

    def decide(self, where: BoolColumn, category: Category, evidence: Evidence, reason: str) -> None:
        """Decide the rows that are still open."""
        if reason in self._by_record:
            evidence = Evidence.METADATA
        rows = np.flatnonzero(where & (self.category == Category.UNKNOWN))
        if len(rows):
            self.category[rows] = category
            self.evidence[rows] = evidence
            self.reason_id[rows] = self.reasons.setdefault(reason, len(self.reasons))
        if self._watched is not None:
            meant = self._watched[where[self._watched]]
            self.opinions += [Opinion(row, category, evidence, reason) for row in meant.tolist()]

    def decide_by_role(
        self, where: BoolColumn, role: Role, category: Category, *, free_site: bool = False
    ) -> None:
        """Decide open rows by the frame rules of a role, one reason per rule."""
        stack = self.allocations.free_stack_id if free_site else self.allocations.stack_id
        evidence = Evidence.FREE_SITE if free_site else Evidence.FRAMES
        rule_ids = self.roles.rule_id[role][stack] if self.roles.has.shape[1] else np.full(len(stack), -1)
        for number in np.unique(rule_ids[where & (stack >= 0)]).tolist():
            if number >= 0:
                here = where & (stack >= 0) & (rule_ids == number)
                self.decide(here, category, evidence, self.roles.rules[number].slug)

    def result(self) -> Classification:
        """The finished columns."""
        return read_only(Classification(self.category, self.evidence, self.reason_id, tuple(self.reasons)))
