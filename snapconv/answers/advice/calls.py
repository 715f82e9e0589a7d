"""Calls of source lines in a trace: the Python frames of stacks, and when the call of a line began."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import BoolColumn, Int64Column, has_code
from snapconv.snapshot.event_table import Action
from snapconv.stacks.paths import is_python, normal
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.stacks.stack_roles import stacks_by_frame

_MODULE_FILE = "torch/nn/modules/module.py"


class LineCalls:
    """The calls of lines on one device: a line is called from its first event to its last without a break."""

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self._stacks, self._events = analysis.snapshot.stacks, analysis.device.events
        self._files = self._stacks.frames.filenames  # looked at as they are needed: a file has many devices
        self.is_alloc = has_code(self._events.action, Action.ALLOC)
        self.n_allocs = np.cumsum(self.is_alloc, dtype=np.int64)
        self.alloc_events = np.flatnonzero(self.is_alloc)
        self._paths: dict[int, tuple[int, ...]] = {}
        self._marks: dict[tuple[int, ...], BoolColumn] = {}

    @cached_property
    def _with_frame(self) -> Callable[[int], Int64Column]:
        """The stacks of a frame; made when it is needed, as a file may have many devices."""
        return stacks_by_frame(self._stacks)

    def path(self, stack: int) -> tuple[int, ...]:
        """Return the Python frames of a stack, the outermost first."""
        if stack not in self._paths:
            frames = self._stacks.frames_of(stack)[::-1].tolist()
            self._paths[stack] = tuple(frame for frame in frames if is_python(self._files[frame]))
        return self._paths[stack]

    def is_module_call(self, frame: int) -> bool:
        """Return whether a frame calls a module's forward."""
        return normal(self._files[frame]).endswith(_MODULE_FILE)

    def is_within(self, path: tuple[int, ...]) -> BoolColumn:
        """Mark the stacks that begin with a path, and those that were not recorded (at the end: of none)."""
        if path not in self._marks:
            marks = np.zeros(len(self._stacks) + 1, np.bool_)
            marks[-1] = True
            for stack in self._with_frame(path[-1]).tolist():
                marks[stack] = self.path(stack)[: len(path)] == path
            self._marks[path] = marks
        return self._marks[path]

    def began(self, path: tuple[int, ...], event: int) -> int:
        """Return the first event of the unbroken run of a path's events that an event ends."""
        marks, chunk = self.is_within(path), 1024
        while event > 0:
            first = max(event - chunk, 0)
            outside = np.flatnonzero(~marks[self._events.stack_id[first:event]])
            if len(outside):
                return first + int(outside[-1]) + 1
            event, chunk = first, chunk * 2
        return 0

    def begins(self, path: tuple[int, ...]) -> Int64Column:
        """Return the first event of every unbroken run of a path's events."""
        marks = self.is_within(path)[self._events.stack_id]
        return np.flatnonzero(marks & ~np.concatenate(([False], marks[:-1])))

    def line_of(self, path: tuple[int, ...], lines: ProjectLines) -> SourceLine | None:
        """Return the project's line of a path: its innermost."""
        return next((line for frame in reversed(path) if (line := lines.of_frame(frame))), None)

    def alloc_after(self, event: int) -> int:
        """Return the first event after this one that allocates; the number of events where none does."""
        place = int(np.searchsorted(self.alloc_events, event, side="right"))
        return int(self.alloc_events[place]) if place < len(self.alloc_events) else len(self._events)
