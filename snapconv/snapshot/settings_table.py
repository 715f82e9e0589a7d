"""The allocator's settings and the annotations of a snapshot, from torch's dictionaries to columns."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.allocator.allocator_settings import N_ROUNDUP_INTERVALS, NO_ROUNDUP, AllocatorSettings
from snapconv.columns import BoolColumn, Int32Column, Int64Column, read_only
from snapconv.errors import MalformedSnapshotError, RecorderError
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.fields import (
    TIME,
    Interner,
    check_range,
    expect,
    expect_dicts,
    int_column,
    raw_column,
    text_column,
)
from snapconv.snapshot.segment_table import SegmentTable
from snapconv.units import shown

# torch reads the divisions with stoi.
_MAX_DIVISIONS = 2**31 - 1
# torch writes a dozen settings of a few words; one text may stand in a file very many times.
_MAX_ENTRIES, _MAX_TEXT = 200, 2000


Entries = tuple[tuple[str, str], ...]


def read_settings(raw: object, where: str) -> tuple[AllocatorSettings, Entries]:
    """Turn ``allocator_settings`` (torch >= 2.3) into what the allocator goes by, and everything as text.

    What the file does not have is as torch has it by default.
    """
    if raw is None:
        return AllocatorSettings(), ()
    expect(raw, dict, where)
    known: dict[str, object] = raw  # type: ignore[assignment]  # checked just above
    limit = known.get("max_split_size")
    if limit is not None:
        expect(limit, int, f"{where}.max_split_size")
    entries = tuple(
        (key[:_MAX_TEXT], _as_text(value))
        for key, value in islice(known.items(), _MAX_ENTRIES)
        if type(key) is str
    )
    # Each backend has a key of its own for it.
    conf = next((text for key, text in entries if key.endswith("ALLOC_CONF")), "")
    settings = replace(
        _settings_of_text(conf),
        # -1, or SIZE_MAX where an unsigned type was written, is unlimited.
        max_split_size_bytes=limit if isinstance(limit, int) and 0 <= limit < 1 << 63 else None,
        expandable_segments=known.get("expandable_segments") is True,
        roundup_power2_divisions=_divisions(known.get("roundup_power2_divisions"), where),
        garbage_collection_threshold=_threshold(known.get("garbage_collection_threshold")),
    )
    return settings, entries


def _settings_of_text(conf: str) -> AllocatorSettings:
    """Read what stands in no key but in the text; nothing of a text that torch would refuse."""
    try:
        return AllocatorSettings.from_conf(conf)
    except RecorderError:
        return AllocatorSettings(conf=conf)


def _threshold(raw: object) -> float:
    return raw if isinstance(raw, float) and 0 <= raw < 1 else 0.0


def are_expandable(segments: SegmentTable, traces: Iterable[EventTable]) -> bool:
    """Whether segments grow, as a file without that setting shows it (torch before 2.3, torch_npu).

    One device that shows it is enough: the setting is the process's own.
    """
    return bool(segments.is_expandable.any()) or any(
        np.isin(trace.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)).any() for trace in traces
    )


def _divisions(raw: object, where: str) -> tuple[int, ...]:
    if raw is None:
        return NO_ROUNDUP
    path = f"{where}.roundup_power2_divisions"
    expect(raw, dict, path)
    divisions = []
    for i in range(N_ROUNDUP_INTERVALS):
        value = raw.get(str(1 << i), 0)  # type: ignore[attr-defined]  # a dictionary, checked
        expect(value, int, f"{path}.{1 << i}")
        if not 0 <= value <= _MAX_DIVISIONS:
            raise MalformedSnapshotError(f"{path}.{1 << i}: expected 0 to 2^31 - 1, got {shown(str(value))}")
        divisions.append(value)
    return tuple(divisions)


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        items = islice(value.items(), _MAX_ENTRIES)
        return ",".join(f"{key}:{_scalar_as_text(item)}" for key, item in items if type(key) is str)[
            :_MAX_TEXT
        ]
    return _scalar_as_text(value)


def _scalar_as_text(value: object) -> str:
    return str(value)[:_MAX_TEXT] if isinstance(value, (str, int, float, bool)) else type(value).__name__


@dataclass(frozen=True, slots=True)
class AnnotationTable:
    """record_function ranges as they were entered and left; ``name_id`` is a position in ``texts``."""

    name_id: Int32Column
    is_start: BoolColumn
    device: Int64Column
    time_us: Int64Column

    def __len__(self) -> int:
        return len(self.name_id)


def read_annotations(raw: object, texts: Interner, where: str) -> AnnotationTable:
    """Turn ``external_annotations`` (torch >= 2.5) into columns; None means there are none."""
    rows = [] if raw is None else raw
    expect(rows, list, where)

    def path(i: int) -> str:
        return f"{where}[{i}]"

    expect_dicts(rows, path)  # type: ignore[arg-type]  # a list, checked just above
    ranges: list[dict[str, object]] = rows  # type: ignore[assignment]
    n = len(ranges)
    columns = AnnotationTable(
        name_id=_or(text_column(ranges, "name", texts, path=path), np.full(n, -1, np.int32)),
        is_start=np.array([stage == "START" for stage in raw_column(ranges, "stage")], np.bool_),
        device=_or(int_column(ranges, "device", path=path, missing=0), np.zeros(n, np.int64)),
        time_us=_or(int_column(ranges, "time_us", path=path, missing=-1), np.full(n, -1, np.int64)),
    )
    check_range(columns.time_us, TIME, "time_us", path=path)
    return read_only(columns)


def _or(column: NDArray[Any] | None, otherwise: NDArray[Any]) -> NDArray[Any]:
    return otherwise if column is None else column
