"""The allocations of a device for a page: grouped by kind, so that millions of rows take few bytes.

A kind is what many allocations have in common: a size, and a trait, which is a stack with a
category and all else that mostly follows from the stack. A training job makes the same allocations
in every iteration; sorted by kind, their events grow by the same number again and again, which
compresses to almost nothing. So the page has every allocation, and shows exactly what was live at
any moment.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import Int64Column, number_groups
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.paths import is_python
from snapconv.stacks.project_frames import Project
from snapconv.writers.html.column_encoding import EncodedColumn, encode_column


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The columns of a page's allocations, and the row of the page for each row of the AllocationTable."""

    columns: dict[str, EncodedColumn]
    place: Int64Column
    stack_ids: Int64Column


def view_rows(analysis: DeviceAnalysis, streams: Int64Column) -> ViewRows:
    """Sort the allocations by kind and encode them; ``streams`` are those of the device, ascending."""
    table = analysis.allocations
    keys = _keys(analysis, streams)
    kind, first = _kinds(list(keys.values()))
    order = np.argsort(kind, kind="stable")  # within a kind by event, as the table is
    addrs, addr_id = np.unique(table.addr[order], return_inverse=True)
    freed = table.freed_event[order]
    end = table.end_event[order]
    alloc = table.alloc_event[order]
    block, requested = (keys.pop(name)[first] for name in ("block", "requested"))
    trait, first_of_trait = _kinds([values[first] for values in keys.values()])
    traits = {name: values[first][first_of_trait] for name, values in keys.items()}
    stack_ids, stack = np.unique(traits.pop("stack"), return_inverse=True)
    columns = {
        **{f"trait_{name}": encode_column(values) for name, values in traits.items()},
        "trait_stack": encode_column(stack),
        "kind_trait": encode_column(trait),
        "kind_block": encode_column(block),
        # What rounding added: next to nothing to compress, where requests of any size would be as
        # much again.
        "kind_rounding": encode_column(block - requested, signed=True),
        "kind_count": encode_column(np.bincount(kind, minlength=len(first))),
        "alloc": encode_column(alloc, differences=True),
        # 0: never; else how many events later.
        "life": encode_column(np.where(freed >= 0, freed - alloc, 0)),
        # 0: never used again; else how many events after it was freed, and one.
        "pending": encode_column(np.where(end >= 0, end - freed + 1, 0)),
        "addrs": encode_column(addrs - base_addr(analysis), differences=True),
        "addr": encode_column(addr_id.reshape(-1), differences=True),
    }
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return ViewRows(columns, place, stack_ids)


def base_addr(analysis: DeviceAnalysis) -> int:
    """Return the lowest address of the device: a page's numbers are exact up to 2^53, these may not be."""
    found = (analysis.allocations.addr, analysis.device.segments.addr)
    return min((int(column.min()) for column in found if len(column)), default=0)


def _keys(analysis: DeviceAnalysis, streams: Int64Column) -> dict[str, NDArray[Any]]:
    """Return what allocations of one kind have in common; ids one higher, so that 0 is none."""
    table = analysis.allocations
    found = analysis.classification
    return {
        "stack": table.stack_id,
        "category": found.category,
        "evidence": found.evidence,
        "certainty": found.certainty,
        "probability": (found.probability * 100).round().astype(np.int8),
        "reason": found.reason_id,
        "operation": analysis.operation_id + 1,
        "module": analysis.modules.module_id + 1,
        "pool": table.pool_id + 1,
        "stream": np.searchsorted(streams, table.stream),
        "requested": table.requested_bytes,
        "block": table.block_bytes,
        "exact": table.is_exact,
    }


def _kinds(keys: list[NDArray[Any]]) -> tuple[Int64Column, Int64Column]:
    """Return the kind of every row, numbered by first appearance, and the first row of every kind."""
    first, group = number_groups(*keys)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[group], first[order]


_NATIVE, _PYTHON, _PROJECT = 0, 1, 2


def view_stacks(
    snapshot: Snapshot, project: Project, stack_ids: Int64Column
) -> tuple[dict[str, object], dict[str, EncodedColumn]]:
    """Take these stacks (-1: one without frames), in this order.

    Return their frames (names, files and lines), and as columns the frames of every stack, root
    first.
    """
    stacks = snapshot.stacks
    listed = [stacks.frames_of(stack)[::-1] for stack in stack_ids.tolist()]
    flat = np.concatenate(listed) if listed else np.zeros(0, np.int32)
    used, frame = np.unique(flat, return_inverse=True)
    lengths = np.array([len(frames) for frames in listed], np.int64)
    columns = {
        "stack_length": encode_column(lengths),
        "stack_frame": encode_column(frame.reshape(-1)),
    }
    return _frames(snapshot, project, used.tolist()), columns


def _frames(snapshot: Snapshot, project: Project, used: list[int]) -> dict[str, object]:
    frames = snapshot.stacks.frames
    files: dict[str, int] = {}
    names: dict[str, int] = {}
    rows = []
    for frame in used:
        is_mine = bool(project.is_project[frame])
        path = project.relative_paths[frame] if is_mine else frames.filenames[frame]
        origin = _PROJECT if is_mine else _PYTHON if is_python(frames.filenames[frame]) else _NATIVE
        file_id = files.setdefault(path, len(files))
        name_id = names.setdefault(frames.names[frame], len(names))
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
