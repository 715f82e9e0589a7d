"""The times of a capture: which iteration is reported, its calls, and what they add up to."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from snapconv.analysis import AnalysisOptions
from snapconv.answers.memory_report import (
    ReportStacks,
    cut_frames,
    fitting_frames,
    report_stacks,
)
from snapconv.columns import (
    Int32Column,
    MsColumn,
    grouped,
    rows_of,
    unknown_column,
    values_at,
)
from snapconv.notes import Note
from snapconv.snapshot.load import Snapshot
from snapconv.snapshot.recorded.timing_file import PHASES, TimedIteration, Timing
from snapconv.stacks.project_frames import Project, find_project
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.units import format_share
from snapconv.version import VERSION

_FORWARD = PHASES.index("forward")
_Name = TypeVar("_Name")

# From here on most of the forward rows include waiting for the host, and not work of the device.
_MANY_WAITED_FOR = 0.5
# What clocks may round: beyond it, the file's own figures contradict each other.
_MOST_COVERED = 1.01


@dataclass(frozen=True, slots=True)
class RunTimeEntry:
    """One call of the reported iteration that a line of the project led to; frames innermost first.

    ``backward_ms`` is None where nothing of it ran in backward.
    """

    operation_name: str
    forward_ms: float
    backward_ms: float | None
    frames: tuple[SourceLine, ...]
    call_id: int


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """One iteration: what was measured around its phases, and what its rows add up to.

    What the timer itself took between the marks of the calls is a part of the measured forward
    time, of no row.
    """

    measured: TimedIteration
    forward_rows_ms: float
    backward_rows_ms: float

    @property
    def phases(self) -> dict[str, float | None]:
        """The measured time of every phase; None: there was none."""
        measured = self.measured
        times = measured.forward_ms, measured.backward_ms, measured.optimizer_ms
        return dict(zip(("forward", "backward", "optimizer"), times, strict=True))

    @property
    def total_ms(self) -> float:
        """Forward, backward and optimizer together."""
        return sum(filter(None, self.phases.values()))

    @property
    def coverage(self) -> dict[str, float | None]:
        """The parts of the forward and the backward time that rows account for.

        None without such a phase, or where the rows add up to more than was measured around them.
        """
        rows_ms = {"forward": self.forward_rows_ms, "backward": self.backward_rows_ms}
        phases = self.phases
        return {phase: _part(rows, phases[phase]) for phase, rows in rows_ms.items()}

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        coverage = {f"{phase}_coverage": part for phase, part in self.coverage.items()}
        return asdict(self.measured) | coverage


def _part(rows_ms: float, phase_ms: float | None) -> float | None:
    part = rows_ms / phase_ms if phase_ms else None
    return None if part is None or part > _MOST_COVERED else min(part, 1.0)


@dataclass(frozen=True, slots=True)
class TimeTotal(Generic[_Name]):
    """The time of the calls of one operation, module (empty: none) or line in an iteration."""

    name: _Name
    n_calls: int
    forward_ms: float
    backward_ms: float

    @property
    def total_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Everything known about the times of one device, ready to be written.

    ``reported`` is the iteration whose total is the median, the lower one of two.
    """

    timing: Timing
    project: Project
    reported: IterationTimes
    entries: tuple[RunTimeEntry, ...]
    iterations: tuple[IterationTimes, ...]
    operations: tuple[TimeTotal[str], ...]
    lines: tuple[TimeTotal[SourceLine], ...]
    notes: tuple[Note, ...]

    @property
    def source(self) -> tuple[tuple[str, str], ...]:
        """Facts about the file, and how it was made."""
        timing = self.timing
        project = self.project
        return (
            ("snapconv_version", VERSION),
            ("file_name", timing.path.name),
            ("recorded_by", f"snapconv {timing.written_by[0]}"),
            ("torch", timing.written_by[1]),
            ("clock", timing.clock),
            ("simulated", "yes" if timing.is_simulated else "no"),
            ("device_name", timing.device_name),
            ("project_root", project.root or ""),
            ("project_includes", ", ".join(project.includes)),
        )

    @property
    def stacks(self) -> ReportStacks:
        """All stacks of the file."""
        timing = self.timing
        stacks = report_stacks(
            timing.stacks, np.arange(len(timing.stacks)), self.project.is_project
        )
        return replace(stacks, is_of_module=timing.is_of_module)

    @property
    def entry_id(self) -> Int32Column:
        """For every call its row among the entries; -1: it has none there."""
        ids = unknown_column(len(self.timing.calls), np.int32)
        ids[[entry.call_id for entry in self.entries]] = np.arange(1, len(self.entries) + 1)
        return ids

    def to_json(self, output: Path) -> dict[str, object]:
        """Return JSON-ready values; ``output`` is the file that was written, which has all else."""
        return {
            "device": self.timing.device,
            "output": str(output),
            "clock": self.timing.clock,
            "is_simulated": self.timing.is_simulated,
            "iteration": self.reported.measured.iteration,
            "iterations": [times.to_json() for times in self.iterations],
            "n_entries": len(self.entries),
            "notes": list(map(asdict, self.notes)),
        }


def time_report_of(
    timing: Timing, snapshot: Snapshot, options: AnalysisOptions
) -> TimeReport:
    """Build the report of a capture's times, with the project of its snapshot."""
    project = find_project(
        timing.stacks,
        root=options.project_root,
        recorded=replace(snapshot.recorded_project, root=timing.project_root),
        includes=options.includes,
    )
    return build_time_report(timing, project)


def build_time_report(timing: Timing, project: Project) -> TimeReport:
    """Put together all that any writer of a time report needs."""
    iterations = tuple(_iterations(timing))
    ordered = sorted(iterations, key=lambda times: times.total_ms)
    reported = ordered[(len(ordered) - 1) // 2]
    number = reported.measured.iteration
    lines = ProjectLines(timing.stacks, project, partial(_chosen, timing))
    entries = tuple(_entries(timing, lines, number))
    n_frames, left_out = fitting_frames(
        entries, timing.n_bytes, n_cut_stacks=len(lines.cut_stacks), device=timing.device
    )
    remarks = [Note(*remark, timing.device) for remark in _remarks(timing, entries)]
    return TimeReport(
        timing=timing,
        project=project,
        reported=reported,
        entries=cut_frames(entries, n_frames),
        iterations=iterations,
        operations=_totals(timing, number, timing.calls.name_id),
        lines=_lines(entries),
        notes=(*remarks, *left_out),
    )


def _iterations(timing: Timing) -> Iterator[IterationTimes]:
    calls = timing.calls
    forward = np.where(calls.phase == _FORWARD, calls.forward_ms, 0.0)
    for measured in timing.iterations:
        rows = calls.iteration == measured.iteration
        yield IterationTimes(measured, _sum(forward[rows]), _sum(calls.backward_ms[rows]))


def _entries(timing: Timing, lines: ProjectLines, iteration: int) -> Iterator[RunTimeEntry]:
    """Yield the forward calls of an iteration that have a frame of the project, in their order."""
    calls = timing.calls
    is_reported = (calls.iteration == iteration) & (calls.phase == _FORWARD)
    for row in rows_of(is_reported).tolist():
        call = values_at(calls, row)
        frames = lines.of(call.stack_id)
        if frames:
            name = timing.texts[call.name_id]
            backward_ms = None if math.isnan(call.backward_ms) else call.backward_ms
            yield RunTimeEntry(name, call.forward_ms, backward_ms, frames, row)


def _chosen(timing: Timing, project_frames: list[int]) -> list[int]:
    """Return the frames that a call's row has, of those of the project.

    Skyline keeps those whose ``self`` is a module. Where a call has none of them, as a loss that
    the training loop computes, it has all frames of the project.
    """
    lines = timing.stacks.frames.lines
    numbered = [frame for frame in project_frames if lines[frame] >= 1]
    return [frame for frame in numbered if timing.is_of_module[frame]] or numbered


def _totals(timing: Timing, iteration: int, ids: Int32Column) -> tuple[TimeTotal[str], ...]:
    """Add up the calls of an iteration by their texts of these ids, most time first.

    Calls without a frame of the project count too, and what has only run in backward.
    """
    calls = timing.calls
    is_forward = calls.phase == _FORWARD
    has_time = is_forward | ~np.isnan(calls.backward_ms)
    totals = []
    for rows in grouped(rows_of((calls.iteration == iteration) & has_time), ids):
        name_id = ids[rows[0]]
        name = timing.texts[name_id] if name_id >= 0 else ""
        forward_ms = _sum(calls.forward_ms[rows[is_forward[rows]]])
        totals.append(TimeTotal(name, len(rows), forward_ms, _sum(calls.backward_ms[rows])))
    return _most_first(totals)


def module_times(report: TimeReport) -> tuple[TimeTotal[str], ...]:
    """Add up the calls of every module; a call counts for the innermost one alone."""
    return _totals(
        report.timing, report.reported.measured.iteration, report.timing.calls.module_id
    )


def forward_times(timing: Timing | None, device: int) -> dict[str, float]:
    """Return the milliseconds of every module's forward on a device; empty without times."""
    if timing is None or timing.device != device:
        return {}
    calls = timing.calls
    forward_rows = rows_of((calls.phase == _FORWARD) & (calls.module_id >= 0))
    times = {}
    for rows in grouped(forward_rows, calls.module_id):
        module = timing.texts[calls.module_id[rows[0]]]
        times[module] = _sum(calls.forward_ms[rows])
    return times


def _lines(entries: Iterable[RunTimeEntry]) -> tuple[TimeTotal[SourceLine], ...]:
    line_entries: dict[SourceLine, list[RunTimeEntry]] = defaultdict(list)
    for entry in entries:
        line_entries[entry.frames[0]].append(entry)
    totals = []
    for line, calls in line_entries.items():
        forward_ms = sum(call.forward_ms for call in calls)
        backward_ms = sum(call.backward_ms or 0.0 for call in calls)
        totals.append(TimeTotal(line, len(calls), forward_ms, backward_ms))
    return _most_first(totals)


def _most_first(totals: Iterable[TimeTotal[_Name]]) -> tuple[TimeTotal[_Name], ...]:
    return tuple(sorted(totals, key=lambda total: (-total.total_ms, total.name)))


def _remarks(
    timing: Timing, entries: tuple[RunTimeEntry, ...]
) -> Iterator[tuple[str, str]]:
    """Say what the times are not, and what is missing: slugs of notes, and their messages."""
    if timing.is_simulated:
        yield (
            "simulated-times",
            (
                "the times are those of a processor: the number of calls is as on a "
                "GPU, their durations are not"
            ),
        )
    elif timing.clock == "cpu":
        yield "cpu-times", "the times are those of the processor: the operations ran on it"
    for count in timing.launch_bound:
        if count.n_calls and count.n_waited_for / count.n_calls > _MANY_WAITED_FOR:
            share = format_share(count.n_waited_for, count.n_calls)
            yield (
                "launch-bound",
                f"the device came to {share} of the {count.phase} operations before the host had "
                "launched all of their work: their times include the wait for it",
            )
    if timing.overflowed:
        yield (
            "too-many-calls",
            "an iteration had more calls than are recorded: the later ones are missing",
        )
    if not entries:
        yield (
            "no-timed-lines",
            "no timed operation was called from a file of the project, so that the run "
            "time report is empty; name the project's folder with --project-root",
        )


def _sum(times: MsColumn) -> float:
    return float(np.nansum(times))
