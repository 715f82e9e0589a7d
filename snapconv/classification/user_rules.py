"""A user's own frame rules, and the stacks that they match. They come before every rule of our own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int32Column, read_only
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.frame_matching import FrameMatcher
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, FrameRule
from snapconv.torch_knowledge.frame_roles import Role

# FrameRule.seen has the releases of torch in which a frame was seen.
_SEEN = "a rule of the user"


@dataclass(frozen=True, slots=True)
class UserRule:
    """One rule of the user; ``slug`` stands in every output as those of our own rules do.

    ``function`` and ``file`` are searched as in a FrameRule. It gives a matching allocation its
    ``category``, its ``operation``, or both; ``role`` instead gives its stack a role. With
    ``is_free_site`` the stack that freed the allocation is looked at, not the one that made it.
    """

    slug: str
    reason: str
    function: str
    file: str
    category: Category | None
    role: Role | None
    operation: str | None
    is_free_site: bool


@dataclass(frozen=True, slots=True)
class UserRules:
    """Rules in the order of evaluation; ``has[rule, stack]``: the stacks that each matches."""

    rules: tuple[UserRule, ...]
    has: BoolColumn

    def of(self, number: int, stack_ids: Int32Column) -> BoolColumn:
        """Whether a rule matches each of these stacks; False for -1."""
        if not self.has.shape[1]:
            return np.zeros(len(stack_ids), np.bool_)
        return np.asarray((stack_ids >= 0) & self.has[number][stack_ids])

    def matches(self, number: int, allocations: AllocationTable, *, free_sites_known: bool) -> BoolColumn:
        """Return the allocations that a rule is about: by the stack that made them, or that freed them.

        Where the file has no stacks of frees, a rule about frees matches nothing.
        """
        if not self.rules[number].is_free_site:
            return self.of(number, allocations.stack_id)
        return self.of(number, allocations.free_stack_id) & free_sites_known


NO_RULES = read_only(UserRules((), np.zeros((0, 0), np.bool_)))


def match_rules(rules: Sequence[UserRule], stacks: StackTable) -> UserRules:
    """Search the frames of every stack, each distinct name and file once per rule."""
    stack_of_frame = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    has = np.zeros((len(rules), len(stacks)), np.bool_)
    matcher = FrameMatcher(stacks.frames)
    for number, rule in enumerate(rules):
        has[number, stack_of_frame[matcher.matches(rule)[stacks.frame_ids]]] = True
    return read_only(UserRules(tuple(rules), has))


def rule_notes(user: UserRules, *, free_sites_known: bool) -> Iterator[Note]:
    """Yield a note for every rule that cannot have any effect: its author should hear of a wrong pattern."""
    for number, rule in enumerate(user.rules):
        if not user.has[number].any():
            yield Note("unused-rule", f"your rule {rule.slug} matches no frame: check its function and file")
        elif rule.is_free_site and not free_sites_known:
            yield Note(
                "unused-rule",
                f"your rule {rule.slug} is about frees, and the file has no stacks of frees: record "
                "with context='all'",
            )


def frame_rules(rules: Sequence[UserRule]) -> tuple[FrameRule, ...]:
    """Return the rules that give roles, and after them our own: an earlier one goes on record."""
    mine = [
        FrameRule(rule.slug, rule.role, rule.function, rule.file, rule.reason, _SEEN)
        for rule in rules
        if rule.role is not None
    ]
    return (*mine, *FRAME_RULES)
