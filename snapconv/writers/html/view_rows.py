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
from snapconv.writers.html.column_encoding import EncodedColumn, encode_columns


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The columns of a page's allocations.

    ``page_rows`` has the row on the page for each row of the AllocationTable.
    """

    columns: dict[str, EncodedColumn]
    page_rows: Int64Column
    stack_ids: Int64Column


def view_rows(analysis: DeviceAnalysis, streams: Int64Column) -> ViewRows:
    """Sort the allocations by kind and encode them.

    ``streams`` are those of the device, ascending.
    """
    keys = _keys(analysis, streams)
    kind, first = _kinds(list(keys.values()))
    order = np.argsort(kind, kind="stable")  # within a kind by event, as the table is
    kind_keys = {name: values[first] for name, values in keys.items()}
    columns, stack_ids = _kind_columns(kind_keys)
    columns["kind_count"] = np.bincount(kind, minlength=len(first))
    encoded = encode_columns(columns | _allocation_columns(analysis, order))
    return ViewRows(encoded, _positions(order), stack_ids)


def _kind_columns(
    keys: dict[str, NDArray[Any]],
) -> tuple[dict[str, NDArray[Any]], Int64Column]:
    """Return what each kind has, its traits once for all kinds, and the ids of stacks too."""
    block = keys.pop("block")
    requested = keys.pop("requested")
    trait, first = _kinds(list(keys.values()))
    stack_ids, stack = np.unique(keys.pop("stack")[first], return_inverse=True)
    columns = {f"trait_{name}": values[first] for name, values in keys.items()}
    # The bytes that rounding added compress to next to nothing; requests of any size would not.
    rounding = block - requested
    columns |= {
        "trait_stack": stack,
        "kind_trait": trait,
        "kind_block": block,
        "kind_rounding": rounding,
    }
    return columns, stack_ids


def _allocation_columns(
    analysis: DeviceAnalysis, order: Int64Column
) -> dict[str, NDArray[Any]]:
    """Return what each allocation has, in the order of the page."""
    table = analysis.allocations
    addrs, addr_id = np.unique(table.addr[order], return_inverse=True)
    freed = table.freed_event[order]
    end = table.end_event[order]
    alloc = table.alloc_event[order]
    # The number of events until it was freed; 0: never.
    life = np.where(freed >= 0, freed - alloc, 0)
    # One more than the number of events from its free until its block was free; 0: never.
    pending = np.where(end >= 0, end - freed + 1, 0)
    return {
        "alloc": alloc,
        "life": life,
        "pending": pending,
        "addrs": addrs - base_addr(analysis),
        "addr": addr_id,
    }


def base_addr(analysis: DeviceAnalysis) -> int:
    """Return the lowest address of the device.

    A page's numbers are exact up to 2^53, which addresses may exceed.
    """
    columns = (analysis.allocations.addr, analysis.device.segments.addr)
    return min((int(column.min()) for column in columns if len(column)), default=0)


def _keys(analysis: DeviceAnalysis, streams: Int64Column) -> dict[str, NDArray[Any]]:
    """Return the columns that are equal in a kind; ids are one higher, so that 0 is none."""
    table = analysis.allocations
    verdicts = analysis.classification
    return {
        "stack": table.stack_id,
        "category": verdicts.category,
        "evidence": verdicts.evidence,
        "certainty": verdicts.certainty,
        "probability": (verdicts.probability * 100).round().astype(np.int8),
        "reason": verdicts.reason_id,
        "operation": analysis.operation_id + 1,
        "module": analysis.modules.module_id + 1,
        "pool": table.pool_id + 1,
        "stream": np.searchsorted(streams, table.stream),
        "requested": table.requested_bytes,
        "block": table.block_bytes,
        "exact": table.is_exact,
    }


def _kinds(keys: list[NDArray[Any]]) -> tuple[Int64Column, Int64Column]:
    """Return every row's kind, numbered by first appearance, and the first row of every kind."""
    first, group = number_groups(*keys)
    order = np.argsort(first)
    return _positions(order)[group], first[order]


def _positions(order: Int64Column) -> Int64Column:
    """Return where each row stands in an order."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


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
    frame_ids, frame = np.unique(flat, return_inverse=True)
    lengths = np.array([len(frames) for frames in listed], np.int64)
    columns = encode_columns({"stack_length": lengths, "stack_frame": frame})
    return _frames(snapshot, project, frame_ids.tolist()), columns


def _frames(
    snapshot: Snapshot, project: Project, frame_ids: list[int]
) -> dict[str, object]:
    frames = snapshot.stacks.frames
    files: dict[str, int] = {}
    names: dict[str, int] = {}
    sources = {"": 0}
    rows = []
    for frame in frame_ids:
        path = frames.filenames[frame]
        line = int(frames.lines[frame])
        source = snapshot.additions.source_line(path, line) or ""
        source_id = sources.setdefault(source, len(sources))
        origin = _PYTHON if is_python(path) else _NATIVE
        if project.is_project[frame]:
            path = project.relative_paths[frame]
            origin = _PROJECT
        file_id = files.setdefault(path, len(files))
        name_id = names.setdefault(frames.names[frame], len(names))
        rows.append((name_id, file_id, line, origin, source_id))
    columns = zip(*rows, strict=True) if rows else [()] * 5
    name_ids, file_ids, lines, origins, source_ids = columns
    return {
        "names": list(names),
        "files": list(files),
        "name": name_ids,
        "file": file_ids,
        "line": lines,
        "origin": origins,
        "sources": list(sources),
        "source": source_ids,
    }
