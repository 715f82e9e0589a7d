"""Weights that a call of the program replaces by what it has just computed on another line.

``normed = w / w.norm()`` and, some lines later, ``self.w.data = normed``: the one frees no weight, the other
makes nothing. So do layers that take a part out of their weight when they are built.
"""

import re
from collections.abc import Callable
from functools import cache

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.columns import BoolColumn, EventColumn, Int64Column, run_starts
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import is_python, normal
from snapconv.torch_knowledge.frame_roles import Role

# In these a module's attribute is set, on behalf of the line that sets it.
_OF_TORCH = re.compile(r"(^|/)torch/")


def replacements_of_weights(features: Features, decided: Decided) -> BoolColumn:
    """What replaced a known weight, what replaced that, and so on."""
    found = np.zeros(len(features.alloc), np.bool_)
    if not features.phases.free_sites_known:
        return found
    candidates = np.flatnonzero(features.is_traced & decided.is_open)
    # What was placed and is replaced before it has run counts as temporary.
    weights = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT)
    freed = np.flatnonzero(features.is_freed & (weights | features.mask(candidates)))
    if not (len(candidates) and weights[freed].any()):
        return found
    pairs = _pairs(features, freed, candidates)
    is_same = _same_call(features.roles.stacks)
    is_weight = weights.tolist()
    sites = features.allocations.free_stack_id.tolist()
    makers = features.allocations.stack_id.tolist()
    for former, new in pairs.tolist():
        if is_weight[former] and is_same(sites[former], makers[new]):
            is_weight[new] = found[new] = True
    return found


def _pairs(features: Features, freed: Int64Column, candidates: Int64Column) -> Int64Column:
    """Rows of a block that is freed and of its replacement, ``(n, 2)`` in the order of the frees.

    The replacement is the only one of its size that was made since the same code freed such a block, or since
    the forward or backward before. What is no longer in use was called temporary before.
    """
    sizes, alloc, site = features.sizes, features.alloc, features.allocations.free_stack_id
    candidates = candidates[np.lexsort((alloc[candidates], sizes[candidates]))]
    freed = freed[np.lexsort((features.end[freed], site[freed], sizes[freed]))]
    size, at_free = sizes[freed], features.end[freed]
    since = np.append(at_free[:1], at_free[:-1])
    since[np.union1d(run_starts(size), run_starts(site[freed]))] = -1
    # A candidate's place by size and event; sizes are numbered, so that both fit into 64 bits.
    known, number = np.unique(sizes[candidates], return_inverse=True)
    step = np.int64(features.n_events + 1)
    places = number * step + alloc[candidates]
    its_number = np.minimum(np.searchsorted(known, size), len(known) - 1)
    last = np.searchsorted(places, its_number * step + at_free) - 1
    new, before = candidates[last], candidates[np.maximum(last - 1, 0)]
    fits = (last >= 0) & (sizes[new] == size) & _in_one_go(features, new, at_free)
    is_alone = (last == 0) | (sizes[before] != size) | (alloc[before] < since)
    is_alone |= ~_in_one_go(features, before, at_free)
    rows = np.flatnonzero(fits & is_alone)
    rows = rows[np.argsort(at_free[rows], kind="stable")]
    return np.column_stack((freed[rows], new[rows]))


def _in_one_go(features: Features, rows: Int64Column, until: EventColumn) -> BoolColumn:
    """Neither forward nor backward comes between the alloc of these rows and these events."""
    return np.asarray(np.minimum(features.next_forward, features.next_backward)[rows] > until)


def _same_call(stacks: StackTable) -> Callable[[int, int], bool]:
    """What tells whether one stack frees in the function in which another one allocates, in the same call.

    What the function makes by calling other code of the program counts only where it frees on that very line.
    """
    names, files = stacks.frames.names, [normal(name) for name in stacks.frames.filenames]

    @cache
    def python_frames(stack_id: int) -> tuple[int, ...]:
        """Outermost first."""
        return tuple(frame for frame in stacks.frames_of(stack_id)[::-1].tolist() if is_python(files[frame]))

    @cache
    def is_same(site: int, maker: int) -> bool:
        freeing, making = python_frames(site), python_frames(maker)
        depth = len(freeing) - 1
        while depth >= 0 and _OF_TORCH.search(files[freeing[depth]]):
            depth -= 1
        if depth < 0 or len(making) <= depth or freeing[:depth] != making[:depth]:
            return False
        here, there = freeing[depth], making[depth]
        if (names[here], files[here]) != (names[there], files[there]):
            return False
        return here == there or all(_OF_TORCH.search(files[frame]) for frame in making[depth + 1 :])

    return is_same
