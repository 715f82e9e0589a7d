"""Where categories are decided: the first decision on a row stands, with its evidence and reason."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
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


class Decisions:
    """Categories as they are decided; a row once decided stays."""

    def __init__(self, allocations: AllocationTable, roles: StackRoles) -> None:
        n = len(allocations)
        self.allocations, self.roles = allocations, roles
        self.category = np.zeros(n, np.int8)
        self.evidence = np.zeros(n, np.int8)
        self.reason_id = np.zeros(n, np.int32)
        self.reasons: dict[str, int] = {"none": 0}

    def decide(self, where: BoolColumn, category: Category, evidence: Evidence, reason: str) -> None:
        """Decide the rows that are still open."""
        rows = np.flatnonzero(where & (self.category == Category.UNKNOWN))
        if len(rows):
            self.category[rows] = category
            self.evidence[rows] = evidence
            self.reason_id[rows] = self.reasons.setdefault(reason, len(self.reasons))

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
        for column in (self.category, self.evidence, self.reason_id):
            column.setflags(write=False)
        return Classification(self.category, self.evidence, self.reason_id, tuple(self.reasons))
