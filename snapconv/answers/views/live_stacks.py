"""What is live at a moment by stack: the bytes of every distinct stack, for profiles and flame graphs."""

import re
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.category_totals import codes_with_likely, label_with_likely
from snapconv.answers.moments import FoundMoment
from snapconv.columns import sums_by
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.paths import is_native
from snapconv.stacks.project_frames import Project

NO_STACK = "[no stack recorded]"
# With these the allocator's hook walks the stack (torch/csrc/profiler/, torch/csrc/cuda/memory_snapshot.cpp).
_OF_THE_WALK = re.compile(r"torch::(unwind::|CapturedTraceback::gather|cuda::.*::gather)")


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A frame: ``path`` is as a person reads it, ``filename`` as recorded; ``line`` is 0 if not known."""

    function: str
    filename: str
    path: str
    line: int

    @property
    def label(self) -> str:
        """Function, file and line in one text."""
        where = f"{self.path}:{self.line}" if self.line else self.path
        return f"{self.function} ({where})" if where not in ("", "??") else self.function


@dataclass(frozen=True, slots=True)
class LiveStack:
    """The memory of a stack and a category, what is likely apart; ``frames`` has rows, outermost first."""

    frames: tuple[int, ...]
    category: str
    block_bytes: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class LiveStacks:
    """All that is live at a moment of a device, largest first; it sums to the allocated bytes."""

    device: int
    moment: str
    time_us: int | None
    frames: tuple[StackFrame, ...]
    stacks: tuple[LiveStack, ...]

    @property
    def total_bytes(self) -> int:
        """The allocated bytes."""
        return sum(stack.block_bytes for stack in self.stacks)


def find_live_stacks(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    cpp_frames: bool = True,
) -> LiveStacks:
    """Sum what is live just after a moment; stacks that differ in frames left out become one."""
    table, category = analysis.allocations, codes_with_likely(analysis.classification)
    rows = np.flatnonzero(table.live_at(moment.event))
    pairs, group = np.unique(
        np.stack((table.stack_id[rows], category[rows])).astype(np.int64), axis=1, return_inverse=True
    )
    group = group.reshape(-1)
    n_bytes = sums_by(group, table.block_bytes[rows], pairs.shape[1]).tolist()
    counts = np.bincount(group, minlength=pairs.shape[1]).tolist()
    frames = _Frames(analysis.snapshot, analysis.project, cpp_frames=cpp_frames)
    found: dict[tuple[tuple[int, ...], str], tuple[int, int]] = {}
    for stack, of, size, n in zip(pairs[0].tolist(), pairs[1].tolist(), n_bytes, counts, strict=True):
        key = (frames.of_stack(stack), label_with_likely(of))
        before = found.get(key, (0, 0))
        found[key] = (before[0] + size, before[1] + n)
    stacks = (LiveStack(*key, *sums) for key, sums in found.items())
    times = analysis.device.events.time_us
    return LiveStacks(
        device=analysis.device.device,
        moment=moment.name,
        time_us=None if times is None or moment.event < 0 else int(times[moment.event]),
        frames=tuple(frames.used),
        stacks=tuple(sorted(stacks, key=lambda stack: -stack.block_bytes)),
    )


class _Frames:
    """The frames that are used, numbered as they come."""

    def __init__(self, snapshot: Snapshot, project: Project, *, cpp_frames: bool) -> None:
        self.used: list[StackFrame] = []
        self._stacks, self._project, self._cpp_frames = snapshot.stacks, project, cpp_frames
        self._rows: dict[int, int] = {}

    def of_stack(self, stack_id: int) -> tuple[int, ...]:
        """Return the rows of a stack's frames, outermost first."""
        files = self._stacks.frames.filenames
        names = self._stacks.frames.names
        ids = self._stacks.frames_of(stack_id).tolist()
        walked = takewhile(lambda i: is_native(files[i]) and _OF_THE_WALK.match(names[i]), ids)
        ids = ids[len(list(walked)) :][::-1]
        shown = [i for i in ids if self._cpp_frames or not is_native(files[i])]
        return tuple(map(self._row, shown)) or (self._row(-1),)

    def _row(self, frame_id: int) -> int:
        if frame_id not in self._rows:
            self._rows[frame_id] = len(self.used)
            frames = self._stacks.frames
            self.used.append(
                StackFrame(NO_STACK, "", "", 0)
                if frame_id < 0
                else StackFrame(
                    frames.names[frame_id],
                    frames.filenames[frame_id],
                    self._project.relative_paths[frame_id],
                    int(frames.lines[frame_id]),
                )
            )
        return self._rows[frame_id]
