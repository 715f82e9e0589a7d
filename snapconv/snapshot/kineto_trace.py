"""A trace of torch.profiler, Chrome's JSON -> its events as lines, and the times that align it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapconv.errors import MalformedSnapshotError, NotASnapshotError
from snapconv.json_text import write_json
from snapconv.snapshot.fields import Bounds, Rows, errors_of, expect, parse_json
from snapconv.snapshot.load import collector_off
from snapconv.snapshot.readers.containers import read_unpacked
from snapconv.stop_signals import stage

_EVENTS, _BASE = "traceEvents", "baseTimeNanoseconds"
_MOST_BYTES = 2 << 30
# Differences to the times of a snapshot, which have 62 bits, stay within int64.
_TIME = Bounds(-(1 << 60), 1 << 60, "microseconds of at most 60 bits", types=(int, float))
_LENGTH = Bounds(0, 1 << 60, _TIME.expected, types=(int, float))
_BASE_TIME = Bounds(0, (1 << 63) - 1, "nanoseconds of at most 63 bits")
_SLICE, _INSTANT = "X", "i"
_ANNOTATION = "user_annotation"
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """A trace, to which events can be added; its times are microseconds on its own axis.

    ``opening`` is its JSON without the two brackets that close it. ``base_us`` is the axis' zero in
    microseconds since 1970, None where the trace does not have it. ``begin_us`` and ``end_us`` are
    the bounds of its events. ``annotations`` are the begins and ends of record_function, by name.
    ``process_ids`` are those that are numbers.
    """

    opening: bytes
    n_events: int
    base_us: int | None
    begin_us: float
    end_us: float
    annotations: Mapping[str, list[tuple[float, float]]]
    process_ids: frozenset[int]


@stage
def load_kineto_trace(path: Path) -> KinetoTrace:
    """Read a trace of torch.profiler, which may be in gzip or zip.

    Raises InputError (NotASnapshotError, MalformedSnapshotError, TruncatedFileError) that names the
    file.
    """
    with errors_of(path), collector_off():
        raw: Any = parse_json(read_unpacked(path, _MOST_BYTES), is_lenient=True)
        if not isinstance(raw, dict) or _EVENTS not in raw:
            raise NotASnapshotError(
                f"this is not a trace of torch.profiler: it has no {_EVENTS}; "
                "profile.export_chrome_trace writes one"
            )
        return _read(raw)


def _read(raw: dict[str, Any]) -> KinetoTrace:
    events = Rows.of(raw.pop(_EVENTS), _EVENTS)
    base_ns = raw.get(_BASE)
    if base_ns is not None:
        base_ns = expect(base_ns, _BASE_TIME, _BASE)
    times: list[float] = []
    annotations: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, category, begin, end in _timed(events):
        times += (begin, end)
        if category == _ANNOTATION and isinstance(name, str):
            annotations[name].append((begin, end))
    if not times:
        raise NotASnapshotError("the trace has no events with a time")
    header = _json({**raw, _EVENTS: []}, "the trace").removesuffix(b"]}")
    lines = (_json(event, events.row_path(i)) for i, event in enumerate(events.rows))
    return KinetoTrace(
        opening=header + b"\n" + b",\n".join(lines),
        n_events=len(events),
        base_us=None if base_ns is None else base_ns // 1000,
        begin_us=min(times),
        end_us=max(times),
        annotations=annotations,
        process_ids=frozenset(_process_ids(events)),
    )


def _timed(events: Rows) -> Iterator[tuple[object, object, float, float]]:
    """Yield the name, category, begin and end of slices and instants."""
    for i, event in enumerate(events.rows):
        kind = event.get("ph")
        if kind in (_SLICE, _INSTANT):
            path = events.row_path(i)
            begin = expect(event.get("ts"), _TIME, f"{path}.ts")
            length = 0
            if kind == _SLICE:
                length = expect(event.get("dur", 0), _LENGTH, f"{path}.dur")
            yield event.get("name"), event.get("cat"), begin, begin + length


def _process_ids(events: Rows) -> Iterator[int]:
    """Yield the processes' numbers; Kineto has names such as ``Spans`` among them."""
    for number in events.values("pid"):
        if isinstance(number, str):
            is_number = number.isdecimal() and len(number) <= _MOST_DIGITS
        else:
            is_number = isinstance(number, int | float) and number == number // 1
        if is_number:
            yield int(number)


def _json(value: object, path: str) -> bytes:
    try:
        return write_json(value)
    except (TypeError, RecursionError) as error:  # TypeError: orjson's own error
        raise MalformedSnapshotError(f"{path}: nested too deep") from error
