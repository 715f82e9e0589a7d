"""Phases and iterations with their times, and the trace's clock.

torch stamps its trace with the processor's counter, calibrated to the system's time; the recorder
reads the system's time. Annotations are written by both, and show how far the two are apart.
"""

import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any


def now_us() -> int:
    """Microseconds since the epoch, the unit and the origin of a trace's times."""
    return time.time_ns() // 1000


class SpanLog:
    """The newest phases or iterations, one at a time; each has an annotation in the trace, too."""

    current: dict[str, Any] | None = None
    _range: Any = None

    def __init__(self, max_spans: int) -> None:
        self.rows: deque[dict[str, Any]] = deque(maxlen=max_spans)
        # Annotations, each with the recorder's times between which torch stamped it.
        self._marks: deque[tuple[str, int, int]] = deque(maxlen=max_spans)

    def begin(self, annotation: str, /, *, is_range: bool, **values: Any) -> None:
        """Begin a span, which ends the last one.

        ``is_range``: the annotation lasts as long as the span; else it marks its beginning.
        """
        self.end()
        import torch

        annotated = torch.autograd.profiler.record_function(annotation)
        begin_us = now_us()
        annotated.__enter__()
        self._marks.append((annotation, begin_us, now_us()))
        if is_range:
            self._range = annotated
        else:
            annotated.__exit__(None, None, None)
        self.current = {**values, "began_us": begin_us, "ended_us": None}
        self.rows.append(self.current)

    def end(self) -> None:
        """End the span that lasts, if one does; another thread may end it meanwhile."""
        span = self.current
        self.current = None
        annotated = self._range
        self._range = None
        if annotated is not None:
            annotated.__exit__(None, None, None)
        if span is not None:
            span["ended_us"] = now_us()

    def trace_clock(self, annotations: Any) -> Callable[[int], int]:
        """Return a function from the recorder's times to the trace's, both in µs.

        The last annotation before a time shows how far the two are apart.
        """
        shifts = self._shifts(annotations) if isinstance(annotations, list) else []
        if not shifts:
            shifts = [(0, 0)]

        def convert(time_us: int) -> int:
            index = bisect_right(shifts, time_us, key=itemgetter(0)) - 1
            _, shift_us = shifts[max(index, 0)]
            return time_us + shift_us

        return convert

    def _shifts(self, annotations: list[Any]) -> list[tuple[int, int]]:
        """Return times with the shift that holds from there on, in µs."""
        stamps_by_name: dict[str, list[int]] = defaultdict(list)
        for entry in annotations:
            if entry.get("stage") == "START" and isinstance(entry.get("time_us"), int):
                stamps_by_name[entry.get("name", "")].append(entry["time_us"])
        shifts = []
        # From the newest back: the ring of annotations overwrites the oldest.
        for name, begin_us, end_us in reversed(self._marks):
            stamps = stamps_by_name.get(name)
            if stamps:
                stamp_us = stamps.pop()
                # Within the two times the clocks agree; else the smallest shift makes them agree.
                time_us = min(max(stamp_us, begin_us), end_us)
                shifts.append((begin_us, stamp_us - time_us))
        return sorted(shifts)

    def facts(self, convert: Callable[[int], int]) -> list[dict[str, Any]]:
        """Return the spans as metadata has them, times as the snapshot's trace has them."""
        rows = []
        for span in list(self.rows):
            row = span.copy()
            for name in ("began_us", "ended_us"):
                if row[name] is not None:  # no end: the span still lasts
                    row[name] = convert(row[name])
            rows.append(row)
        return rows
