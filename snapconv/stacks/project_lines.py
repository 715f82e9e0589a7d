"""The lines of the project in a stack: figures of any kind are shown by these lines."""

from collections.abc import Callable
from dataclasses import dataclass

from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_frames import Project


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    """A line of the user's project; ``file_path`` is relative to the project root, ``/`` between."""

    file_path: str
    line_number: int
    function: str

    @property
    def place(self) -> str:
        """The line as an editor takes it: ``net/model.py:35``."""
        return f"{self.file_path}:{self.line_number}"


class ProjectLines:
    """The project's lines of each stack, innermost first; looked up once per stack.

    ``chosen`` picks among the project's frames of a stack: all of them by default.
    """

    def __init__(
        self, stacks: StackTable, project: Project, chosen: Callable[[list[int]], list[int]] = list
    ) -> None:
        self._stacks = stacks
        self._project = project
        self._chosen = chosen
        self._known: dict[int, tuple[SourceLine, ...]] = {}

    def of(self, stack_id: int) -> tuple[SourceLine, ...]:
        """The lines of a stack; none for -1."""
        if stack_id not in self._known:
            frames = self._stacks.frames_of(stack_id).tolist()
            mine = self._chosen([frame for frame in frames if self._project.is_project[frame]])
            self._known[stack_id] = tuple(map(self._line, mine))
        return self._known[stack_id]

    def innermost(self, stack_id: int) -> SourceLine | None:
        """The line of the project that did it, even if in a library that it called."""
        return next(iter(self.of(stack_id)), None)

    def _line(self, frame: int) -> SourceLine:
        frames = self._stacks.frames
        return SourceLine(self._project.relative_paths[frame], int(frames.lines[frame]), frames.names[frame])
