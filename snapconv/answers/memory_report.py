"""The contents of one device's memory report, computed and ready to be written.

Its ``analysis`` holds the columns, its other fields what is counted, named and sorted: tuples where
a report has tens of rows, NumPy columns where it has millions.

Skyline's schema repeats the frames of a stack for every entry. A file may share one deep stack
among all its allocations, for two bytes each: the report would be thousands of times as large. So
entries have frames in proportion to the file that the report is about.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.growth import Growth, find_growth
from snapconv.answers.moments import FoundMoment
from snapconv.answers.notes import device_notes
from snapconv.answers.oom.failed_allocation import FailedAllocation, failed_allocations
from snapconv.answers.peak import MomentState, state_at
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    distinct,
    plain_rows,
)
from snapconv.files import most_bytes_of_part
from snapconv.naming.weight_table import weight_names
from snapconv.notes import Note
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_frames import Project
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, SourceLine, both_ends
from snapconv.stop_signals import stage
from snapconv.units import device_argument, device_kind
from snapconv.version import VERSION

# The Moments that every report has: start, peak and end of every curve, and one more.
CURVES = ("requested", "allocated", "active", "reserved")
# What weights, categories and lines are about.
PEAK_ALLOCATED = "peak_allocated"
END_ALLOCATED = "end_allocated"
# What the activations are about: their own high-water mark.
PEAK_ACTIVATIONS = "peak_activations"
# A row has an id, a position among the frames and a line, and SQLite needs some bytes for them.
_ROW_BYTES = 16
# So many frames of each end of a stack are tried; with 0 an entry has no frames.
_NUMBERS = (MAX_LINES_OF_AN_END, 32, 16, 8, 4, 2, 1, 0)

_Entry = TypeVar("_Entry", bound=Any)


@dataclass(frozen=True, slots=True)
class ReportStacks:
    """The stacks of a report, and the columns of their table; -1: there is no such frame.

    ``table`` holds the stacks ``stack_id``, and ``frame_id`` their frames. ``is_project`` has an
    entry per frame of the file, and in time reports ``is_of_module`` too: the frame's ``self`` is a
    module.
    """

    stack_id: Int64Column
    table: StackTable
    n_frames: Int64Column
    project_frame_id: Int32Column
    frame_id: Int64Column
    is_project: BoolColumn
    is_of_module: BoolColumn | None = None


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A weight live at the report's moment, with the bytes of its gradient (0: none)."""

    name: str
    size_bytes: int
    grad_size_bytes: int
    frames: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class ActivationEntry:
    """An activation live at the activation high-water mark; frames innermost first."""

    operation_name: str
    size_bytes: int
    frames: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A named event of the trace, such as a peak; ``event`` is -1 for before the first event."""

    name: str
    event: int
    time_us: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Everything known about one device, ready to be written.

    ``peak`` is the peak of allocated bytes. ``phase`` has the phase of each allocation's
    ``alloc_event``, -1 where it has none. ``stacks`` are the device's own.
    """

    analysis: DeviceAnalysis
    peak: MomentState
    weights: tuple[WeightEntry, ...]
    activations: tuple[ActivationEntry, ...]
    source: tuple[tuple[str, str], ...]
    notes: tuple[Note, ...]
    moments: tuple[Moment, ...]
    growth: tuple[Growth, ...]
    oom_events: tuple[FailedAllocation, ...]
    phase: Int8Column
    stacks: ReportStacks

    @property
    def probability(self) -> NDArray[np.float64]:
        """The probability of each allocation's category, to three digits."""
        return np.round(self.analysis.classification.probability.astype(float), 3)

    def to_json(self, output: Path) -> dict[str, object]:
        """Return JSON-ready values; ``output`` is the file that was written, which has all else."""
        peak = self.peak
        return {
            "device": peak.device,
            "kind": device_kind(peak.device),
            "output": str(output),
            "peak_usage_bytes": peak.allocated_bytes,
            "categories_at_peak": {
                total.category: total.to_json() for total in peak.categories
            },
            "history": {"verdict": peak.history_verdict, "reason": peak.history_reason},
            "n_weights": len(self.weights),
            "n_activations": len(self.activations),
            "notes": list(map(asdict, self.notes)),
        }


@stage
def build_memory_report(analysis: DeviceAnalysis) -> MemoryReport:
    """Put together all that any writer of one device's memory report needs."""
    weights = tuple(_weights(analysis))
    activations = tuple(_activations(analysis))
    growth = find_growth(analysis)
    stacks = (
        analysis.weights.stack_id,
        analysis.allocations.stack_id[analysis.activation_rows],
    )
    n_cut = len(analysis.lines.cut_stacks.intersection(np.concatenate(stacks).tolist()))
    n_frames, left_out = fitting_frames(
        [*weights, *activations],
        analysis.snapshot.container.n_unpacked_bytes,
        n_cut_stacks=n_cut,
        device=analysis.device.device,
    )
    return MemoryReport(
        analysis=analysis,
        peak=state_at(analysis, FoundMoment(analysis.peak_event, "the peak")),
        weights=cut_frames(weights, n_frames),
        activations=cut_frames(activations, n_frames),
        source=_source(analysis.snapshot, analysis.project),
        notes=(*device_notes(analysis, growth), *left_out),
        moments=tuple(_moments(analysis)),
        growth=growth,
        oom_events=failed_allocations(analysis),
        phase=at(analysis.phases.phase, analysis.allocations.alloc_event, -1),
        stacks=report_stacks(
            analysis.snapshot.stacks,
            _own_stacks(analysis.snapshot, analysis.device),
            analysis.project.is_project,
        ),
    )


def _weights(analysis: DeviceAnalysis) -> Iterator[WeightEntry]:
    table = analysis.weights
    lines = analysis.lines
    names = weight_names(table.names, table.stack_id, lines)
    figures = plain_rows(table.size_bytes, table.gradient_bytes, table.stack_id)
    for name, (size_bytes, gradient_bytes, stack_id) in zip(names, figures, strict=True):
        yield WeightEntry(name, size_bytes, gradient_bytes, lines.of(stack_id))


def _activations(analysis: DeviceAnalysis) -> Iterator[ActivationEntry]:
    for row in analysis.activation_rows.tolist():
        yield ActivationEntry(
            operation_name=analysis.operations[int(analysis.operation_id[row])],
            size_bytes=int(analysis.allocations.block_bytes[row]),
            frames=analysis.lines.of(int(analysis.allocations.stack_id[row])),
        )


def _source(snapshot: Snapshot, project: Project) -> tuple[tuple[str, str], ...]:
    container = snapshot.container
    rows = [
        ("snapconv_version", VERSION),
        ("file_name", snapshot.path.name),
        ("file_bytes", str(container.n_bytes)),
        ("format", container.description),
        ("written_by", snapshot.written_by),
        (
            "devices",
            ", ".join(device_argument(device.device) for device in snapshot.devices),
        ),
        ("project_root", project.root or ""),
        ("project_root_is_inferred", "yes" if project.is_inferred else "no"),
        ("project_includes", ", ".join(project.includes)),
    ]
    if container.pickle_protocol is not None:
        rows.append(("pickle_protocol", str(container.pickle_protocol)))
    rows += [(f"recorder.{key}", text) for key, text in snapshot.facts.items()]
    rows += [(f"allocator_settings.{key}", text) for key, text in snapshot.settings_entries]
    return tuple(rows)


def _moments(analysis: DeviceAnalysis) -> Iterator[Moment]:
    """Yield start, peak and end of each curve, and the high-water mark of the activations."""
    events = analysis.device.events
    for name in CURVES:
        curve = getattr(analysis.replay, name)
        moments = (("start", -1), ("peak", curve.peak_event), ("end", len(events) - 1))
        for moment, event in moments:
            yield Moment(f"{moment}_{name}", event, events.time_at(event), curve.at(event))
    n_bytes = analysis.allocations.bytes_of(analysis.activation_rows)
    event = analysis.activation_event
    yield Moment(PEAK_ACTIVATIONS, event, events.time_at(event), n_bytes)


def _own_stacks(snapshot: Snapshot, device: DeviceSnapshot) -> Int64Column:
    """Return the stacks of a device's events and blocks; for a single-device file, every stack."""
    if len(snapshot.devices) == 1:
        return np.arange(len(snapshot.stacks))
    ids = distinct(np.concatenate((device.events.stack_id, device.blocks.stack_id)))
    return ids[ids >= 0].astype(np.int64)


def report_stacks(
    stacks: StackTable, ids: Int64Column, is_project: BoolColumn
) -> ReportStacks:
    """Take some of the stacks of a file, and their frames; of all stacks, all frames."""
    table = stacks.take(ids)
    if len(table) == len(stacks):
        frame_id = np.arange(len(table.frames))
    else:
        frame_id = distinct(table.frame_ids).astype(np.int64)
    return ReportStacks(
        stack_id=ids,
        table=table,
        n_frames=np.diff(table.offsets),
        project_frame_id=table.only(is_project).innermost,
        frame_id=frame_id,
        is_project=is_project,
    )


def fitting_frames(
    entries: Sequence[Any], n_bytes: int, *, n_cut_stacks: int, device: int
) -> tuple[int, tuple[Note, ...]]:
    """Return how many frames an entry keeps of each end of its stack, and a note.

    There is a note if some frames are left out. All entries stay proportional to the file size
    ``n_bytes``. The note has ``n_cut_stacks`` cut stacks too.
    """
    uses = Counter(entry.frames for entry in entries)
    size_of = cache(
        lambda line: _ROW_BYTES + len(line.file_path.encode("utf-8", "surrogatepass"))
    )
    allowed = most_bytes_of_part(n_bytes)

    def total(n: int) -> int:
        n_total = 0
        for frames, n_uses in uses.items():
            n_total += n_uses * sum(map(size_of, both_ends(frames, n)))
        return n_total

    n = next(n for n in _NUMBERS if total(n) <= allowed)
    ends = f"the {n} innermost and the {n} outermost" if n else "none"
    message = (
        f"of the frames of an entry {ends} are written: all would be many times the size of "
        "the file"
    )
    if n == MAX_LINES_OF_AN_END:
        if not n_cut_stacks:
            return n, ()
        message = f"of {n_cut_stacks} deep stacks only {ends} lines are shown"
    return n, (Note("left-out", message, device),)


def cut_frames(entries: Iterable[_Entry], n_of_an_end: int) -> tuple[_Entry, ...]:
    """Return the entries with no more than so many frames of each end."""

    @cache
    def cut(frames: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
        return tuple(both_ends(frames, n_of_an_end))

    return tuple(replace(entry, frames=cut(entry.frames)) for entry in entries)
