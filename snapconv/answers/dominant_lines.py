"""Where one or two lines of the project have most of the peak: which ``--include`` would give more lines.

A program that passes its model to a library has one line, ``trainer.train()``. Its layers are separated
by the lines of the package that defines the model.
"""

import posixpath
from collections.abc import Iterator, Sequence

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column, sums_by
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import installed_part, is_generated, is_library, is_python, normal
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import innermost_frames
from snapconv.units import format_share

_MOST_LINES = 2
# Of the bytes at the peak: the least share of these lines for a note, and of the package.
_MOST, _LEAST_GAIN = 0.5, 0.125
# The packages with most bytes; each costs a pass over all frames.
_MOST_TRIED = 8
# Their frames are in every stack, and distinguish operations, not layers.
_NEVER = ("torch", "functorch", "triton")


def dominant_lines_note(
    stacks: StackTable, project: Project, allocations: AllocationTable, live: BoolColumn, device: int
) -> Iterator[Note]:
    """Name the package whose lines would split the memory of one or two lines of the project."""
    if not len(stacks):
        return
    stack_ids, inverse = np.unique(allocations.stack_id[live], return_inverse=True)
    n_bytes = sums_by(inverse.reshape(-1), allocations.block_bytes[live], len(stack_ids))
    total = int(n_bytes.sum())
    lines, before = _largest_lines(stacks, project.is_project, stack_ids, n_bytes)
    is_library_already = any(installed_part(normal(stacks.frames.filenames[line])) for line in lines)
    if before <= _MOST * total or is_library_already:
        return
    gains: dict[str, int] = {}
    for package, frames in _packages(stacks, project, stack_ids, n_bytes):
        gain = before - _largest_lines(stacks, project.is_project | frames, stack_ids, n_bytes)[1]
        if gain >= _LEAST_GAIN * total:
            gains[package] = gain
    if gains:
        where = "one line" if len(lines) == 1 else "two lines"
        yield Note(
            "dominant-lines",
            f"{format_share(before, total)} of the peak is on {where} of the project that calls a "
            f"library: --include {_narrowest(gains)} counts its lines too",
            device,
        )


def _narrowest(gains: dict[str, int]) -> str:
    """The package within a package, if it has half the effect: models, without their helpers."""
    enough = [package for package, gain in gains.items() if 2 * gain >= max(gains.values())]
    return max(enough, key=lambda package: package.count("/"))


def _largest_lines(
    stacks: StackTable, is_project: BoolColumn, stack_ids: Int32Column, n_bytes: Int64Column
) -> tuple[list[int], int]:
    """The frames whose lines have most bytes, and the bytes on them together."""
    frame = innermost_frames(stacks, is_project)[stack_ids]
    on_line = (stack_ids >= 0) & (frame >= 0)
    per_frame = sums_by(frame[on_line], n_bytes[on_line], len(stacks.frames))
    largest = np.argsort(-per_frame, kind="stable")[:_MOST_LINES]
    largest = largest[per_frame[largest] > 0]
    return largest.tolist(), int(per_frame[largest].sum())


def _packages(
    stacks: StackTable, project: Project, stack_ids: Int32Column, n_bytes: Int64Column
) -> Iterator[tuple[str, BoolColumn]]:
    """The packages in these stacks with their frames, most bytes first."""
    per_frame = _bytes_per_frame(stacks, stack_ids, n_bytes)
    frames_of: dict[str, list[int]] = {}
    for frame in np.flatnonzero((per_frame > 0) & ~project.is_project).tolist():
        for package in _packages_of(normal(stacks.frames.filenames[frame])):
            frames_of.setdefault(package, []).append(frame)
    weight = {package: int(per_frame[frames].max()) for package, frames in frames_of.items()}
    order = sorted(frames_of, key=lambda package: (-weight[package], package))
    for package in order[:_MOST_TRIED]:
        mark = np.zeros(len(stacks.frames), np.bool_)
        mark[frames_of[package]] = True
        yield package, mark


def _bytes_per_frame(stacks: StackTable, stack_ids: Int32Column, n_bytes: Int64Column) -> Int64Column:
    """The bytes of all stacks with a frame; recursion counts it again, which is good enough for an order."""
    per_stack = np.zeros(len(stacks), np.int64)
    per_stack[stack_ids[stack_ids >= 0]] = n_bytes[stack_ids >= 0]
    return sums_by(stacks.frame_ids, np.repeat(per_stack, np.diff(stacks.offsets)), len(stacks.frames))


def _packages_of(path: str) -> Sequence[str]:
    """The names for ``--include`` that make a file count: its package, and the package in that."""
    if not is_python(path) or is_generated(path) or path.startswith("<"):
        return ()
    if not is_library(path):  # excluded by the given project root
        return (posixpath.dirname(path),)
    folders = (installed_part(path) or "").split("/")[:-1]
    if not folders or folders[0] in _NEVER or "-packages/" not in path:
        return ()
    return ["/".join(folders[:depth]) for depth in (1, 2) if depth <= len(folders)]
