"""The recorder's own clock, the iterations on it, and how times are brought to those of a snapshot.

torch stamps its trace with the processor's counter, calibrated to the system's time; the recorder reads
the system's time. Annotations are written by both, and show how far the two are apart.
"""

import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

_MAX_MARKS = 100_000


def now_us() -> int:
    """Microseconds since the epoch, the unit and the origin of a trace's times."""
    return time.time_ns() // 1000


class Mark(NamedTuple):
    """An annotation as the recorder saw it: torch stamped it between the two times."""

    name: str
    before_us: int
    after_us: int


class ClockMarks:
    """The annotations that were written, newest last."""

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque(maxlen=_MAX_MARKS)

    def add(self, name: str, before_us: int, after_us: int) -> None:
        """Remember one."""
        self._marks.append(Mark(name, before_us, after_us))

    def to_trace(self, annotations: Any) -> Callable[[int], int]:
        """Return how to bring a time to the trace's clock, inferred from a snapshot's annotations.

        The distance of the two clocks is that of the last annotation before.
        """
        shifts = self._shifts(annotations if isinstance(annotations, list) else [])
        if not shifts:
            return lambda time_us: time_us
        times = [before_us for before_us, _ in shifts]

        def convert(time_us: int) -> int:
            return time_us + shifts[max(bisect_right(times, time_us) - 1, 0)][1]

        return convert

    def _shifts(self, annotations: list[Any]) -> list[tuple[int, int]]:
        stamped: dict[str, list[int]] = defaultdict(list)
        for entry in annotations:
            if entry.get("stage") == "START" and isinstance(entry.get("time_us"), int):
                stamped[entry.get("name", "")].append(entry["time_us"])
        shifts = []
        # From the newest back: the ring of annotations overwrites the oldest.
        for mark in reversed(self._marks):
            if times := stamped.get(mark.name):
                stamp = times.pop()
                # Within what was seen the clocks agree; else by the least that makes them agree.
                shifts.append((mark.before_us, stamp - min(max(stamp, mark.before_us), mark.after_us)))
        return sorted(shifts)


_MARK = "snapconv:iteration"

# For a job in production, which may have any number of them.
_MAX_ITERATIONS = 10_000


@dataclass(slots=True)
class IterationRow:
    """One iteration; ``ended_us`` is None for one that never ended."""

    iteration: int
    kind: str
    began_us: int
    ended_us: int | None = None


class IterationLog:
    """The iterations so far, the newest; each is marked in the trace by an annotation, too."""

    def __init__(self) -> None:
        self._rows: deque[IterationRow] = deque(maxlen=_MAX_ITERATIONS)
        self._clock = ClockMarks()

    def begin(self, iteration: int, kind: str) -> None:
        """Note that an iteration begins."""
        from torch.autograd.profiler import record_function

        before_us = now_us()
        with record_function(_MARK):
            after_us = now_us()
        self._clock.add(_MARK, before_us, after_us)
        self._rows.append(IterationRow(iteration, kind, before_us))

    def end(self) -> None:
        """Note that the last one has ended."""
        if self._rows:
            self._rows[-1].ended_us = now_us()

    def facts(self, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the metadata's ``iterations``, times as the snapshot's trace has them."""
        convert = self._clock.to_trace(snapshot.get("external_annotations"))
        rows = [asdict(row) for row in self._rows]
        for row in rows:
            row["began_us"] = convert(row["began_us"])
            row["ended_us"] = None if row["ended_us"] is None else convert(row["ended_us"])
        return rows
