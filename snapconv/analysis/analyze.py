"""One device, analysed from end to end: the tables that reports and notebooks read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category
from snapconv.analysis.classify import classify
from snapconv.analysis.decisions import Classification
from snapconv.analysis.history import History, Verdict, judge_history
from snapconv.analysis.operations import UNNAMED, name_of_node, name_operations
from snapconv.analysis.phases import Phases, find_phases
from snapconv.analysis.project import Project
from snapconv.analysis.replay import AllocationTable, Curve, Replay, replay
from snapconv.analysis.stack_roles import assign_roles
from snapconv.analysis.weights import WeightTable, match_weights
from snapconv.notes import Note
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.stacks import StackTable
from snapconv.units import format_bytes

Int64Column = NDArray[np.int64]
Int32Column = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One training step: its first and last event, and the peak of allocated bytes within."""

    first_event: int
    last_event: int
    peak_event: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceAnalysis:
    """Everything known about one device.

    ``operation_id`` (position in ``operations``), ``iteration`` (-1: before the trace) and the columns
    of ``classification`` have one entry per row of ``replay.allocations``. ``activation_rows`` are the
    activations live at ``activation_event``, the high-water mark of activations in the iteration that
    holds the peak, newest first.
    """

    device: DeviceSnapshot
    replay: Replay
    history: History
    phases: Phases
    classification: Classification
    operations: tuple[str, ...]
    operation_id: Int32Column
    iteration: Int32Column
    iterations: tuple[Iteration, ...]
    weights: WeightTable
    activation_event: int
    activation_rows: Int64Column
    notes: tuple[Note, ...]

    @property
    def allocations(self) -> AllocationTable:
        """Every allocation of the device."""
        return self.replay.allocations

    @property
    def peak_event(self) -> int:
        """The first event after which allocated bytes are maximal; -1: before the first event."""
        return self.replay.allocated.peak_event

    def rows(self, category: Category) -> Int64Column:
        """The allocations of one category."""
        return np.flatnonzero(self.classification.category == category)


def analyze_device(snapshot: Snapshot, device: DeviceSnapshot, project: Project) -> DeviceAnalysis:
    """Replay and classify one device, and pick out what its report is about."""
    roles = assign_roles(snapshot.stacks)
    replayed = replay(snapshot, device)
    allocations = replayed.allocations
    phases = find_phases(snapshot, device, allocations, roles)
    classification = classify(allocations, phases, roles)
    history = judge_history(snapshot, device, replayed)
    operations, operation_id = _operations(snapshot.stacks, allocations)
    iterations = tuple(_iterations(replayed.allocated, phases))
    peak = replayed.allocated.peak_event
    around = iterations[int(phases.iteration[peak])] if peak >= 0 else iterations[0]
    activation_event, activation_rows = _activations(
        allocations, classification.category, around, len(device.events)
    )
    weights = match_weights(
        allocations,
        classification.category,
        event=peak,
        iteration_events=(around.first_event, around.last_event),
    )
    return DeviceAnalysis(
        device=device,
        replay=replayed,
        history=history,
        phases=phases,
        classification=classification,
        operations=operations,
        operation_id=operation_id,
        iteration=_iteration_of(allocations, phases),
        iterations=iterations,
        weights=weights,
        activation_event=activation_event,
        activation_rows=activation_rows,
        notes=tuple(_notes(snapshot, device, replayed, history, project, classification, weights)),
    )


def _operations(stacks: StackTable, allocations: AllocationTable) -> tuple[tuple[str, ...], Int32Column]:
    """Name every allocation by its stack, or else by the backward node that let go of it."""
    by_stack = name_operations(stacks)
    names: dict[str, int] = {UNNAMED: 0}
    id_of_stack = np.array([names.setdefault(name, len(names)) for name in by_stack] or [0], np.int32)
    has_stack = allocations.stack_id >= 0
    ids = np.where(has_stack, id_of_stack[np.where(has_stack, allocations.stack_id, 0)], 0).astype(np.int32)
    nameless = (ids == 0) & (allocations.free_stack_id >= 0)
    freed_by, inverse = np.unique(allocations.free_stack_id[nameless], return_inverse=True)
    by_node = [names.setdefault(name_of_node(stacks, stack), len(names)) for stack in freed_by.tolist()]
    ids[nameless] = np.array(by_node, np.int32)[inverse]
    return tuple(names), ids


def _iterations(allocated: Curve, phases: Phases) -> Iterator[Iteration]:
    if not len(phases.iteration):
        yield Iteration(-1, -1, -1, allocated.start)
        return
    for number in range(phases.n_iterations):
        first, after = np.searchsorted(phases.iteration, (number, number + 1)).tolist()
        peak = first + int(allocated.after[first:after].argmax())
        before = allocated.at(first - 1)
        at_start = before >= int(allocated.after[peak]) and number == 0
        yield Iteration(
            first, after - 1, -1 if at_start else peak, before if at_start else int(allocated.after[peak])
        )


def _iteration_of(allocations: AllocationTable, phases: Phases) -> Int32Column:
    traced = allocations.alloc_event >= 0
    of_event = np.full(len(allocations), -1, np.int32)
    of_event[traced] = phases.iteration[allocations.alloc_event[traced]]
    return of_event


def _activations(
    allocations: AllocationTable, category: NDArray[np.int8], around: Iteration, n_events: int
) -> tuple[int, Int64Column]:
    """The first moment of the iteration at which activations hold most, and who they are."""
    rows = np.flatnonzero(category == Category.ACTIVATION)
    alloc = allocations.alloc_event[rows]
    n_bytes = allocations.block_bytes[rows]
    let_go = allocations.free_requested_event[rows]
    end = np.where(let_go >= 0, let_go, allocations.end_event[rows])
    change = np.zeros(n_events + 1, np.int64)
    np.add.at(change, alloc + 1, n_bytes)
    np.subtract.at(change, end[end >= 0] + 1, n_bytes[end >= 0])
    first = around.first_event + 1 if around.first_event > 0 else 0
    event = first + int(np.cumsum(change)[first : around.last_event + 2].argmax()) - 1
    live = rows[allocations.live_at(event)[rows]]
    newest_first = np.lexsort((-allocations.addr[live], -allocations.alloc_event[live]))
    return event, live[newest_first]


def _notes(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    replayed: Replay,
    history: History,
    project: Project,
    classification: Classification,
    weights: WeightTable,
) -> Iterator[Note]:
    ordinal = device.device
    yield from snapshot.notes
    yield from replayed.notes
    if history.verdict is Verdict.TRUNCATED:
        yield Note(
            "truncated-history",
            f"{history.reason}: the true peak may lie before the first event; record with a larger "
            "max_entries",
            ordinal,
        )
    if len(snapshot.stacks.frames) and not project.is_project.any():
        yield Note("no-project-frames", "no frame lies in the project: name it with --project-root")
    if weights.n_unmatched_gradients:
        yield Note(
            "unmatched-gradients",
            f"{weights.n_unmatched_gradients} gradients live at the peak have the size of no weight that is "
            "left, so they are in no weight's row",
            ordinal,
        )
    live = replayed.allocations.live_at(replayed.allocated.peak_event)
    unknown = int(
        replayed.allocations.block_bytes[live & (classification.category == Category.UNKNOWN)].sum()
    )
    if unknown > replayed.allocated.peak // 20:
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the peak could not be classified; record from the start of the "
            "program with context='all' and stacks='all' for more",
            ordinal,
        )
