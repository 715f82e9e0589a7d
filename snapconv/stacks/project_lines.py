"""The project's source lines in a stack; reports group by them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # texts without an analysis have names of lines too
    from snapconv.snapshot.stack_table import StackTable
    from snapconv.stacks.project_frames import Project

_Item = TypeVar("_Item")

# The two kinds of memory that no line of the project made, as every answer calls them.
LIBRARY_ONLY, NO_STACK = "library code only", "no stack recorded"


@dataclass(frozen=True, slots=True, order=True)
class SourceLine:
    """A line of the user's project; ``file_path`` is relative to its root, with ``/`` between."""

    file_path: str
    line_number: int
    function: str

    @property
    def place(self) -> str:
        """The line as an editor takes it: ``net/model.py:35``."""
        return f"{self.file_path}:{self.line_number}"


def line_values(line: SourceLine | None) -> dict[str, object]:
    """Return a line as JSON-ready values.

    All are None for memory that no line of the project made.
    """
    if line is None:
        return {"file": None, "line": None, "function": None}
    return {"file": line.file_path, "line": line.line_number, "function": line.function}


# A report shows so many lines from each end of a stack: more of a recursion says nothing new, and
# is repeated for every entry.
MAX_LINES_OF_AN_END = 64


class ProjectLines:
    """The project's lines of each stack, innermost first; looked up once per stack.

    Of many lines those at both ends; ``cut_stacks`` are those looked up that have more. ``chosen``
    picks among the project's frames of a stack: all of them by default.
    """

    def __init__(
        self,
        stacks: "StackTable",
        project: "Project",
        chosen: Callable[[list[int]], list[int]] = list,
    ) -> None:
        self._stacks = stacks
        self._project = project
        self._chosen = chosen
        self._lines_of_stacks: dict[int, tuple[SourceLine, ...]] = {}
        self._line = cache(partial(_line_of, stacks, project))
        self.cut_stacks: set[int] = set()

    def of(self, stack_id: int) -> tuple[SourceLine, ...]:
        """Return the lines of a stack; none for -1."""
        if stack_id not in self._lines_of_stacks:
            frames = self._stacks.frames_of(stack_id)
            project_frames = self._chosen(frames[self._project.is_project[frames]].tolist())
            shown = both_ends(project_frames, MAX_LINES_OF_AN_END)
            if len(shown) < len(project_frames):
                self.cut_stacks.add(stack_id)
            self._lines_of_stacks[stack_id] = tuple(map(self._line, shown))
        return self._lines_of_stacks[stack_id]

    def innermost(self, stack_id: int) -> SourceLine | None:
        """Return the project's line nearest to the allocation or call."""
        return next(iter(self.of(stack_id)), None)

    def line_or_reason(self, stack_id: int) -> SourceLine | str:
        """Return the innermost line; where there is none, the reason."""
        line = self.innermost(stack_id)
        if line is not None:
            return line
        return LIBRARY_ONLY if self.has_frames(stack_id) else NO_STACK

    def place_of(self, stack_id: int) -> tuple[str, int, str]:
        """Return file, line and function of the innermost line.

        Where there is none, the reason, -1 and "".
        """
        line = self.line_or_reason(stack_id)
        if isinstance(line, str):
            return line, -1, ""
        return line.file_path, line.line_number, line.function

    def has_frames(self, stack_id: int) -> bool:
        """Return whether a stack was recorded."""
        return stack_id >= 0 and bool(len(self._stacks.frames_of(stack_id)))

    def of_frame(self, frame: int) -> SourceLine | None:
        """Return the line of a frame; None where it is not the project's, and for -1 or less."""
        if frame < 0 or not self._project.is_project[frame]:
            return None
        return self._line(frame)


def _line_of(stacks: "StackTable", project: "Project", frame: int) -> SourceLine:
    frames = stacks.frames
    return SourceLine(
        project.relative_paths[frame], int(frames.lines[frame]), frames.names[frame]
    )


def both_ends(items: Sequence[_Item], n_of_an_end: int) -> Sequence[_Item]:
    """Return the first and the last items, without those in the middle where there are more."""
    if len(items) <= 2 * n_of_an_end:
        return items
    return (*items[:n_of_an_end], *items[len(items) - n_of_an_end :])
