"""When Python would free a forward's tensors if no graph kept them: an estimate from call paths.

A value that a function computed is taken to be in use until that function's next operation is over:
a call with all that runs inside it, as a call holds its arguments. The last value of a function is
its result, and so a value of its caller. Besides, a function that ends with a sum adds its first
sum; two factors of one expression wait for each other, as does what a line computes twice; a
concatenation may read what earlier blocks returned; caches, and logits that their loss reads, are
part of what the model returns.
"""

import re
from dataclasses import dataclass
from itertools import chain

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    is_among,
    next_of,
    number_groups,
    plain_rows,
    rows_of,
    run_starts,
    unknown_column,
)
from snapconv.hypotheses.line_calls import LineCalls
from snapconv.torch_knowledge.frame_patterns import Role

# Two values of one operation: no function runs between them.
_NONE_BETWEEN = 1 << 30
# Between two lines of a function; there are more to the method of the next class, below its
# __init__.
_MOST_LINES_BETWEEN = 50
# What wraps the forward of a model in transformers 5, which returns an object: callers keep it in a
# name.
_MAKES_OUTPUTS = re.compile(r"transformers/utils/(generic|output_capturing)\.py$")
# Operations that one line repeats for its second operand.
_MOST_REPEATED = 4
# In a network whose later blocks read what earlier ones returned, concatenations read tensors of
# so many sizes.
_LEAST_SIZES = 2


@dataclass(frozen=True, slots=True)
class _Values:
    """The first output of every operation, in their order, one entry each.

    ``rows`` are allocations. ``level``: the frames down to the function that made it, or got it,
    and goes on with the next value. ``is_beside``: the next one is of the same line of that
    function. ``is_output``: an object that it keeps has the value. ``depth``: the frames of its
    path, ``root`` those down to the model's call; 0 outside. ``call``: the calls of the model that
    ended before.
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
        following = np.full(len(self.level), last)
        for level in distinct(self.level).tolist():
            values = rows_of(self.level == level)
            candidates = np.append(rows_of(self.level <= level + difference), last)
            position = np.searchsorted(candidates, values, side="right")
            following[values] = candidates[np.minimum(position, len(candidates) - 1)]
        return following


def ends_without_graph(
    calls: LineCalls, analysis: DeviceAnalysis, rows: Int64Column
) -> Int64Column:
    """Return the event from which each allocation would be free; -1 for what would not be made."""
    features = analysis.features
    n = len(features.alloc)
    span = np.arange(rows.min(initial=n), min(rows.max(initial=-1) + 2, n))
    traced = span[features.is_traced[span]]
    free_event = unknown_column(n)
    free_event[traced] = np.append(features.alloc[traced[1:]], features.n_events)
    is_in_place = features.made_through(Role.IN_PLACE)
    free_event[is_in_place] = -1
    outputs = traced[(features.has_stack & ~is_in_place)[traced]]
    if len(outputs):
        values = _values(calls, analysis, outputs)
        ends = _ends_of_values(analysis, values, is_saved=features.mask(rows)[values.rows])
        alloc = features.alloc[values.rows]
        free_event[values.rows] = at(alloc, ends + 1, features.n_events)
    return free_event[rows]


def _ends_of_values(
    analysis: DeviceAnalysis, values: _Values, *, is_saved: BoolColumn
) -> Int64Column:
    """Return the value whose making is over when each value is free.

    ``is_saved`` marks what a graph kept.
    """
    following = values.next_at(0)
    over = values.next_at(-1)
    ends = _last_reads(values, following, over)
    _keep_operands(analysis, values, ends)
    _keep_joined(analysis, values, ends, over, is_saved)
    return _last_outputs(analysis, values, ends, following, is_saved)


def _last_outputs(
    analysis: DeviceAnalysis,
    values: _Values,
    ends: Int64Column,
    following: Int64Column,
    is_saved: BoolColumn,
) -> Int64Column:
    """Keep inputs, and what objects have, up to the end of a call.

    Caches stay as long, or as long as the logits.
    """
    last = len(ends) - 1
    call = values.call
    is_cache = analysis.features.is_cache[values.rows]
    is_output = is_cache | values.is_output | (values.root == 0)
    call_end = np.searchsorted(call, call, side="right") - 1
    ends = np.where(is_output, np.maximum(ends, call_end), ends)
    is_loss = analysis.is_of_operation("cross_entropy", "log_softmax")[values.rows]
    loss = next_of(rows_of(is_loss), np.arange(len(ends)), last)
    is_logits = ~is_loss & is_saved & (loss <= following)
    is_logits &= values.sizes[loss] == values.sizes
    ends[is_logits | (is_cache & is_among(call, call[is_logits]))] = last
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
    ends_in_sum = (depth[over] == level) & (sizes[over] == sizes)
    is_sum = (depth == level) & is_call & ends_in_sum
    ends[is_sum] = np.maximum(ends, over)[is_sum]
    # An expression multiplies the values of two calls; or a value has two halves, and one is read
    # later.
    next_but_one = following[following]
    is_result = (level[following] == level) & (depth[next_but_one] == level)
    has_halves = sizes == 2 * sizes[next_but_one]
    is_one_line = values.is_beside & values.is_beside[following]
    is_product = (sizes == sizes[next_but_one]) & is_one_line
    is_factor = (depth > level) & is_call & is_result & (has_halves | is_product)
    ends[is_factor] = np.maximum(ends, next_but_one)[is_factor]
    return ends


def _values(calls: LineCalls, analysis: DeviceAnalysis, outputs: Int64Column) -> _Values:
    """Return the first outputs.

    Other outputs of an operation, as the mean of a norm, have another size.
    """
    table = analysis.allocations
    rows = outputs[_are_first(table.stack_id[outputs], table.requested_bytes[outputs])]
    stack = table.stack_id[rows]
    level, is_beside, is_output = _levels(calls, analysis, stack)
    stacks, position = np.unique(stack, return_inverse=True)
    depths = [(len(calls.path(row)), len(calls.model_call(row))) for row in stacks.tolist()]
    depth, root = np.array(depths, np.int64)[position].T
    ends_call = level < root
    n_ended_before = np.cumsum(ends_call) - ends_call
    return _Values(
        rows=rows,
        sizes=table.requested_bytes[rows],
        level=level,
        is_beside=is_beside > 0,
        is_output=(is_output > 0) & (level >= root),
        depth=depth,
        root=root,
        call=n_ended_before,
    )


def _are_first(stack: Int32Column, sizes: Int64Column) -> BoolColumn:
    """Mark in each run of one stack its first output, and those of its size."""
    starts = run_starts(stack)
    first = np.repeat(starts, np.diff(starts, append=len(stack)))
    return np.asarray(sizes == sizes[first])


def _levels(calls: LineCalls, analysis: DeviceAnalysis, stack: Int32Column) -> Int64Column:
    """Return three rows: the level of each value, and the two marks of ``_Paths.between``.

    A pair of stacks that occurs several times is compared once.
    """
    paths = _Paths(calls, analysis, stack)
    first, pair = number_groups(stack[:-1], stack[1:])
    rows = [paths.between(*stacks) for stacks in plain_rows(stack[first], stack[first + 1])]
    rows.append((0, False, False))  # the last value has no next one
    columns: Int64Column = np.array(rows, np.int64).T
    return columns[:, np.append(pair, len(first))]


class _Paths:
    """The paths of some stacks, outermost frame first, with a number for each frame's function.

    ``first``: the depth of the outermost call that began with this stack. Where the stack occurs
    again, that call is made again.
    """

    def __init__(
        self, calls: LineCalls, analysis: DeviceAnalysis, stack: Int32Column
    ) -> None:
        first_values = np.sort(number_groups(stack)[0])
        paths = {number: calls.path(number) for number in stack[first_values].tolist()}
        self.calls = calls
        self.function = _functions(analysis, set(chain.from_iterable(paths.values())))
        self.first: dict[int, int] = {}
        nodes: dict[tuple[int, int], int] = {}
        first_stacks: dict[tuple[int, int], int] = {}
        for number, path in paths.items():
            parent = -1
            for depth, frame in enumerate(path):
                call = (parent, self.function[frame])
                if first_stacks.setdefault(call, number) == number:
                    self.first.setdefault(number, depth)
                parent = nodes.setdefault((parent, frame), len(nodes))

    def between(self, before: int, after: int) -> tuple[int, bool, bool]:
        """Return the level of a value of one stack that is followed by one of another; two marks.

        The marks: one line made both values, and an object that the model returns has the first.
        """
        path = self.calls.path(before)
        next_path = self.calls.path(after)
        if path == next_path:
            return _NONE_BETWEEN, True, False
        n_frames = min(len(path), len(next_path))
        shared = 0
        while shared < n_frames and path[shared] == next_path[shared]:
            shared += 1
        # Two lines of one function: it goes on, unless it is called anew for the next value.
        is_inside = False
        if shared < n_frames:
            is_inside = self.function[path[shared]] == self.function[next_path[shared]]
        first = self.first.get(after, len(next_path))
        level = shared
        if is_inside and first > shared:
            level += 1
        elif not is_inside and first < shared:
            level -= 1
        # What calls a module hands its value on.
        while level and self.calls.is_module_call(path[level - 1]):
            level -= 1
        return level, not is_inside, self._makes_output(path[level:])

    def _makes_output(self, path: tuple[int, ...]) -> bool:
        """Return whether the first frame that calls no module returns an object."""
        for frame in path:
            if not self.calls.is_module_call(frame):
                return bool(_MAKES_OUTPUTS.search(self.calls.file(frame)))
        return False


def _functions(analysis: DeviceAnalysis, frame_ids: set[int]) -> dict[int, int]:
    """Return a number for the function of each frame.

    Classes of one file have methods of one name: lines far apart are of different functions.
    """
    frames = analysis.snapshot.stacks.frames
    lines = dict(enumerate(zip(frames.filenames, frames.names, frames.lines, strict=True)))
    numbers: dict[int, int] = {}
    number = 0
    previous = ("", "", 0)
    for frame in sorted(frame_ids, key=lines.__getitem__):
        line = lines[frame]
        number += line[:2] != previous[:2] or line[2] - previous[2] > _MOST_LINES_BETWEEN
        numbers[frame] = number
        previous = line
    return numbers


def _keep_operands(analysis: DeviceAnalysis, values: _Values, ends: Int64Column) -> None:
    """Keep an operand up to the end of a line that computes it again for the other operand.

    `exp(x - m) / exp(x - m).sum()` begins with the same operations twice: what the first ones made
    waits for the quotient.
    """
    _, key = number_groups(analysis.operation_id[values.rows], values.sizes)
    starts = run_starts(np.cumsum(np.append(0, values.level[:-1] < _NONE_BETWEEN)))
    lengths = np.diff(starts, append=len(key))
    for n_repeated in range(2, _MOST_REPEATED + 1):
        is_long = lengths > 2 * n_repeated
        first = starts[is_long]
        entries = first[:, None] + np.arange(n_repeated)
        is_repeated = (key[entries] == key[entries + n_repeated]).all(axis=1)
        operand = first[is_repeated] + n_repeated - 1
        line_end = (first + lengths[is_long] - 1)[is_repeated]
        ends[operand] = np.maximum(ends[operand], line_end)


def _keep_joined(
    analysis: DeviceAnalysis,
    values: _Values,
    ends: Int64Column,
    over: Int64Column,
    is_saved: BoolColumn,
) -> None:
    """Keep what concatenations read, where they read several sizes, as those of a U-Net do.

    A concatenation reads the value before it; its other bytes are what an earlier block returned.
    The later the concatenation, the earlier that block: the last reads the first value of the size.
    Such a value is an argument of the block that concatenates, and in use to its end.
    """
    sizes = values.sizes
    is_join = _are_joins(analysis, values)
    for joins in grouped(rows_of(is_join), values.call):
        read_bytes = sizes[joins] - sizes[joins - 1]
        # A list that grows is read anew each time: that is no other value.
        reads_previous = read_bytes[1:] == sizes[joins[:-1]]
        read_bytes[1:][reads_previous] = 0
        if len(distinct(read_bytes[read_bytes > 0])) < _LEAST_SIZES:
            continue
        call_start = int(np.searchsorted(values.call, values.call[joins[0]]))
        span = slice(call_start, joins[-1])
        is_waiting = (is_saved & ~is_join)[span]
        is_waiting &= values.level[span] <= values.depth[joins].max()
        for join, n_bytes in plain_rows(joins[::-1], read_bytes[::-1]):
            fits = is_waiting & (sizes[span] == n_bytes)
            earliest = rows_of(fits[: join - call_start])[:1]  # none, or one
            is_waiting[earliest] = False
            earliest += call_start
            ends[earliest] = np.maximum(ends[earliest], over[join])


def _are_joins(analysis: DeviceAnalysis, values: _Values) -> BoolColumn:
    """Mark concatenations that come after another value, but for those of caches."""
    is_join = analysis.is_of_operation("cat")
    is_join &= ~analysis.features.made_through(Role.CACHE_UPDATE)
    is_after = np.append(0, values.level[:-1]) < _NONE_BETWEEN
    return is_join[values.rows] & (values.depth > 0) & is_after
