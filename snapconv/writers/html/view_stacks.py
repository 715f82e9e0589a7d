"""The stacks that a page shows, with their frames as text: root first, so that equal beginnings compress."""

from dataclasses import dataclass

import numpy as np

from snapconv.columns import Int64Column
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.paths import is_python
from snapconv.stacks.project_frames import Project
from snapconv.writers.html.column_encoding import EncodedColumn, encode_column, page_text

_NATIVE, _PYTHON, _PROJECT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ViewStacks:
    """``frames``: names, files and lines; ``columns``: the frames of every stack, root first."""

    columns: dict[str, EncodedColumn]
    frames: dict[str, object]


def view_stacks(snapshot: Snapshot, project: Project, stack_ids: Int64Column) -> ViewStacks:
    """Take these stacks (-1: one without frames), in this order, and the frames that they have."""
    stacks = snapshot.stacks
    listed = [stacks.frames_of(stack)[::-1] for stack in stack_ids.tolist()]
    flat = np.concatenate(listed) if listed else np.zeros(0, np.int32)
    used, frame = np.unique(flat, return_inverse=True)
    lengths = np.array([len(frames) for frames in listed], np.int64)
    columns = {"stack_length": encode_column(lengths), "stack_frame": encode_column(frame.reshape(-1))}
    return ViewStacks(columns, _frames(snapshot, project, used.tolist()))


def _frames(snapshot: Snapshot, project: Project, used: list[int]) -> dict[str, object]:
    frames = snapshot.stacks.frames
    files: dict[str, int] = {}
    names: dict[str, int] = {}
    rows = []
    for frame in used:
        is_mine = bool(project.is_project[frame])
        path = project.relative_paths[frame] if is_mine else frames.filenames[frame]
        origin = _PROJECT if is_mine else _PYTHON if is_python(frames.filenames[frame]) else _NATIVE
        file_id = files.setdefault(page_text(path), len(files))
        name_id = names.setdefault(page_text(frames.names[frame]), len(names))
        rows.append((name_id, file_id, int(frames.lines[frame]), origin))
    name_ids, file_ids, lines, origins = zip(*rows, strict=True) if rows else ((), (), (), ())
    return {
        "names": list(names),
        "files": list(files),
        "name": name_ids,
        "file": file_ids,
        "line": lines,
        "origin": origins,
    }
