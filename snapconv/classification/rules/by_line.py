"""What the program itself frees, outside of modules and of the engine: by what else its line frees or makes.

A line that gives a variable a new value, the end of a function. For blocks from before the trace.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Reason, Rule, rule
from snapconv.classification.rules.by_free import FREED_BY_LINE
from snapconv.classification.rules.in_forward import FREED_BY_BACKWARD, is_freed_after_own
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.stacks.stack_roles import stacks_by_frame
from snapconv.torch_knowledge.frame_roles import Role

SAME_LINE = Reason(
    "replaced-on-the-same-line",
    "pre-existing, freed by a line that had made its replacement of the same size",
)

# What a program replaces or frees by itself, again and again. Of other categories neither was seen, or, of
# temporary replacements, was not right: a line that makes one may keep the next.
_REPLACED = (Category.ACTIVATION, Category.INPUT, Category.OPTIMIZER_STATE)
_FREED_BY_LINE = (Category.GRADIENT, Category.ACTIVATION, Category.INPUT, Category.TEMPORARY)


# All but 4 of 1,552 values replaced in late recordings of the benchmark need no more; without a limit, the
# work for a line that makes millions would be quadratic.
_MOST_PASSED_OVER = 32


@dataclass(frozen=True, slots=True)
class Replaced:
    """Pre-existing rows that a line freed when it had made another of the size, and those replacements."""

    rows: Int64Column
    replacements: Int64Column


def replaced_on_same_line(features: Features, decided: Decided) -> Replaced:
    """A line that gives a variable a new value makes that first, and then frees the one before."""
    table, stacks = features.allocations, features.roles.stacks
    freed = features.is_freed & ~features.is_freed_by_engine
    rows = np.flatnonzero(~features.is_traced & decided.is_open & freed)
    if not features.phases.free_sites_known or not len(rows):
        return Replaced(rows[:0], rows[:0])
    sizes, width = features.sizes, features.n_events
    by_program = features.is_traced & ~features.is_freed_by_engine
    new = np.flatnonzero(by_program & is_among(sizes, distinct(sizes[rows])))
    new = new[np.argsort(table.stack_id[new], kind="stable")]
    line = features.lines_of(table.free_stack_id[rows])
    stacks_with = stacks_by_frame(stacks)
    found = [np.zeros((2, 0), np.int64)]
    for here in grouped(np.flatnonzero(line >= 0), line):
        made = _of_stacks(new, table.stack_id[new], stacks_with(int(line[here[0]])))
        if not len(made):
            continue
        keys = sizes[made] * width + features.alloc[made]
        made = made[np.argsort(keys)]
        former = rows[here]
        before = np.searchsorted(np.sort(keys), sizes[former] * width + features.end[former]) - 1
        found += _youngest_in_use(features, former, made, before)
    return Replaced(*np.concatenate(found, axis=1))


def _youngest_in_use(
    features: Features, former: Int64Column, made: Int64Column, before: Int64Column
) -> list[NDArray[np.int64]]:
    """Pairs of a former value and the youngest of its size that was made before its end and is in use then.

    ``made`` is in order of size and age, ``before`` the place of the youngest in it. A line that calls a
    module makes and frees much itself: of that so much is passed over.
    """
    pairs = []
    for _ in range(_MOST_PASSED_OVER):
        if not len(former):
            break
        is_there = before >= 0
        former, before = former[is_there], before[is_there]
        is_there = features.sizes[made[before]] == features.sizes[former]
        former, before = former[is_there], before[is_there]
        fits = features.end[made[before]] > features.end[former]
        pairs.append(np.stack((former[fits], made[before[fits]])))
        former, before = former[~fits], before[~fits] - 1
    return pairs


def _of_stacks(rows: Int64Column, stack: NDArray[Any], wanted: Int64Column) -> Int64Column:
    """The rows with one of the wanted stacks, where ``stack`` is that of each row, in order."""
    first, after = (np.searchsorted(stack, wanted, side) for side in ("left", "right"))
    return np.concatenate([rows[begin:end] for begin, end in np.column_stack((first, after)).tolist()])


def _as_its_replacement(category: Category) -> Rule:
    """A replaced block has the category of its replacement."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        found = decided.shared(replaced_on_same_line, features)
        return features.mask(found.rows[decided.category[found.replacements] == category])

    return Rule(f"replaced_{category.label}", SAME_LINE, category, Evidence.FREE_SITE, where)


# --- freed by lines that free only one category


def _freed_by_program(features: Features) -> tuple[BoolColumn, BoolColumn]:
    """What the program frees; and the part of it that a compiled backward frees: it was kept for that."""
    compiled = features.freed_through(Role.COMPILED) & features.is_freed_by_engine
    site = features.allocations.free_stack_id
    return features.is_freed & (~features.is_freed_by_engine | compiled) & (site >= 0), compiled


def _like_others(features: Features, decided: Decided) -> dict[Category, BoolColumn]:
    """Pre-existing rows by the one category that their line frees, if it is only ever one.

    A line that runs in every iteration, `cache = longer` or the end of a function. What it makes and frees
    itself did not live long.
    """
    if not features.phases.free_sites_known:
        return {}
    site, category = features.allocations.free_stack_id, decided.category
    by_program, _ = _freed_by_program(features)
    preexisting = by_program & ~features.is_traced & decided.is_open
    seen = np.flatnonzero(by_program & features.is_traced & is_among(site, site[preexisting]))
    lived, found = features.end - features.alloc, {}
    for which in map(Category, distinct(category[seen]).tolist()):
        is_which = category[seen] == which
        only = np.setdiff1d(site[seen[is_which]], site[seen[~is_which]])
        found[which] = preexisting & is_among(site, only)
        if which == Category.TEMPORARY:
            found[which] &= features.end <= lived[seen[is_which]].max()
    return found


def _freed_like_others(category: Category) -> Rule:
    """Pre-existing, and freed by a line that frees nothing but this category."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        found = decided.shared(_like_others, features).get(category)
        return np.zeros(len(features.alloc), np.bool_) if found is None else found

    return Rule(f"freed_like_{category.label}", FREED_BY_LINE, category, Evidence.FREE_SITE, where)


@rule(FREED_BY_BACKWARD, Category.ACTIVATION, Evidence.FREE_SITE)
def preexisting_freed_by_compiled_backward(features: Features, _: Decided) -> BoolColumn:
    """What a compiled backward frees was kept for it, unless other iterations show otherwise.

    For all that torch.compile makes; the benchmark has one such program, as that is what it can simulate.
    """
    if not features.phases.free_sites_known:
        return np.zeros(len(features.alloc), np.bool_)
    _by_program, compiled = _freed_by_program(features)
    return compiled & ~features.is_traced & is_freed_after_own(features)


BY_LINE: tuple[PipelineRule, ...] = (
    *map(_as_its_replacement, _REPLACED),
    *map(_freed_like_others, _FREED_BY_LINE),
    preexisting_freed_by_compiled_backward,
)
