"""A file and its options -> one Analysis: the only place that analyses, and that goes from device to device.

What the user gives beside the file is read first (``read_options``), since a mistake in it should
be reported before a long reading; then the file; then one device after the other, since each may be
large.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.classification.classify import HOST_ORDER, ORDER, classify
from snapconv.classification.decisions import Classification
from snapconv.classification.facts import COPIES_OF_WEIGHTS
from snapconv.classification.features import Features, find_features
from snapconv.classification.user_rules import (
    NO_RULES,
    UserRule,
    UserRules,
    match_rules,
    read_rules,
)
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    grouped,
    has_code,
    rows_of,
    sums_by,
)
from snapconv.errors import InputError
from snapconv.naming.origins import Modules, find_modules, name_allocations
from snapconv.naming.weight_table import WeightTable, match_weights, recorded_weights
from snapconv.notes import Progress
from snapconv.phases.recorded_matches import RecordedMatches, match_recorded
from snapconv.phases.trace_phases import Phases, find_phases
from snapconv.replay.device_replay import AllocationTable, Curve, Replay, replay
from snapconv.replay.history_verdict import History, decide_history
from snapconv.replay.rebuilt_segments import rebuild_segments
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.stacks.project_frames import Project, find_project
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.stacks.stack_facts import Operations, StackFacts
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.backends import NO_ALLOCATOR
from snapconv.units import counted, device_argument, device_name, format_bytes


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """The options for one file; ``snapconv to-sqlite --help`` has the meaning of each.

    ``rules`` are a file or what was read from it; ``read_options`` reads the file.
    ``certain``: what is likely counts as unknown.
    """

    project_root: str | None = None
    includes: tuple[str, ...] = ()
    rules: Path | Sequence[UserRule] = ()
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Iteration:
    """One training step: its first and last event, and the peak of allocated bytes within."""

    first_event: int
    last_event: int
    peak_event: int
    peak_bytes: int


@dataclass(frozen=True)
class DeviceAnalysis:
    """Everything known about one device of a file; ``snapshot`` and ``facts`` are those of the whole file.

    ``lines`` has the project's lines of every stack. The classification went by ``features``.
    Names, weights and activations are found when an answer first needs them. ``operation_id``
    (position in ``operations``) and the columns of ``classification`` have one entry per row of
    ``replay.allocations``.
    """

    snapshot: Snapshot
    facts: StackFacts
    lines: ProjectLines
    device: DeviceSnapshot
    replay: Replay
    history: History
    features: Features
    classification: Classification
    iterations: tuple[Iteration, ...]

    def __repr__(self) -> str:
        """Return a line: the device, its peak, and how many allocations there are."""
        peak = format_bytes(self.replay.allocated.peak)
        return (
            f"{device_name(self.device.device)} peak {peak}, "
            f"{counted(len(self.allocations), 'allocation')}"
        )

    @property
    def project(self) -> Project:
        """The frames of the user's project."""
        return self.facts.project

    @property
    def allocations(self) -> AllocationTable:
        """Every allocation of the device."""
        return self.replay.allocations

    @property
    def phases(self) -> Phases:
        """The phase and the iteration of every event."""
        return self.features.phases

    @property
    def recorded(self) -> RecordedMatches | None:
        """What a recorder wrote, matched with the allocations; None where there is none."""
        return self.features.recorded

    @property
    def iteration(self) -> Int32Column:
        """The iteration of every allocation; -1: before the trace."""
        return self.features.iteration

    @property
    def peak_iteration(self) -> Iteration:
        """The iteration with the peak of allocated bytes."""
        return self.iterations[
            int(self.phases.iteration[self.peak_event]) if self.peak_event >= 0 else 0
        ]

    @cached_property
    def project_frame(self) -> Int32Column:
        """The project's innermost frame of every allocation; -1: library code only, -2: no stack."""
        return np.take(self.facts.project_frame, self.allocations.stack_id)

    def main_line(self, rows: Int64Column) -> SourceLine | None:
        """Return the line of the project that made most bytes of some allocations."""
        frame = self.project_frame
        rows = self.fullest(rows[frame[rows] >= 0], frame)[:1]
        return next(map(self.lines.of_frame, frame[rows].tolist()), None)

    def main_stack(self, rows: Int64Column) -> int:
        """Return the stack that made most bytes of some allocations."""
        stack_id = self.allocations.stack_id
        return int(stack_id[self.fullest(rows, stack_id)[0]])

    def fullest(self, rows: Int64Column, key: NDArray[Any]) -> Int64Column:
        """Return those of the rows with the key that has most bytes; of equals the least key."""
        return max(grouped(rows, key), key=self.allocations.bytes_of, default=rows)

    @cached_property
    def named(self) -> Operations:
        """The operation of every allocation."""
        return name_allocations(self.facts.stacks, self.facts.operations, self.allocations)

    @cached_property
    def modules(self) -> Modules:
        """The module of every allocation."""
        category = self.classification.category
        return find_modules(self.facts.module_calls, self.allocations, category, self.recorded)

    @cached_property
    def weights(self) -> WeightTable:
        """The weights that are live at the peak, with their gradients, and names where they were recorded."""
        allocations = self.allocations
        category = self.classification.category
        event = self.peak_event
        if self.recorded is not None and len(self.recorded.parameters):
            return recorded_weights(self.recorded, self.device, allocations, event=event)
        category = np.where(
            self.classification.has_reason(*COPIES_OF_WEIGHTS), Category.UNKNOWN, category
        )
        iteration_events = (self.peak_iteration.first_event, self.peak_iteration.last_event)
        return match_weights(allocations, category, event=event, iteration_events=iteration_events)

    @property
    def activation_event(self) -> int:
        """The first moment of the iteration with the peak that has most bytes of activations."""
        return self._activations[0]

    @property
    def activation_rows(self) -> Int64Column:
        """The activations that are live then, newest first."""
        return self._activations[1]

    @cached_property
    def _activations(self) -> tuple[int, Int64Column]:
        allocations = self.allocations
        iteration = self.peak_iteration
        rows = np.concatenate([self.rows(one) for one in categories_with(Trait.SKYLINE_ACTIVATION)])
        rows.sort()
        n_bytes = allocations.block_bytes[rows]
        first = iteration.first_event if iteration.first_event > 0 else -1
        n_within = iteration.last_event + 1 - first
        change = np.zeros(n_within, np.int64)
        for sign, events in (
            (1, allocations.alloc_event[rows]),
            (-1, allocations.freed_event[rows]),
        ):
            # What is live all along adds the same to every moment. -1 is no end.
            is_within = (events > first) & (events < first + n_within)
            change += sign * sums_by(events[is_within] - first, n_bytes[is_within], n_within)
        event = first + int(np.cumsum(change).argmax())
        live = rows[allocations.live_at(event)[rows]]
        newest_first = np.lexsort((-allocations.addr[live], -allocations.alloc_event[live]))
        return event, live[newest_first]

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of all operations."""
        return self.named.names

    @property
    def operation_id(self) -> Int32Column:
        """The operation of every allocation."""
        return self.named.name_id

    @property
    def peak_event(self) -> int:
        """The first event after which allocated bytes are maximal; -1: before the first event."""
        return self.replay.allocated.peak_event

    @property
    def n_events(self) -> int:
        """The number of events in the trace."""
        return len(self.device.events)

    @property
    def live_at_peak(self) -> BoolColumn:
        """Whether each allocation is live just after the peak's event."""
        return self.allocations.live_at(self.peak_event)

    @property
    def ran_out(self) -> bool:
        """Whether a request failed for want of memory."""
        return len(self.phases.oom_events) > 0

    @property
    def has_allocator(self) -> bool:
        """Whether an allocator wrote the file: torch.profiler knows tensors alone."""
        return self.snapshot.era.backend != NO_ALLOCATOR

    def require_allocator(self) -> None:
        """Raise InputError where the file does not have what an allocator reserves."""
        if not self.has_allocator:
            raise InputError(
                f"{self.snapshot.path} has tensors and not the allocator: what was reserved is "
                f"not in it; "
                "on a GPU, `snapconv record` records it"
            )

    @property
    def urgency(self) -> tuple[bool, bool, int]:
        """The order in which a reader wants devices: those that ran out of memory, then by peak."""
        return not self.ran_out, self.device.is_host, -self.replay.allocated.peak

    def rows(self, category: Category) -> Int64Column:
        """Return the allocations of one category."""
        return rows_of(self.classification.category == category)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A file that was read and analysed: what every answer takes.

    ``path`` is the path that was given, the folder of a capture too, and ``options`` what was given
    beside it. ``snapshot`` has the file's own tables (events, segments, blocks, stacks),
    ``devices`` one analysis per device, ``project`` separates the frames of the user from the rest.
    """

    path: Path
    snapshot: Snapshot
    project: Project
    devices: tuple[DeviceAnalysis, ...]
    options: AnalysisOptions = field(default_factory=AnalysisOptions)

    def __repr__(self) -> str:
        """Return a line: the file, and the peak of every device."""
        return f"{str(self.path)!r}: {'; '.join(map(repr, self.devices))}"

    def device(self, number: int | None) -> DeviceAnalysis:
        """Return the analysis of a device, None for the first; raises InputError where there is none."""
        return self.of_device(number).devices[0]

    def of_device(self, number: int | None) -> "Analysis":
        """Return the file with one device alone (None: all); raises InputError if it has no such device."""
        chosen = tuple(found for found in self.devices if number in (None, found.device.device))
        if not chosen:
            raise _no_device(self.snapshot, number, (found.device for found in self.devices))
        return replace(self, devices=chosen)


def analyze_file(
    path: str | Path,
    options: AnalysisOptions,
    *,
    device: int | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Read and analyse a file, or one of its devices; raises SnapconvError."""
    options = read_options(options)
    snapshot = load_snapshot(path, progress=progress)
    devices = chosen_devices(snapshot, device)
    return analyze(Path(path), snapshot, options, devices=devices, progress=progress)


def read_options(options: AnalysisOptions) -> AnalysisOptions:
    """Read the files among the options; raises InputError where one is damaged or something else."""
    rules = options.rules
    return replace(options, rules=read_rules(rules) if isinstance(rules, Path) else rules)


@stage
def analyze(
    path: Path,
    snapshot: Snapshot,
    options: AnalysisOptions,
    *,
    devices: Sequence[DeviceSnapshot] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Analyse a file that was read, or some of its devices; their stacks are looked at once."""
    options = read_options(options)
    stacks = snapshot.stacks
    rules = options.rules
    assert not isinstance(rules, Path)
    project = find_project(
        stacks,
        bytes_of_stack=_requested_by_stack(snapshot),
        root=options.project_root,
        recorded=snapshot.recorded_project,
        includes=options.includes,
    )
    facts = StackFacts(stacks, project)
    user_rules = match_rules(rules, stacks)
    chosen = snapshot.devices if devices is None else devices
    found = []
    for number, device in enumerate(chosen):
        if progress:
            progress("analysing", number, len(chosen))
        found.append(
            analyze_device(snapshot, device, facts, user_rules=user_rules, certain=options.certain)
        )
    return Analysis(path, snapshot, project, tuple(found), options)


def chosen_devices(snapshot: Snapshot, device: int | None) -> tuple[DeviceSnapshot, ...]:
    """Return the device that was named, or all; raises InputError where the file does not have it."""
    found = tuple(one for one in snapshot.devices if device in (None, one.device))
    if device is not None and not found:
        raise _no_device(snapshot, device, snapshot.devices)
    return found


def _no_device(
    snapshot: Snapshot, device: int | None, devices: Iterable[DeviceSnapshot]
) -> InputError:
    there = ", ".join(device_argument(one.device) for one in devices)
    missing = "any" if device is None else device_argument(device)
    return InputError(f"{snapshot.path} has nothing of device {missing}; it has: {there}")


def _requested_by_stack(snapshot: Snapshot) -> Int64Column:
    """Sum the bytes of all allocations of the trace, and of the blocks in the segments, by their stack."""
    totals = np.zeros(len(snapshot.stacks), np.int64)
    for device in snapshot.devices:
        events = device.events
        blocks = device.blocks
        allocs = rows_of(has_code(events.action, Action.ALLOC) & (events.stack_id >= 0))
        totals += sums_by(events.stack_id[allocs], events.size[allocs], len(totals))
        has_stack = blocks.stack_id >= 0
        totals += sums_by(blocks.stack_id[has_stack], blocks.block_bytes[has_stack], len(totals))
    return totals


@stage
def analyze_device(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    facts: StackFacts,
    *,
    user_rules: UserRules = NO_RULES,
    certain: bool = False,
) -> DeviceAnalysis:
    """Replay and classify one device; ``user_rules`` win over ours; ``certain`` is as in the options."""
    device = rebuild_segments(snapshot, device)
    replayed = replay(snapshot, device)
    _ = replayed.active.peak_event  # found now, while there is memory for a curve: it is not kept
    allocations = replayed.allocations
    phases = find_phases(snapshot, device, allocations, facts.roles)
    recorded = None
    if snapshot.metadata is not None and not device.is_host:
        recorded = match_recorded(snapshot.metadata, device.device, device.events, allocations)
    features = find_features(
        replayed,
        phases,
        facts.roles,
        user_rules=user_rules,
        recorded=recorded,
        profiler_category=device.events.profiler_category,
    )
    classification = classify(features, HOST_ORDER if device.is_host else ORDER)
    if certain:
        classification = classification.only_certain()
    return DeviceAnalysis(
        snapshot=snapshot,
        facts=facts,
        lines=ProjectLines(snapshot.stacks, facts.project),
        device=device,
        replay=replayed,
        history=decide_history(snapshot, device, replayed),
        features=features,
        classification=classification,
        iterations=tuple(_iterations(replayed.allocated, phases)),
    )


def _iterations(allocated: Curve, phases: Phases) -> Iterator[Iteration]:
    if not len(phases.iteration):
        yield Iteration(-1, -1, -1, allocated.start)
        return
    # A search with another kind of number would copy the whole column, for every iteration.
    numbers = np.arange(phases.n_iterations + 1, dtype=phases.iteration.dtype)
    starts = np.searchsorted(phases.iteration, numbers).tolist()
    for number, (first, after) in enumerate(pairwise(starts)):
        peak = first + int(allocated.after[first:after].argmax())
        before = allocated.at(first - 1)
        at_start = before >= int(allocated.after[peak]) and number == 0
        yield Iteration(
            first,
            after - 1,
            -1 if at_start else peak,
            before if at_start else int(allocated.after[peak]),
        )
