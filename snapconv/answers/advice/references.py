"""When Python would free the tensors of a forward if no graph kept them: an estimate from call paths.

A value that a function computed is taken to be in use until that function's next operation is over:
a call with all that runs inside it, as a call holds its arguments. The last value of a function is
its result, and so a value of its caller. Besides, a function that ends with a sum adds its first
sum; two factors of one expression wait for each other; a concatenation may read what earlier blocks
returned; caches, and logits that their loss reads, are part of what the model returns.
"""

import re
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.evidence import LineCalls, is_operation
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    distinct,
    grouped,
    is_among,
    next_of,
    plain_rows,
    rows_of,
    unknown_column,
)
from snapconv.stacks.paths import normal
from snapconv.torch_knowledge.frame_patterns import Role

# Two values of one operation: no function runs between them.
_NONE_BETWEEN = 1 << 30
# Between two lines of a function; there are more to the method of the next class, below its
# __init__.
_MOST_LINES_BETWEEN = 50
# What wraps the forward of a model in transformers 5, which returns an object: callers keep it in a
# name.
_MAKES_OUTPUTS = re.compile(r"transformers/utils/(generic|output_capturing)\.py$")
# Of tensors that concatenations read, in a network whose later blocks read what earlier ones
# returned.
_LEAST_SIZES = 2


@dataclass(frozen=True, slots=True)
class _Values:
    """The first output of every operation, in their order, one entry each; ``rows`` are allocations.

    ``level``: the frames down to the function that made it, or got it, and goes on with the next
    value. ``is_beside``: the next one is of the same line of that function. ``is_output``: an
    object that it keeps has the value. ``depth``: the frames of its path, ``root`` those down to
    the model's call; 0 outside. ``call``: the calls of the model that ended before.
    """

    rows: Int64Column
    sizes: Int64Column
    level: Int64Column
    is_beside: BoolColumn
    is_output: BoolColumn
    depth: Int64Column
    root: Int64Column
    call: Int64Column

    def next_at(self, difference: int) -> Int64Column:
        """Return for each value the next one whose level is at most its own plus a difference."""
        last = len(self.level) - 1
        found = np.full(len(self.level), last)
        for level in distinct(self.level).tolist():
            mine = rows_of(self.level == level)
            places = np.append(rows_of(self.level <= level + difference), last)
            found[mine] = places[
                np.minimum(np.searchsorted(places, mine, side="right"), len(places) - 1)
            ]
        return found


def ends_without_graph(
    calls: LineCalls, analysis: DeviceAnalysis, rows: Int64Column
) -> Int64Column:
    """Return the event from which each allocation would be free; -1 for what would not be made."""
    table = analysis.allocations
    features = analysis.features
    n_events = analysis.n_events
    made = np.arange(rows.min(initial=len(table)), min(rows.max(initial=-1) + 2, len(table)))
    made = made[features.is_traced[made]]
    found = unknown_column(len(table))
    found[made] = np.append(table.alloc_event[made[1:]], n_events)
    is_in_place = features.made_through(Role.IN_PLACE)
    found[is_in_place] = -1
    made = made[(table.stack_id[made] >= 0) & ~is_in_place[made]]
    if not len(made):
        return found[rows]
    values = _values(calls, analysis, made)
    is_saved = features.mask(rows)
    following = values.next_at(0)
    over = values.next_at(-1)
    ends = _last_reads(values, following, over)
    _keep_joined(analysis, values, ends, over, is_saved[values.rows])
    ends = _last_outputs(analysis, values, ends, following, is_saved[values.rows])
    found[values.rows] = np.append(table.alloc_event[values.rows], n_events)[ends + 1]
    return found[rows]


def _last_outputs(
    analysis: DeviceAnalysis,
    values: _Values,
    ends: Int64Column,
    following: Int64Column,
    is_saved: BoolColumn,
) -> Int64Column:
    """Keep inputs, and what objects have, up to the end of a call; caches too, or as long as the logits."""
    n = len(ends)
    call = values.call
    sizes = values.sizes
    is_cache = analysis.features.is_cache[values.rows]
    is_output = is_cache | values.is_output | (values.root == 0)
    ends = np.where(
        is_output, np.maximum(ends, np.searchsorted(call, call, side="right") - 1), ends
    )
    is_loss = is_operation(analysis, "cross_entropy", "log_softmax")[values.rows]
    loss = np.minimum(next_of(rows_of(is_loss), np.arange(n), n), n - 1)
    is_logits = ~is_loss & (loss <= following) & (sizes[loss] == sizes) & is_saved
    ends[is_logits | (is_cache & is_among(call, call[is_logits]))] = n - 1
    return ends


def _last_reads(values: _Values, following: Int64Column, over: Int64Column) -> Int64Column:
    """Return the value whose making reads each value last.

    ``following`` is the next one of the same function, ``over`` that function's last.
    """
    level = values.level
    depth = values.depth
    sizes = values.sizes
    ends: Int64Column = following.copy()
    # A function's first sum is read by the sum that it ends with.
    is_call = depth[following] > level
    is_sum = (depth == level) & is_call & (depth[over] == level) & (sizes[over] == sizes)
    # An expression multiplies the values of two calls; or a value has two halves, and one is read
    # later.
    last = following[following]
    is_factor = (depth > level) & is_call & (level[following] == level) & (depth[last] == level)
    is_factor &= (sizes == 2 * sizes[last]) | (
        (sizes == sizes[last]) & values.is_beside & values.is_beside[following]
    )
    for is_read, place in ((is_sum, over), (is_factor, last)):
        ends[is_read] = np.maximum(ends, place)[is_read]
    return ends


def _values(calls: LineCalls, analysis: DeviceAnalysis, made: Int64Column) -> _Values:
    """Return the first outputs; others of one operation, as the mean of a norm, have another size."""
    table = analysis.allocations
    stack = table.stack_id[made]
    size = table.requested_bytes[made]
    is_first = np.append(True, stack[1:] != stack[:-1])
    is_first |= size == size[np.maximum.accumulate(np.where(is_first, np.arange(len(made)), 0))]
    rows = made[is_first]
    stack = stack[is_first].astype(np.int64)
    level, is_beside, is_output = _levels(calls, analysis, stack)
    kinds, kind = np.unique(stack, return_inverse=True)
    paths = [(calls.path(one), calls.module_call(one, outermost=True)) for one in kinds.tolist()]
    depth, root = np.array([(len(path), len(module)) for path, module in paths], np.int64)[kind].T
    call = np.cumsum(np.append(False, level < root)[:-1])
    return _Values(
        rows,
        size[is_first],
        level,
        is_beside > 0,
        (is_output > 0) & (level >= root),
        depth,
        root,
        call,
    )


def _levels(calls: LineCalls, analysis: DeviceAnalysis, stack: Int64Column) -> Int64Column:
    """Return the level of each value, whether one line made it and the next, and whether an object has it."""
    paths = _Paths(calls, analysis, stack)
    key = stack[:-1] * (stack.max(initial=0) + 2) + stack[1:]
    pairs, place = np.unique(key, return_index=True)
    rows = [paths.between(*stack[at : at + 2].tolist()) for at in place.tolist()] + [
        (0, False, False)
    ]
    of_pair: Int64Column = np.array(rows, np.int64).T
    return of_pair[:, np.append(np.searchsorted(pairs, key), len(pairs))]


class _Paths:
    """The paths of some stacks, with a number for the function of each frame.

    ``first``: the depth at which a path was the first of a function's call; met again there, so is
    the call.
    """

    def __init__(self, calls: LineCalls, analysis: DeviceAnalysis, stack: Int64Column) -> None:
        kinds = dict.fromkeys(stack.tolist())
        self.calls = calls
        self.files = analysis.snapshot.stacks.frames.filenames
        self.function = _functions(analysis, {frame for one in kinds for frame in calls.path(one)})
        self.first: dict[int, int] = {}
        nodes: dict[tuple[int, int], int] = {}
        begun: dict[tuple[int, int], int] = {}
        for one in kinds:
            above = -1
            for depth, frame in enumerate(calls.path(one)):
                if begun.setdefault((above, self.function[frame]), one) == one:
                    self.first.setdefault(one, depth)
                above = nodes.setdefault((above, frame), len(nodes))

    def between(self, before: int, after: int) -> tuple[int, bool, bool]:
        """Return what ``_levels`` says of a value of one stack, before one of another."""
        one = self.calls.path(before)
        other = self.calls.path(after)
        function = self.function
        if one == other:
            return _NONE_BETWEEN, True, False
        pairs = enumerate(zip(one, other, strict=False))
        shared = next(
            (depth for depth, (frame, its) in pairs if frame != its), min(len(one), len(other))
        )
        is_inside = (
            shared < min(len(one), len(other)) and function[one[shared]] == function[other[shared]]
        )
        is_new_call = self.first.get(after, len(other)) <= shared - (not is_inside)
        level = shared + (is_inside and not is_new_call) - (is_new_call and not is_inside)
        while level and self.calls.is_module_call(one[level - 1]):
            level -= 1
        below = next((frame for frame in one[level:] if not self.calls.is_module_call(frame)), None)
        is_output = below is not None and bool(_MAKES_OUTPUTS.search(normal(self.files[below])))
        return level, not is_inside, is_output


def _functions(analysis: DeviceAnalysis, used: set[int]) -> dict[int, int]:
    """Return a number for the function of each frame: classes of one file have methods of one name."""
    frames = analysis.snapshot.stacks.frames
    found: dict[int, int] = {}
    line = dict(enumerate(zip(frames.filenames, frames.names, frames.lines, strict=True)))
    number = 0
    before = ("", "", 0)
    for frame in sorted(used, key=line.__getitem__):
        number += line[frame][:2] != before[:2] or line[frame][2] - before[2] > _MOST_LINES_BETWEEN
        found[frame], before = number, line[frame]
    return found


def _keep_joined(
    analysis: DeviceAnalysis,
    values: _Values,
    ends: Int64Column,
    over: Int64Column,
    is_saved: BoolColumn,
) -> None:
    """Keep what concatenations read, where they read several sizes, as those of a U-Net do.

    One reads the value before it, and in the bytes that are left what an earlier block returned:
    the last concatenation the first such value. It is an argument of its block, which holds it to
    the end.
    """
    sizes = values.sizes
    is_join = is_operation(analysis, "cat")[values.rows] & (values.depth > 0)
    is_join &= ~analysis.features.made_through(Role.CACHE_UPDATE)[values.rows]
    is_join &= np.append(0, values.level[:-1]) < _NONE_BETWEEN
    for joins in grouped(rows_of(is_join), values.call):
        rest = sizes[joins] - sizes[joins - 1]
        rest[1:][rest[1:] == sizes[joins[:-1]]] = 0  # a list that grows is read anew each time
        if len(distinct(rest[rest > 0])) < _LEAST_SIZES:
            continue
        span = slice(int(np.searchsorted(values.call, values.call[joins[0]])), joins[-1])
        is_waiting = (is_saved & ~is_join)[span] & (values.level[span] <= values.depth[joins].max())
        for join, n_bytes in plain_rows(joins[::-1], rest[::-1]):
            fits = is_waiting & (sizes[span] == n_bytes)
            earliest = rows_of(fits[: join - span.start])[:1]
            is_waiting[earliest] = False
            ends[span][earliest] = np.maximum(ends[span][earliest], over[join])
