"""The calls of a program's lines, and of its modules, as the stacks of a trace show them."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from snapconv.analysis import DeviceAnalysis
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


class LineCalls:
    """The calls of lines on one device.

    A line is called from its first event to its last without a break.
    """

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self.lines = analysis.lines
        self._python = analysis.facts.roles.python
        self._events = analysis.device.events
        is_alloc = has_code(self._events.action, Action.ALLOC)
        self.n_allocs = np.cumsum(is_alloc, dtype=np.int32)
        self.alloc_events = rows_of(is_alloc)
        self._paths: dict[int, tuple[int, ...]] = {}
        self._marks: dict[tuple[int, ...], BoolColumn] = {}
        self._begins: dict[tuple[int, ...], Int64Column] = {}

    @cached_property
    def _stacks_by_frame(self) -> Callable[[int], Int32Column]:
        """The stacks of a frame; made when it is needed, as a file may have many devices."""
        return stacks_by_frame(self._python)

    def path(self, stack: int) -> tuple[int, ...]:
        """Return the Python frames of a stack, the outermost first."""
        if stack not in self._paths:
            self._paths[stack] = tuple(self._python.frames_of(stack)[::-1].tolist())
        return self._paths[stack]

    def is_module_call(self, frame: int) -> bool:
        """Return whether a frame calls a module's forward."""
        return normal(self._python.frames.filenames[frame]).endswith(_MODULE_FILE)

    def module_call(self, stack: int, *, outermost: bool = False) -> tuple[int, ...]:
        """Return the Python frames down to the call of a stack's innermost module.

        There are none where no module is called.
        """
        path = self.path(stack)
        depths = [depth for depth, frame in enumerate(path) if self.is_module_call(frame)]
        if not depths:
            return ()
        depth = depths[0] if outermost else depths[-1]
        return path[: depth + 1]

    def is_within(self, path: tuple[int, ...]) -> BoolColumn:
        """Mark the stacks that begin with a path, and those that were not recorded.

        The last entry is that of allocations without a stack.
        """
        if path not in self._marks:
            marks = np.zeros(len(self._python) + 1, bool)
            marks[-1] = True
            for stack in self._stacks_by_frame(path[-1]).tolist():
                marks[stack] = self.path(stack)[: len(path)] == path
            self._marks[path] = marks
        return self._marks[path]

    def begins(self, path: tuple[int, ...]) -> Int64Column:
        """Return the first event of every unbroken run of a path's events."""
        if path not in self._begins:
            marks = self.is_within(path)[self._events.stack_id]
            self._begins[path] = rows_of(marks & np.diff(marks, prepend=False))
        return self._begins[path]

    def began_last(self, path: tuple[int, ...], event: int) -> int:
        """Return where the last call of a path before an event began; -1 for none."""
        return int(last_before(self.begins(path), np.array(event)))

    def began(self, path: tuple[int, ...], event: int) -> int:
        """Return the first event of the unbroken run of a path's events that an event ends."""
        is_end = event > 0 and self.is_within(path)[self._events.stack_id[event - 1]]
        return self.began_last(path, event) if is_end else event

    def line_of(self, path: tuple[int, ...]) -> SourceLine | None:
        """Return the project's line of a path: its innermost."""
        return next(filter(None, map(self.lines.of_frame, reversed(path))), None)
