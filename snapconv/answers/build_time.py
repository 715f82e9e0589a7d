"""From a timing trace to a TimeReport: which iteration is reported, which calls are, and the sums."""

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from snapconv.answers.bounded_frames import left_out_note, n_frames_of_an_end, with_fewer_frames
from snapconv.answers.time_report import (
    CallColumns,
    IterationTimes,
    LineTime,
    RunTimeEntry,
    TimeReport,
    TimeTotal,
)
from snapconv.columns import MsColumn, distinct
from snapconv.notes import Note
from snapconv.snapshot.recorded.timing_file import PHASES, Timing
from snapconv.stacks.project_frames import Project
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.units import format_share
from snapconv.version import VERSION

_FORWARD = PHASES.index("forward")

# From here on most of the forward rows include waiting for the host, and not work of the device.
_MANY_WAITED_FOR = 0.5


def build_time_report(timing: Timing, project: Project, *, notes: tuple[Note, ...] = ()) -> TimeReport:
    """Put together all that any writer of a time report needs."""
    iterations = tuple(_iterations(timing))
    reported = _median(iterations)
    lines = ProjectLines(timing.stacks, project, partial(_chosen, timing))
    entries = tuple(_entries(timing, lines, reported.iteration))
    n_frames = n_frames_of_an_end(entries, timing.n_bytes)
    left_out = left_out_note(n_frames, n_cut_stacks=lines.n_cut_stacks, device=timing.device)
    return TimeReport(
        device=timing.device,
        clock=timing.clock,
        is_simulated=timing.is_simulated,
        reported=reported,
        entries=with_fewer_frames(entries, n_frames),
        iterations=iterations,
        operations=_operations(timing, reported.iteration),
        lines=_lines(entries),
        launches=timing.launch_bound,
        source=_source(timing, project),
        project_root=project.root,
        notes=(*notes, *_notes(timing, entries), *left_out),
        calls=_call_columns(timing, entries),
        stacks=timing.stacks,
        is_project=project.is_project,
        is_of_module=timing.is_of_module,
        project_includes=project.includes,
    )


def _iterations(timing: Timing) -> Iterator[IterationTimes]:
    calls = timing.calls
    forward = np.where(calls.phase == _FORWARD, calls.forward_ms, 0.0)
    for measured in timing.iterations:
        rows = calls.iteration == measured.iteration
        yield IterationTimes(
            measured.iteration,
            measured.forward_ms,
            measured.backward_ms,
            measured.optimizer_ms,
            forward_rows_ms=_sum(forward[rows]),
            backward_rows_ms=_sum(calls.backward_ms[rows]),
            bookkeeping_ms=measured.bookkeeping_ms,
        )


def _median(iterations: tuple[IterationTimes, ...]) -> IterationTimes:
    """Return the iteration whose total is the median, the lower one of two, the first of equals."""
    ordered = sorted(iterations, key=lambda times: times.total_ms)
    return ordered[(len(ordered) - 1) // 2]


def _entries(timing: Timing, lines: ProjectLines, iteration: int) -> Iterator[RunTimeEntry]:
    """Yield the forward calls of an iteration that have a frame of the project, in their order."""
    calls = timing.calls
    for call in np.flatnonzero((calls.iteration == iteration) & (calls.phase == _FORWARD)).tolist():
        if found := lines.of(int(calls.stack_id[call])):
            backward_ms = float(calls.backward_ms[call])
            yield RunTimeEntry(
                operation_name=timing.texts[int(calls.name_id[call])],
                forward_ms=float(calls.forward_ms[call]),
                backward_ms=None if np.isnan(backward_ms) else backward_ms,
                frames=found,
                call_id=call,
            )


def _chosen(timing: Timing, mine: list[int]) -> list[int]:
    """The frames that a call's row has, of those of the project.

    Skyline keeps those whose ``self`` is a module. Where a call has none of them, as a loss that the training
    loop computes, it has all frames of the project.
    """
    mine = [frame for frame in mine if timing.stacks.frames.lines[frame] >= 1]
    return [frame for frame in mine if timing.is_of_module[frame]] or mine


def _operations(timing: Timing, iteration: int) -> tuple[TimeTotal, ...]:
    """Add up the rows of every operation, also those without a frame of the project."""
    calls = timing.calls
    rows = (calls.iteration == iteration) & ((calls.phase == _FORWARD) | ~np.isnan(calls.backward_ms))
    totals = []
    for name_id in distinct(calls.name_id[rows]).tolist():
        own = rows & (calls.name_id == name_id)
        forward = own & (calls.phase == _FORWARD)
        totals.append(
            TimeTotal(
                timing.texts[name_id],
                n_calls=int(np.count_nonzero(own)),
                forward_ms=_sum(calls.forward_ms[forward]),
                backward_ms=_sum(calls.backward_ms[own]),
            )
        )
    return tuple(sorted(totals, key=lambda total: (-total.total_ms, total.name)))


def _lines(entries: Iterable[RunTimeEntry]) -> tuple[LineTime, ...]:
    """Add up the entries of every innermost line, most time first."""
    by_line: dict[SourceLine, list[RunTimeEntry]] = {}
    for entry in entries:
        by_line.setdefault(entry.frames[0], []).append(entry)
    totals = [
        LineTime(
            line,
            len(own),
            forward_ms=sum(entry.forward_ms for entry in own),
            backward_ms=sum(entry.backward_ms or 0.0 for entry in own),
        )
        for line, own in by_line.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.total_ms, total.line)))


def _notes(timing: Timing, entries: tuple[RunTimeEntry, ...]) -> Iterator[Note]:
    device = timing.device
    if timing.is_simulated:
        message = (
            "the times are those of a processor: the number of calls is as on a GPU, their durations are not"
        )
        yield Note("simulated-times", message, device)
    elif timing.clock == "cpu":
        yield Note("cpu-times", "the times are those of the processor: the operations ran on it", device)
    if timing.is_warm_up:
        message = (
            "the times are those of the iteration in which the timer warmed up: they may include costs "
            "that occur only once; record one iteration more"
        )
        yield Note("warm-up-times", message, device)
    for count in timing.launch_bound:
        if count.n_calls and count.n_waited_for / count.n_calls > _MANY_WAITED_FOR:
            share = format_share(count.n_waited_for, count.n_calls)
            message = (
                f"the device came to {share} of the {count.phase} operations before the host had launched "
                "all of their work: their times include the wait for it"
            )
            yield Note("launch-bound", message, device)
    if timing.overflowed:
        message = "an iteration had more calls than are recorded: the later ones are missing"
        yield Note("too-many-calls", message, device)
    if not entries:
        message = (
            "no timed operation was called from a file of the project, so that the run time report is empty; "
            "name the project's folder with --project-root"
        )
        yield Note("no-timed-lines", message, device)


def _source(timing: Timing, project: Project) -> tuple[tuple[str, str], ...]:
    rows = [
        ("snapconv_version", VERSION),
        ("file_name", timing.path.name),
        ("recorded_by", f"snapconv {timing.written_by[0]}"),
        ("torch", timing.written_by[1]),
        ("clock", timing.clock),
        ("simulated", "yes" if timing.is_simulated else "no"),
        ("device_name", timing.device_name),
        ("project_root", project.root or ""),
        ("project_includes", ", ".join(project.includes)),
    ]
    if timing.empty_pair_ms is not None:
        rows.append(("empty_pair_ms", repr(timing.empty_pair_ms)))
    return tuple(rows)


def _call_columns(timing: Timing, entries: tuple[RunTimeEntry, ...]) -> CallColumns:
    calls = timing.calls
    entry_id = np.full(len(calls), -1, np.int32)
    entry_id[[entry.call_id for entry in entries]] = np.arange(1, len(entries) + 1)
    return CallColumns(calls, entry_id, timing.texts)


def _sum(times: MsColumn) -> float:
    """Add up what is there."""
    return float(np.nansum(times))
