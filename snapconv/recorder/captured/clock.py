"""The recorder's own clock, the spans on it, and how times are brought to those of a snapshot.

torch stamps its trace with the processor's counter, calibrated to the system's time; the recorder reads
the system's time. Annotations are written by both, and show how far the two are apart.
"""

import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

_MAX_MARKS = 100_000


def now_us() -> int:
    """Microseconds since the epoch, the unit and the origin of a trace's times."""
    return time.time_ns() // 1000


class ClockMarks:
    """The annotations that were written, newest last; torch stamped each between two times of ours."""

    def __init__(self) -> None:
        self._marks: deque[tuple[str, int, int]] = deque(maxlen=_MAX_MARKS)

    def add(self, name: str, before_us: int, after_us: int) -> None:
        """Remember one."""
        self._marks.append((name, before_us, after_us))

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
        for name, before_us, after_us in reversed(self._marks):
            if times := stamped.get(name):
                stamp = times.pop()
                # Within what was seen the clocks agree; else by the least that makes them agree.
                shifts.append((before_us, stamp - min(max(stamp, before_us), after_us)))
        return sorted(shifts)


class SpanLog:
    """Phases or iterations so far, the newest, one at a time; each has an annotation in the trace, too.

    Each has ``began_us`` and ``ended_us``, which is None while it lasts.
    """

    def __init__(self, max_spans: int) -> None:
        self.rows: deque[dict[str, Any]] = deque(maxlen=max_spans)
        self.clock = ClockMarks()
        self.current: dict[str, Any] | None = None
        self._range: Any = None

    def begin(self, annotation: str, /, *, is_range: bool, **values: Any) -> None:
        """Begin a span, which ends the one before; its annotation lasts as long, or marks its beginning."""
        self.end()
        import torch

        annotated = torch.autograd.profiler.record_function(annotation)
        before_us = now_us()
        annotated.__enter__()
        after_us = now_us()
        self.clock.add(annotation, before_us, after_us)
        if is_range:
            self._range = annotated
        else:
            annotated.__exit__(None, None, None)
        self.current = {**values, "began_us": before_us, "ended_us": None}
        self.rows.append(self.current)

    def end(self) -> None:
        """End the span that lasts, if one does; another thread may end it meanwhile."""
        span, self.current = self.current, None
        lasting, self._range = self._range, None
        if lasting is not None:
            lasting.__exit__(None, None, None)
        if span is not None:
            span["ended_us"] = now_us()

    def facts(self, convert: Callable[[int], int]) -> list[dict[str, Any]]:
        """Return the spans as metadata has them, times as the snapshot's trace has them."""
        return [
            {
                **row,
                "began_us": convert(row["began_us"]),
                "ended_us": None if row["ended_us"] is None else convert(row["ended_us"]),
            }
            for row in list(self.rows)
        ]
