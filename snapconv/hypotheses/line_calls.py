"""The calls of a program's lines, and of its modules, as the stacks of a trace show them."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    has_code,
    last_before,
    rows_of,
)
from snapconv.snapshot.event_table import Action
from snapconv.stacks.paths import normal
from snapconv.stacks.project_lines import SourceLine
from snapconv.stacks.stack_roles import stacks_by_frame

_MODULE_FILE = "torch/nn/modules/module.py"
# Python frames from the outermost inwards, down to that of a call.
CallPath = tuple[int, ...]


class LineCalls:
    """The calls of lines on one device: the one table from which detectors take them.

    A line is called from its first event to its last without a break. ``n_allocs`` counts the
    allocations up to each event; frees with the same count are one burst.
    """

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self.lines = analysis.lines
        self._table = analysis.allocations
        self._python = analysis.facts.roles.python
        self._events = analysis.device.events
        is_alloc = has_code(self._events.action, Action.ALLOC)
        self.n_allocs = np.cumsum(is_alloc, dtype=np.int32)
        self.alloc_events = rows_of(is_alloc)
        self._paths: dict[int, CallPath] = {}
        self._marks: dict[CallPath, BoolColumn] = {}
        self._begins: dict[CallPath, Int64Column] = {}

    @cached_property
    def _stacks_by_frame(self) -> Callable[[int], Int32Column]:
        """The stacks of a frame; made when it is needed, as a file may have many devices."""
        return stacks_by_frame(self._python)

    @cached_property
    def burst(self) -> Int64Column:
        """The burst of frees of each allocation; -1 for those that the trace does not free."""
        return at(self.n_allocs, self._table.freed_event, -1).astype(np.int64)

    def next_alloc(self, event: int) -> int:
        """Return the first allocation's event after an event; the number of events for none."""
        return int(at(self.alloc_events, self.n_allocs[event], len(self._events)))

    def path(self, stack: int) -> CallPath:
        """Return the Python frames of a stack, the outermost first."""
        if stack not in self._paths:
            self._paths[stack] = tuple(self._python.frames_of(stack)[::-1].tolist())
        return self._paths[stack]

    def file(self, frame: int) -> str:
        """Return the file of a frame, with slashes."""
        return normal(self._python.frames.filenames[frame])

    def is_module_call(self, frame: int) -> bool:
        """Return whether a frame calls a module's forward."""
        return self.file(frame).endswith(_MODULE_FILE)

    def module_call(self, stack: int) -> CallPath:
        """Return the path to the call of a stack's innermost module; empty for none."""
        path = self.path(stack)
        depth = len(path)
        while depth and not self.is_module_call(path[depth - 1]):
            depth -= 1
        return path[:depth]

    def model_call(self, stack: int) -> CallPath:
        """Return the path to the call of a stack's outermost module; empty for none."""
        path = self.path(stack)
        for depth, frame in enumerate(path, 1):
            if self.is_module_call(frame):
                return path[:depth]
        return ()

    def model_line(self, stack: int) -> SourceLine | None:
        """Return the project's line that calls a stack's outermost module, or its forward()."""
        return self.line_of(self.outside_forward(self.model_call(stack)))

    def outside_forward(self, path: CallPath) -> CallPath:
        """Return the part of a path outside of functions called forward; all of it without one.

        A program may call a model's forward() itself.
        """
        names = self._python.frames.names
        depths = (depth for depth, frame in enumerate(path) if names[frame] == "forward")
        return path[: next(depths, len(path))]

    def is_within(self, path: CallPath) -> BoolColumn:
        """Mark the stacks that begin with a path, and those that were not recorded.

        The last entry is that of allocations without a stack.
        """
        if path not in self._marks:
            marks = np.zeros(len(self._python) + 1, bool)
            marks[-1] = True
            ends = self._python.offsets[1:]
            stacks = self._stacks_by_frame(path[-1])
            stacks = stacks[np.diff(self._python.offsets)[stacks] >= len(path)]
            entries = ends[stacks][:, None] - np.arange(1, len(path) + 1)
            marks[stacks] = (self._python.frame_ids[entries] == path).all(axis=1)
            self._marks[path] = marks
        return self._marks[path]

    def made_within(self, path: CallPath) -> BoolColumn:
        """Mark the allocations that calls of a path made, and those without a stack."""
        return self.is_within(path)[self._table.stack_id]

    def begins(self, path: CallPath) -> Int64Column:
        """Return the first event of every unbroken run of a path's events."""
        if path not in self._begins:
            marks = self.is_within(path)[self._events.stack_id]
            self._begins[path] = rows_of(marks & np.diff(marks, prepend=False))
        return self._begins[path]

    def began_last(self, path: CallPath, event: int) -> int:
        """Return where the last call of a path before an event began; -1 for none."""
        return int(last_before(self.begins(path), np.array(event)))

    def began(self, path: CallPath, event: int) -> int:
        """Return the first event of the unbroken run of a path's events that an event ends."""
        is_end = event > 0 and self.is_within(path)[self._events.stack_id[event - 1]]
        return self.began_last(path, event) if is_end else event

    def line_of(self, path: CallPath) -> SourceLine | None:
        """Return the project's line of a path: its innermost."""
        return next(filter(None, map(self.lines.of_frame, reversed(path))), None)
