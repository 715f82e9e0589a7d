"""A file and its options -> one Analysis.

The files among the options are read first (``read_options``), since a mistake in them should be
reported before a long reading; then the snapshot; then one device after the other, since each may
be large.
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
    EventColumn,
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
from snapconv.snapshot.recorded.timing_file import CaptureTimes, Timing
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
    """The analysis of one device of a file; ``snapshot`` and ``facts`` are those of the whole file.

    ``lines`` has the project's lines of every stack. The classification went by ``features``.
    Names, weights and activations are found when an answer first needs them. ``operation_id``
    (position in ``operations``) and the columns of ``classification`` have one entry per row of
    ``replay.allocations``. Of a range of the trace, ``first_event`` is the file's number of its
    first event, and ``n_events_outside`` events of the file are not in it.
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
    first_event: int = 0
    n_events_outside: int = 0

    def __repr__(self) -> str:
        """Return a line: the device, its peak, and how many allocations there are."""
        name = device_name(self.device.device)
        peak = format_bytes(self.replay.allocated.peak)
        return f"{name} peak {peak}, {counted(len(self.allocations), 'allocation')}"

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
        if self.peak_event < 0:
            return self.iterations[0]
        return self.iterations[int(self.phases.iteration[self.peak_event])]

    @cached_property
    def project_frame(self) -> Int32Column:
        """The project's innermost frame of each allocation; -1: library code only, -2: no stack."""
        return np.take(self.facts.project_frame, self.allocations.stack_id)

    def main_line(self, rows: Int64Column) -> SourceLine | None:
        """Return the line of the project that made most bytes of some allocations."""
        frame = self.project_frame
        project_rows = rows[frame[rows] >= 0]
        if not len(project_rows):
            return None
        return self.lines.of_frame(int(frame[self.fullest(project_rows, frame)[0]]))

    def main_stack(self, rows: Int64Column) -> int:
        """Return the stack that made most bytes of some allocations."""
        stack_id = self.allocations.stack_id
        return int(stack_id[self.fullest(rows, stack_id)[0]])

    def fullest(self, rows: Int64Column, key: NDArray[Any]) -> Int64Column:
        """Return those of the rows with the key that has most bytes; of equals the least key."""
        return max(grouped(rows, key), key=self.allocations.bytes_of, default=rows)

    @cached_property
    def named(self) -> Operations:
        """The operation of every allocation, and the names of all."""
        return name_allocations(self.facts.stacks, self.facts.operations, self.allocations)

    def is_of_operation(self, *words: str) -> BoolColumn:
        """Mark what operations with one of some words in their names made."""
        is_named = []
        for name in self.operations:
            lowered = name.lower()
            is_named.append(any(word in lowered for word in words))
        is_named.append(False)  # without an operation the number is -1
        return np.array(is_named)[self.operation_id]

    @cached_property
    def modules(self) -> Modules:
        """The module of every allocation."""
        category = self.classification.category
        return find_modules(
            self.facts.module_calls, self.allocations, category, self.recorded
        )

    @cached_property
    def weights(self) -> WeightTable:
        """The weights that are live at the peak, with their gradients and any recorded names."""
        allocations = self.allocations
        event = self.peak_event
        if self.recorded is not None and len(self.recorded.parameters):
            return recorded_weights(self.recorded, self.device, allocations, event=event)
        is_copy = self.classification.has_reason(*COPIES_OF_WEIGHTS)
        category = np.where(is_copy, Category.UNKNOWN, self.classification.category)
        iteration_events = (self.peak_iteration.first_event, self.peak_iteration.last_event)
        return match_weights(
            allocations, category, event=event, iteration_events=iteration_events
        )

    @property
    def activation_event(self) -> int:
        """The first moment of the iteration with the peak that has most bytes of activations."""
        event, _ = self._activations
        return event

    @property
    def activation_rows(self) -> Int64Column:
        """The activations that are live then, newest first."""
        _, rows = self._activations
        return rows

    @cached_property
    def _activations(self) -> tuple[int, Int64Column]:
        allocations = self.allocations
        iteration = self.peak_iteration
        categories = categories_with(Trait.SKYLINE_ACTIVATION)
        rows = np.concatenate([self.rows(category) for category in categories])
        rows.sort()
        first = iteration.first_event if iteration.first_event > 0 else -1
        n_events = iteration.last_event + 1 - first
        n_bytes = allocations.block_bytes[rows]

        def sums(events: EventColumn) -> Int64Column:
            # Allocations that live longer add the same to every moment. -1 is no end.
            is_within = (events > first) & (events < first + n_events)
            return sums_by(events[is_within] - first, n_bytes[is_within], n_events)

        change = sums(allocations.alloc_event[rows]) - sums(allocations.freed_event[rows])
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
    def n_file_events(self) -> int:
        """The number of events of the whole trace, where this is a range of it."""
        return self.n_events + self.n_events_outside

    def file_event(self, event: int) -> int | None:
        """Return the file's number of an event; None before the first one of the file."""
        number = self.first_event + event
        return number if number >= 0 else None

    @property
    def traced_iterations(self) -> tuple[Iteration, ...]:
        """The iterations that have events; without a trace, the one that stands for all."""
        traced = tuple(row for row in self.iterations if row.first_event >= 0)
        return traced or self.iterations

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
                "not in it; on a GPU, `snapconv record` records it"
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
    """A file that was read and analysed: the input of every answer.

    ``path`` and ``options`` are the user's; the path of a capture is its folder. ``snapshot`` has
    the file's own tables (events, segments, blocks, stacks), ``devices`` one analysis per device,
    ``project`` separates the frames of the user from the rest. ``times`` are those of a capture.
    """

    path: Path
    snapshot: Snapshot
    project: Project
    devices: tuple[DeviceAnalysis, ...]
    times: CaptureTimes
    options: AnalysisOptions = field(default_factory=AnalysisOptions)

    def __repr__(self) -> str:
        """Return a line: the file, and the peak of every device."""
        return f"{str(self.path)!r}: {'; '.join(map(repr, self.devices))}"

    @property
    def timing(self) -> Timing | None:
        """The times of a capture; None where there are none."""
        return self.times.timing

    def device(self, number: int | None) -> DeviceAnalysis:
        """Return the analysis of a device, None for the first.

        Raises InputError where the file does not have the device.
        """
        return self.of_device(number).devices[0]

    def of_device(self, number: int | None) -> "Analysis":
        """Return the file with one device alone, None for all.

        Raises InputError where the file does not have the device.
        """
        chosen = [
            device
            for device in self.devices
            if number is None or number == device.device.device
        ]
        if not chosen:
            raise _no_device(
                self.snapshot, number, [device.device for device in self.devices]
            )
        return replace(self, devices=tuple(chosen))


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
    path = Path(path)
    times = CaptureTimes(path)
    return analyze(path, snapshot, options, devices=devices, times=times, progress=progress)


def read_options(options: AnalysisOptions) -> AnalysisOptions:
    """Read the files among the options; raises InputError where one is no such file."""
    if isinstance(options.rules, Path):
        return replace(options, rules=read_rules(options.rules))
    return options


@stage
def analyze(
    path: Path,
    snapshot: Snapshot,
    options: AnalysisOptions,
    *,
    devices: Sequence[DeviceSnapshot],
    times: CaptureTimes,
    progress: Progress | None,
) -> Analysis:
    """Analyse devices of a file that was read; their stacks are looked at once.

    ``options`` are those that ``read_options`` has read.
    """
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
    analyses = []
    for number, device in enumerate(devices):
        if progress:
            progress("analysing", number, len(devices))
        analyses.append(
            analyze_device(
                snapshot, device, facts, user_rules=user_rules, certain=options.certain
            )
        )
    return Analysis(path, snapshot, project, tuple(analyses), times, options)


def chosen_devices(snapshot: Snapshot, number: int | None) -> tuple[DeviceSnapshot, ...]:
    """Return a device, None for all; raises InputError where the file does not have it."""
    if number is None:
        return snapshot.devices
    chosen = tuple(device for device in snapshot.devices if device.device == number)
    if not chosen:
        raise _no_device(snapshot, number, snapshot.devices)
    return chosen


def _no_device(
    snapshot: Snapshot, number: int | None, devices: Iterable[DeviceSnapshot]
) -> InputError:
    existing = ", ".join(device_argument(device.device) for device in devices)
    missing = "any" if number is None else device_argument(number)
    return InputError(
        f"{snapshot.path} has nothing of device {missing}; it has: {existing}"
    )


def _requested_by_stack(snapshot: Snapshot) -> Int64Column:
    """Sum the bytes of a trace's allocations, and of the segments' blocks, by their stack."""
    n_stacks = len(snapshot.stacks)
    totals = np.zeros(n_stacks, np.int64)
    for device in snapshot.devices:
        events = device.events
        blocks = device.blocks
        allocs = rows_of(has_code(events.action, Action.ALLOC))
        for stack_id, n_bytes in (
            (events.stack_id[allocs], events.size[allocs]),
            (blocks.stack_id, blocks.block_bytes),
        ):
            has_stack = stack_id >= 0
            totals += sums_by(stack_id[has_stack], n_bytes[has_stack], n_stacks)
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
    """Replay and classify one device.

    ``user_rules`` win over ours; ``certain`` is as in the options.
    """
    device = rebuild_segments(snapshot, device)
    replayed = replay(snapshot, device)
    # The peak stays and its curve does not: it is found while there is memory for a curve.
    _ = replayed.active.peak_event
    allocations = replayed.allocations
    phases = find_phases(snapshot, device, allocations, facts.roles)
    recorded = None
    if snapshot.metadata is not None and not device.is_host:
        recorded = match_recorded(
            snapshot.metadata, device.device, device.events, allocations
        )
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
        iterations=tuple(find_iterations(replayed.allocated, phases)),
    )


def find_iterations(allocated: Curve, phases: Phases) -> Iterator[Iteration]:
    """Yield every iteration; one without an event, before a range of the trace, has no peak."""
    if not len(phases.iteration):
        yield Iteration(-1, -1, -1, allocated.start)
        return
    # A search with another kind of number would copy the whole column, for every iteration.
    numbers = np.arange(phases.n_iterations + 1, dtype=phases.iteration.dtype)
    starts = np.searchsorted(phases.iteration, numbers).tolist()
    for first, after in pairwise(starts):
        if first == after:
            yield Iteration(-1, -1, -1, allocated.start)
            continue
        peak = first + int(allocated.after[first:after].argmax())
        n_bytes = int(allocated.after[peak])
        if first == 0 and allocated.start >= n_bytes:
            peak = -1
            n_bytes = allocated.start
        yield Iteration(first, after - 1, peak, n_bytes)
