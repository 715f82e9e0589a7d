"""Lines of a program that make one block for every gradient between two backwards of an iteration.

Fast weights, as meta-learning computes them from weights and gradients. They are neither batches nor results
of a module.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.classification.features import Features, at
from snapconv.classification.rule import Decided
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.phases.trace_phases import Phase

# A line that makes blocks of one size may as well make batches.
_LEAST_SIZES = 2


@dataclass(frozen=True, slots=True)
class FunctionalUpdates:
    """One bool per allocation.

    ``computed``: made by a line that computes one for every gradient, and part of the graph of a later
    backward. ``inner``: the results of backwards that such a line works on; ``differentiated``: those of
    them that a later backward goes through. ``in_no_graph``: made by such a line, and no backward is seen to
    go through it.
    """

    computed: BoolColumn
    inner: BoolColumn
    differentiated: BoolColumn
    in_no_graph: BoolColumn


def functional_updates(features: Features, _: Decided) -> FunctionalUpdates:
    """Find the lines, by the sizes of what they make and by what frees that."""
    outlives = outlives_backward(features)
    results = outlives & ~features.is_freed_by_engine
    rows = _candidates(features, distinct(features.sizes[results]))
    run, stack = features.alloc_run_last, features.allocations.stack_id
    runs_gone_through = distinct(run[outlives & features.is_freed_by_engine & _in_later_run(features)])
    is_gone_through = is_among(run[rows], runs_gone_through)
    by_graph = distinct(stack[rows][features.is_freed_by_engine[rows]])
    computed = rows[is_among(stack[rows], by_graph) | is_gone_through]
    inner = distinct(run[computed])
    differentiated = inner[is_among(inner, runs_gone_through)]
    rest = rows[~is_among(stack[rows], stack[computed])]
    return FunctionalUpdates(
        features.mask(computed) & features.reaches_backward,
        outlives & is_among(run, inner),
        outlives & is_among(run, differentiated),
        features.mask(rest),
    )


def outlives_backward(features: Features) -> BoolColumn:
    """Made by the engine, and there when that backward is over."""
    made = features.by_engine & (features.alloc_phase == Phase.BACKWARD)
    return np.asarray(made & (features.end > features.alloc_run_end))


def _in_later_run(features: Features) -> BoolColumn:
    return np.asarray(features.end > features.alloc_run_last)


def _candidates(features: Features, as_large: Int64Column) -> Int64Column:
    """What lines outside of modules compute after a backward and before another of the same iteration.

    Of lines that make blocks of several sizes, all of them as large as results of a backward.
    """
    after = at(features.phases.phase, features.alloc) == Phase.BACKWARD
    same = at(features.phases.iteration, features.next_backward, -1) == features.iteration
    found = features.outside & ~features.from_nothing & after & same
    found &= (features.alloc > features.alloc_run_end) & (features.end > features.alloc_run_last)
    rows = np.flatnonzero(found & features.has_stack)
    _, line = np.unique(features.allocations.stack_id[rows], return_inverse=True)
    sizes = features.sizes[rows]
    all_as_large = np.bincount(line, ~is_among(sizes, as_large)) == 0
    n_sizes = _different_of_group(line, sizes, n_groups=len(all_as_large))
    return np.asarray(rows[(all_as_large & (n_sizes >= _LEAST_SIZES))[line]])


def _different_of_group(group: Int64Column, values: Int64Column, *, n_groups: int) -> Int64Column:
    """How many different values each group has."""
    order = np.lexsort((values, group))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(group[order]) != 0) | (np.diff(values[order]) != 0)
    return np.bincount(group[order[is_new]], minlength=n_groups)
