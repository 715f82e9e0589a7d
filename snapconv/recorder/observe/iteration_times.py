"""When each iteration began and ended, on the clock of the snapshot's trace."""

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from snapconv.recorder.captured.recorder_clock import ClockMarks, now_us

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
