"""The order of the classification: facts, the inventory of the job, then what is like others.

The first stage that marks an allocation decides. An allocation that none marks stays ``unknown``.
"""

from collections.abc import Iterator

import numpy as np

from snapconv.classification import inventory, repeated_call
from snapconv.classification.categories import (
    NO_RULE,
    Category,
    Evidence,
    Trait,
    categories_with,
)
from snapconv.classification.decisions import (
    LIKELY_ONLY,
    Classification,
    Decided,
    Fact,
    Proposal,
    Stage,
)
from snapconv.classification.facts import FACTS, HOST_FACTS, LATER, LIKELY
from snapconv.classification.features import Features
from snapconv.classification.recorded import ATTRIBUTES, PROFILED, RECORDED, user_rules
from snapconv.columns import (
    Int64Column,
    distinct,
    grouped,
    is_among,
    plain_rows,
    rows_of,
    stable_order,
)
from snapconv.stacks.stack_roles import stacks_by_frame
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

_REPLACED = "replaced-on-the-same-line"
_FREED_BY_LINE = "freed-by-line-of-one-category"
# All but 4 of 1,552 values replaced in late recordings of the benchmark need no more; without a
# limit, the work for a line that makes millions would be quadratic.
_MOST_PASSED_OVER = 32


# --- propagation


def _propagate(decided: Decided) -> Iterator[Proposal]:
    """Propose what lines show whose other memory is known.

    A line that frees memory, or makes its next value. It comes last of what is certain, and never
    feeds the inventory.
    """
    if decided.features.phases.free_sites_known:
        yield from _replaced(decided)
        yield from _freed_by_line(decided)


def _replaced(decided: Decided) -> Iterator[Proposal]:
    """Follow lines that give a variable a new value: they make it, then free the one before."""
    features = decided.features
    freed_by_program = features.is_freed & ~features.is_freed_by_engine
    rows = rows_of(~features.is_traced & decided.is_open & freed_by_program)
    if not len(rows):
        return
    category = np.zeros(len(features.alloc), np.int8)
    line = features.lines_of(features.allocations.free_stack_id)
    new_values = _NewValues(features, rows)
    for line_rows in grouped(rows[line[rows] >= 0], line):
        line_values = new_values.line_values(int(line[line_rows[0]]))
        for row in line_rows.tolist():
            category[row] = _youngest_in_use(decided, line_values, row)
    for replaced in categories_with(Trait.REPLACED):
        is_replaced = category == int(replaced)
        yield Proposal(is_replaced, replaced, Evidence.FREE_SITE, _REPLACED)


class _NewValues:
    """The allocations of the trace that may be the new values of some rows, by lines."""

    def __init__(self, features: Features, rows: Int64Column) -> None:
        self._features = features
        self._stacks_with = stacks_by_frame(features.roles.stacks)
        may_replace = features.is_traced & ~features.is_freed_by_engine
        may_replace &= is_among(features.sizes, distinct(features.sizes[rows]))
        new_rows = rows_of(may_replace)
        stack_id = features.allocations.stack_id
        self._rows = new_rows[stable_order(stack_id[new_rows])]
        self._stack_id = stack_id[self._rows]

    def line_values(self, line: int) -> Int64Column:
        """Return those with a frame on their stacks, by size and then by age."""
        stacks = self._stacks_with(line)
        first = np.searchsorted(self._stack_id, stacks, "left")
        after = np.searchsorted(self._stack_id, stacks, "right")
        pieces = [self._rows[begin:end] for begin, end in plain_rows(first, after)]
        rows = np.concatenate([self._rows[:0], *pieces])
        features = self._features
        return rows[np.lexsort((features.alloc[rows], features.sizes[rows]))]


def _youngest_in_use(decided: Decided, new_values: Int64Column, row: int) -> int:
    """Return the category of the youngest new value that was made before a row's end.

    It has the row's size and is in use at that end; 0 where there is none.
    """
    features = decided.features
    size = features.sizes[row]
    end = features.end[row]
    sizes = features.sizes[new_values]
    first = int(np.searchsorted(sizes, size, "left"))
    after = int(np.searchsorted(sizes, size, "right"))
    n_earlier = int(np.searchsorted(features.alloc[new_values[first:after]], end))
    begin = first + max(0, n_earlier - _MOST_PASSED_OVER)
    for new_row in new_values[begin : first + n_earlier][::-1].tolist():
        if features.end[new_row] > end:
            return int(decided.category[new_row])
    return 0


def _freed_by_line(decided: Decided) -> Iterator[Proposal]:
    """Follow lines that free one category only.

    A temporary did not live longer than the temporaries of its line.
    """
    features = decided.features
    free_site = features.allocations.free_stack_id
    is_compiled = features.freed_through(Role.COMPILED) & features.is_freed_by_engine
    is_by_program = features.is_freed & (~features.is_freed_by_engine | is_compiled)
    is_by_program &= free_site >= 0
    older = is_by_program & ~features.is_traced & decided.is_open
    if not older.any():
        return
    traced = is_by_program & features.is_traced & is_among(free_site, free_site[older])
    traced_rows = rows_of(traced)
    traced_category = decided.category[traced_rows]
    lifetime = features.end - features.alloc
    for category in categories_with(Trait.FREED_BY_LINE):
        is_category = traced_category == int(category)
        category_rows = traced_rows[is_category]
        other_sites = free_site[traced_rows[~is_category]]
        only_sites = np.setdiff1d(free_site[category_rows], other_sites)
        marked = older & is_among(free_site, only_sites)
        if category is Category.TEMPORARY and len(category_rows):
            marked &= features.end <= lifetime[category_rows].max()
        yield Proposal(marked, category, Evidence.FREE_SITE, _FREED_BY_LINE)


# --- the order

ORDER: tuple[Stage, ...] = (
    user_rules,
    *PROFILED,
    *RECORDED,
    *FACTS,
    *ATTRIBUTES,
    inventory.explain_by_job,
    *LATER,
    _propagate,
    *LIKELY,
)
HOST_ORDER: tuple[Stage, ...] = (user_rules, *HOST_FACTS)

# Every reason by its slug: of facts, of stages, and of frame rules.
REASONS: dict[str, str] = {
    NO_RULE: "nothing was decided",
    LIKELY_ONLY: "it is likely only, and --certain counts that as unknown",
    **dict(fact.reason for fact in ORDER if isinstance(fact, Fact)),
    **repeated_call.REASONS,
    **inventory.REASONS,
    _REPLACED: "pre-existing, freed by a line that had made its replacement of the same size",
    _FREED_BY_LINE: "pre-existing, freed by a line that frees only this category",
}
_FRAME_REASONS = {rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES}


def reason_of(slug: str) -> tuple[str, str]:
    """Return one of our reasons, and the releases of torch it was seen in (empty: any).

    Raises KeyError where there is no such reason.
    """
    return _FRAME_REASONS[slug] if slug in _FRAME_REASONS else (REASONS[slug], "")


@stage
def classify(features: Features, order: tuple[Stage, ...] = ORDER) -> Classification:
    """Classify every allocation of one device."""
    decided = Decided(features)
    for _ in _proposals(decided, order):
        pass
    return decided.result()


def _proposals(decided: Decided, order: tuple[Stage, ...]) -> Iterator[Proposal]:
    for propose in order:
        for proposal in propose(decided):
            decided.add(proposal)
            yield proposal


def opinions(
    features: Features, rows: Int64Column, order: tuple[Stage, ...] = ORDER
) -> Iterator[tuple[int, Proposal]]:
    """Yield what every stage proposes for some allocations: the first about a row is what it is."""
    for proposal in _proposals(Decided(features), order):
        yield from ((row, proposal) for row in rows[proposal.marked[rows]].tolist())
