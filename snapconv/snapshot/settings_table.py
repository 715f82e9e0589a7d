"""The allocator's settings and the annotations of a snapshot, from torch's dictionaries to columns."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.columns import BoolColumn, Int32Column, Int64Column, read_only
from snapconv.errors import MalformedSnapshotError, SettingError
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.fields import TIME, Interner, Rows, expect
from snapconv.snapshot.segment_table import SegmentTable

# torch writes a dozen settings of a few words; one text may stand in a file very many times.
_MAX_ENTRIES, _MAX_TEXT = 200, 2000


Entries = tuple[tuple[str, str], ...]


def read_settings(raw: object, where: str) -> tuple[AllocatorSettings, Entries]:
    """Turn ``allocator_settings`` (torch >= 2.3) into what the allocator goes by, and everything as text.

    What the file does not have is as torch has it by default.
    """
    if raw is None:
        return AllocatorSettings(), ()
    known: dict[str, object] = expect(raw, dict, where)
    entries = tuple(
        (key[:_MAX_TEXT], _as_text(value))
        for key, value in islice(known.items(), _MAX_ENTRIES)
        if type(key) is str
    )
    # Each backend has a key of its own for it.
    conf = next((text for key, text in entries if key.endswith("ALLOC_CONF")), "")
    settings = AllocatorSettings(conf=conf)
    with suppress(SettingError):  # nothing of a text that torch would refuse
        settings = AllocatorSettings.from_conf(conf)
    try:
        return settings.with_snapshot_values(known), entries
    except ValueError as error:
        raise MalformedSnapshotError(f"{where}.{error}") from error


def are_expandable(segments: SegmentTable, traces: Iterable[EventTable]) -> bool:
    """Return whether segments grow, as a file without that setting shows it (torch before 2.3, torch_npu).

    One device that shows it is enough: the setting is the process's own.
    """
    return bool(segments.is_expandable.any()) or any(
        np.isin(trace.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)).any() for trace in traces
    )


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        items = islice(value.items(), _MAX_ENTRIES)
        parts = (f"{key}:{_scalar_as_text(item)}" for key, item in items if type(key) is str)
        return ",".join(parts)[:_MAX_TEXT]
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
    rows = Rows.of(raw, where)
    names = rows.text_ids("name", texts)
    columns = AnnotationTable(
        name_id=np.full(len(rows), -1, np.int32) if names is None else names,
        is_start=np.array([stage == "START" for stage in rows.values("stage")], np.bool_),
        device=rows.ints("device", missing=0),
        time_us=rows.ints("time_us", TIME, missing=-1),
    )
    return read_only(columns)
