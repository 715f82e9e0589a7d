"""The order of the classification: facts first, then the inventory of the job, then what is like others.

The first stage that marks an allocation decides. An allocation that none marks stays ``unknown``.
"""

from collections.abc import Iterator

import numpy as np

from snapconv.classification import inventory
from snapconv.classification.categories import NO_RULE, Category, Evidence, Trait, categories_with
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
    """Propose what lines show whose other memory is known: the line that frees it, or makes its next value.

    It comes last of what is certain, and never feeds the inventory.
    """
    if decided.features.phases.free_sites_known:
        yield from _replaced(decided)
        yield from _freed_by_line(decided)


def _replaced(decided: Decided) -> Iterator[Proposal]:
    """Follow lines that give a variable a new value: they make it first, then free the one before."""
    features = decided.features
    table = decided.features.allocations
    rows = rows_of(
        ~features.is_traced & decided.is_open & features.is_freed & ~features.is_freed_by_engine
    )
    if not len(rows):
        return
    found = np.zeros(len(features.alloc), np.int8)
    new = features.is_traced & ~features.is_freed_by_engine
    new &= is_among(features.sizes, distinct(features.sizes[rows]))
    line = features.lines_of(table.free_stack_id)
    stacks_with = stacks_by_frame(features.roles.stacks)
    made = rows_of(new)
    made = made[stable_order(table.stack_id[made])]
    for here in grouped(rows[line[rows] >= 0], line):
        wanted = stacks_with(int(line[here[0]]))
        first, after = (
            np.searchsorted(table.stack_id[made], wanted, side) for side in ("left", "right")
        )
        pieces = plain_rows(first, after)
        of_line = np.concatenate([made[:0], *(made[begin:end] for begin, end in pieces)])
        of_line = of_line[np.lexsort((features.alloc[of_line], features.sizes[of_line]))]
        for row in here.tolist():
            found[row] = _youngest_in_use(decided, of_line, row)
    for category in categories_with(Trait.REPLACED):
        yield Proposal(found == int(category), category, Evidence.FREE_SITE, _REPLACED)


def _youngest_in_use(decided: Decided, made: Int64Column, row: int) -> int:
    """Return the category of the youngest of a row's size that was made before its end and is in use then."""
    features = decided.features
    size = features.sizes[row]
    end = features.end[row]
    first, last = (
        int(np.searchsorted(features.sizes[made], size, side)) for side in ("left", "right")
    )
    place = first + int(np.searchsorted(features.alloc[made[first:last]], end))
    for other in made[max(first, place - _MOST_PASSED_OVER) : place][::-1].tolist():
        if features.end[other] > end:
            return int(decided.category[other])
    return 0


def _freed_by_line(decided: Decided) -> Iterator[Proposal]:
    """Follow lines that free one category only; of temporaries, none that lived longer than its own."""
    features = decided.features
    site = decided.features.allocations.free_stack_id
    category = decided.category
    compiled = features.freed_through(Role.COMPILED) & features.is_freed_by_engine
    by_program = features.is_freed & (~features.is_freed_by_engine | compiled) & (site >= 0)
    older = by_program & ~features.is_traced & decided.is_open
    if not older.any():
        return
    seen = rows_of(by_program & features.is_traced & is_among(site, site[older]))
    lived = features.end - features.alloc
    for which in categories_with(Trait.FREED_BY_LINE):
        is_which = category[seen] == int(which)
        only = np.setdiff1d(site[seen[is_which]], site[seen[~is_which]])
        where = older & is_among(site, only)
        if which is Category.TEMPORARY and is_which.any():
            where &= features.end <= lived[seen[is_which]].max()
        yield Proposal(where, which, Evidence.FREE_SITE, _FREED_BY_LINE)


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
    **inventory.REASONS,
    _REPLACED: "pre-existing, freed by a line that had made its replacement of the same size",
    _FREED_BY_LINE: "pre-existing, freed by a line that frees only this category",
}
_OF_FRAMES = {rule.slug: (rule.reason, rule.seen) for rule in FRAME_RULES}


def reason_of(slug: str) -> tuple[str, str]:
    """Return one of our reasons, and the releases of torch it was seen in (empty: any), or KeyError."""
    return _OF_FRAMES[slug] if slug in _OF_FRAMES else (REASONS[slug], "")


@stage
def classify(features: Features, order: tuple[Stage, ...] = ORDER) -> Classification:
    """Classify every allocation of one device."""
    decided = Decided(features)
    for _ in _proposals(decided, order):
        pass
    return decided.result()


def _proposals(decided: Decided, order: tuple[Stage, ...]) -> Iterator[Proposal]:
    for one in order:
        for proposal in one(decided):
            decided.add(proposal)
            yield proposal


def opinions(
    features: Features, rows: Int64Column, order: tuple[Stage, ...] = ORDER
) -> Iterator[tuple[int, Proposal]]:
    """Yield what every stage proposes for some allocations: the first about a row is what it is."""
    for proposal in _proposals(Decided(features), order):
        yield from ((row, proposal) for row in rows[proposal.where[rows]].tolist())
