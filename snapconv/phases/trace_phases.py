"""The phase of training and the iteration that every event belongs to.

From the roles of stacks, and from the annotations that torch writes around optimizer steps (2.5
on). With what the optimizers of the trace keep for every parameter. Columns in, columns out.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    distinct,
    has_code,
    next_of,
    plain_rows,
    read_only,
    rows_of,
    run_starts,
)
from snapconv.phases.annotation_spans import recorded_functions
from snapconv.phases.recorded_matches import recorded_iterations, recorded_phases
from snapconv.replay.device_replay import AllocationTable
from snapconv.replay.lifetimes import real_events
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import normal
from snapconv.stacks.stack_roles import StackRoles, marked_stacks
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.optimizers import (
    OptimizerRow,
    Variant,
    has_other_sizes,
    n_same,
    rows_of_class,
    rows_of_file,
)

_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"
# torch calls a step `Optimizer.step#AdamW.step` (torch/optim/optimizer.py, profile_hook_step).
_STEP_NAME = re.compile(r"^Optimizer\.step#(\w+)\.step$")
# What is between a step and the line that calls it: a wrapper, a schedule of learning rates, a
# GradScaler.
_OPTIMIZER_FILE = re.compile(
    r"torch/(optim|amp|cuda/amp|utils/_contextlib|autograd/profiler)[/.\w]{0,255}\.py$"
)
_TORCH_OPTIMIZER = re.compile(r"torch/optim/(?!optimizer|lr_scheduler|swa_utils)\w+\.py$")


# Frees have stacks of their own where fewer than this share repeat those of their allocs.
_REPEATED_SHARE = 0.9


class Phase(IntEnum):
    """The phase of a training step, with the codes of RecordedPhase.

    OTHER is between the others, such as zero_grad.
    """

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers of a file.

    ``names``: their classes, if torch wrote them. ``variants``: for each the states that it may
    keep, by its options. ``are_known``: none was seen that is in no table. ``states_are_built``:
    each makes them when it is built itself, and so before the first gradients. ``may_be_several``:
    steps on several lines; an iteration may then have the gradients of one model only.
    """

    names: tuple[str, ...]
    variants: tuple[tuple[Variant, ...], ...]
    are_known: bool
    states_are_built: bool
    may_be_several: bool

    @property
    def needs_are_known(self) -> bool:
        """Whether parameters show what each keeps: its states are no larger than some copies.

        Histories of all weights together, and preconditioners, may have any size.
        """
        unbounded = any(
            variant.is_flat or variant.squares or variant.has_others
            for variants in self.variants
            for variant in variants
        )
        return self.are_known and not unbounded

    @property
    def states_range(self) -> tuple[int, int] | None:
        """The least and the most states of every parameter, in its size, by usual options.

        None where they are not known, or where optimizers differ.
        """
        if not (self.variants and self.are_known):
            return None
        ranges = set(map(_range_of_states, self.variants))
        return ranges.pop() if len(ranges) == 1 else None


@dataclass(frozen=True)
class Phases:
    """Phases of one device, one entry per event unless noted otherwise.

    ``certain`` is what the event itself shows, ``phase`` the same carried forward over events that
    show nothing, with the steps of hooks as a part of their backward. ``run_end`` is the last event
    of the run that shows the run's phase, ``run_last`` the one before the next run begins.
    ``iteration`` counts from 0. ``in_step`` and ``in_zero_grad`` mark the annotated ranges.
    ``free_sites_known``: frees carry their own stacks, not those of their allocs. ``is_recorded``:
    a recorder marked the phases, nothing is inferred. ``has_steps``: iterations are known by
    optimizer steps, or were counted; without, by backward runs. ``oom_events``: the allocations
    that failed. ``ends_in_oom``: nothing follows one.
    """

    certain: Int8Column
    phase: Int8Column
    run_end: Int32Column
    run_last: Int32Column
    iteration: Int32Column
    in_step: BoolColumn
    in_zero_grad: BoolColumn
    free_sites_known: bool
    is_recorded: bool
    has_steps: bool
    oom_events: Int64Column
    ends_in_oom: bool
    optimizers: Optimizers

    @property
    def n_iterations(self) -> int:
        """The number of iterations, at least 1."""
        return int(self.iteration[-1]) + 1 if len(self.iteration) else 1

    @cached_property
    def events_of_training(self) -> Int64Column:
        """The events that show a backward or a step."""
        is_backward = has_code(self.certain, Phase.BACKWARD)
        return rows_of(is_backward | has_code(self.certain, Phase.OPTIMIZER))

    def iteration_at(self, event: int) -> int | None:
        """Return the iteration of an event.

        None before the first, and where nothing ends an iteration.
        """
        is_known = event >= 0 and (self.has_steps or self.n_iterations > 1)
        return int(self.iteration[event]) if is_known else None

    def name_at(self, event: int) -> str | None:
        """Return the phase of an event as every answer names it; None before the first."""
        if event < 0:
            return None
        return Phase(int(self.phase[event])).name.lower()

    def next_after(self, phase: Phase, event: NDArray[np.integer[Any]]) -> EventColumn:
        """Return the first event after each (-1: the start) that shows a phase.

        The number of events where there is none.
        """
        shown = rows_of(has_code(self.certain, phase))
        return next_of(shown, event, len(self.certain))

    def begins_of(self, phase: Phase) -> Int64Column:
        """Return the first event of every run of a phase."""
        begins = run_starts(self.phase)
        return begins[has_code(self.phase[begins], phase)]

    def first(self, phase: Phase) -> int:
        """Return the first event that shows a phase; the number of events where none does."""
        is_shown = has_code(self.certain, phase)
        return int(is_shown.argmax()) if is_shown.any() else len(is_shown)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of events of one phase: where each begins, shows it for the last time, and ends.

    ``certain`` and ``phase`` have one entry per event, as in Phases, but for the steps of hooks.
    """

    certain: Int8Column
    phase: Int8Column
    begins: Int64Column
    shown_ends: Int64Column
    lasts: Int64Column

    def spread(self, values: Int64Column) -> Int32Column:
        """Give the value of each run to all of its events."""
        return np.repeat(values.astype(np.int32), self.lasts - self.begins + 1)


@stage
def find_phases(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    allocations: AllocationTable,
    roles: StackRoles,
) -> Phases:
    """Label every event with its phase and its iteration."""
    events = real_events(device.events)
    is_step = annotated(snapshot, device, _STEP)
    is_zero_grad = annotated(snapshot, device, _ZERO_GRAD)
    free_sites_known = _frees_have_stacks(events, allocations, roles)
    recorded = recorded_phases(snapshot.metadata, events)
    if recorded is not None:
        certain = np.where(recorded > 0, recorded, np.int8(Phase.OTHER))
    elif device.is_host:
        # Its frames show who pins memory, on whatever thread, and not what the program does.
        certain = np.zeros(len(events), np.int8)
    else:
        stack = _shown_stacks(events, free_sites_known=free_sites_known)
        certain = _labels(stack, roles, is_step, is_zero_grad)
    runs = _find_runs(_hooks_as_backward(certain, roles, events.stack_id))
    iteration, is_counted = _find_iterations(snapshot, device, events, runs)
    phases = Phases(
        certain=certain,
        phase=runs.phase,
        run_end=runs.spread(runs.shown_ends),
        run_last=runs.spread(runs.lasts),
        iteration=iteration,
        in_step=is_step,
        in_zero_grad=is_zero_grad,
        free_sites_known=free_sites_known,
        is_recorded=recorded is not None,
        has_steps=is_counted or bool(has_code(certain, Phase.OPTIMIZER).any()),
        optimizers=find_optimizers(snapshot, roles),
        oom_events=rows_of(has_code(events.action, Action.OOM)),
        ends_in_oom=Action.OOM in device.events.action[-1:],
    )
    return read_only(phases)


def _hooks_as_backward(
    certain: Int8Column, roles: StackRoles, stack_id: Int32Column
) -> Int8Column:
    """Return the phases with those of hooks as a part of their backward.

    A step for one parameter, as soon as it has its gradient, ends neither backward nor the
    iteration.
    """
    is_hook = marked_stacks(roles.is_hook, stack_id) & (certain > 0)
    return np.where(is_hook, np.int8(Phase.BACKWARD), certain).astype(np.int8)


def _shown_stacks(events: EventTable, *, free_sites_known: bool) -> Int32Column:
    """Return the stack of every event that shows what runs then; -1 for none."""
    if free_sites_known:
        return events.stack_id
    is_alloc = has_code(events.action, Action.ALLOC)
    return np.where(is_alloc, events.stack_id, -1).astype(np.int32)


def _find_runs(certain: Int8Column) -> _Runs:
    n = len(certain)
    if not n:
        no_rows = np.zeros(0, np.int64)
        return _Runs(certain, certain, no_rows, no_rows, no_rows)
    shows = rows_of(certain > 0)
    # What comes before the first event that shows a phase is a run of its own, of none.
    kind = np.append(certain[:1], certain[shows])
    first = np.append(0, shows)
    starts = run_starts(kind)
    begins = first[starts]
    shown_ends = first[np.append(starts[1:], len(first)) - 1]
    lasts = np.append(begins[1:] - 1, n - 1)
    phase = np.repeat(kind[starts], lasts - begins + 1)
    return _Runs(certain, phase, begins, shown_ends, lasts)


def annotated(snapshot: Snapshot, device: DeviceSnapshot, prefix: str) -> BoolColumn:
    """Mark the events inside an annotated range whose name begins with ``prefix``."""
    inside = np.zeros(len(device.events), bool)
    _, first, last = recorded_functions(snapshot, device, prefix)
    for begin, end in plain_rows(first, last):
        inside[begin : end + 1] = True
    return inside


def _silent_steps(
    snapshot: Snapshot, device: DeviceSnapshot, certain: Int8Column
) -> Int64Column:
    """Return the first events after annotated steps in which nothing was allocated or freed.

    SGD, and every fused optimizer, updates in place once its states are there.
    """
    _, _, last_event = recorded_functions(snapshot, device, _STEP)
    event = last_event + 1
    event = event[(event > 0) & (event < len(certain))]
    previous = certain[event - 1]
    # A hook's step is within a backward that goes on at once.
    is_within_backward = has_code(previous, Phase.BACKWARD)
    is_within_backward &= has_code(certain[event], Phase.BACKWARD)
    is_shown = has_code(previous, Phase.OPTIMIZER)
    return np.asarray(event[~(is_shown | is_within_backward)], np.int64)


def _frees_have_stacks(
    events: EventTable, allocations: AllocationTable, roles: StackRoles
) -> bool:
    """Return whether frees have stacks of their own.

    With context='alloc' they repeat those of allocs.
    """
    requested = allocations.free_requested_event
    is_complete = (allocations.alloc_event >= 0) & (requested >= 0)
    alloc_stack = events.stack_id[allocations.alloc_event[is_complete]]
    free_stack = allocations.free_stack_id[is_complete]
    # Two stacks without a frame are the same stack, and are no evidence.
    is_captured = marked_stacks(~roles.is_empty, alloc_stack) & (free_stack >= 0)
    if not is_captured.any():
        stacks = events.stack_id[requested[requested >= 0]]
        return not len(stacks) or bool(np.any(stacks >= 0))
    n_repeated = np.count_nonzero(is_captured & (alloc_stack == free_stack))
    return bool(n_repeated / np.count_nonzero(is_captured) < _REPEATED_SHARE)


def _labels(
    stack: Int32Column, roles: StackRoles, is_step: BoolColumn, is_zero_grad: BoolColumn
) -> Int8Column:
    """Return the phase that each event shows by its stack and by the annotated ranges."""
    label: Int8Column = np.take(
        _phases_of_stacks(roles, engine=_engine_stacks(roles)), stack
    )
    rows = rows_of(is_step)
    if len(rows):
        label[rows] = _labels_of_steps(roles, rows, stack[rows], label[rows])
    rows = rows_of(is_zero_grad)
    is_within_step = roles.of(Role.OPTIMIZER, stack[rows])
    label[rows[~is_within_step]] = Phase.OTHER  # a closure may call zero_grad within a step
    return label


def _phases_of_stacks(roles: StackRoles, *, engine: BoolColumn | None) -> Int8Column:
    """Return the phase that each stack shows, one entry per stack, the last for stack -1."""
    has = roles.has
    phase = np.zeros(len(roles.stacks) + 1, np.int8)
    shown = phase[:-1]
    shown[has[Role.MODULE_CALL] | has[Role.LOSS]] = Phase.FORWARD
    if engine is not None:
        shown[engine] = Phase.BACKWARD
    shown[has[Role.ZERO_GRAD]] = Phase.OTHER
    shown[has[Role.OPTIMIZER]] = Phase.OPTIMIZER
    return phase


def _labels_of_steps(
    roles: StackRoles, rows: Int64Column, stack: Int32Column, label: Int8Column
) -> Int8Column:
    """Return the labels of events in annotated steps; those of their stacks are given.

    A step may be given a closure with a forward and a backward in it. Where the trace begins in
    such a step, that forward may be lost. In a step without a closure the engine runs no backward.
    """
    forward = marked_stacks(roles.has[Role.MODULE_CALL] | roles.has[Role.LOSS], stack)
    begins_trace = rows == np.arange(len(rows))
    may_have_closure = begins_trace | forward.any()
    plain_label = np.take(_phases_of_stacks(roles, engine=None), stack)
    shown = np.where(may_have_closure, label, plain_label)
    is_of_step = (shown == 0) & ~marked_stacks(roles.is_closure, stack)
    return np.where(is_of_step, int(Phase.OPTIMIZER), shown)


def _engine_stacks(roles: StackRoles) -> BoolColumn:
    """Mark stacks of the autograd engine.

    With Python-only stacks its thread shows as an empty stack.
    """
    engine: BoolColumn = roles.has[Role.ENGINE] | roles.has[Role.RECOMPUTE]
    if roles.has_cpp or roles.is_empty.all():
        return engine
    return engine | roles.is_empty


def is_engine(roles: StackRoles, stack_ids: Int32Column) -> BoolColumn:
    """Return whether the autograd engine was at work in each of these stacks; False for -1."""
    return marked_stacks(_engine_stacks(roles), stack_ids)


def _find_iterations(
    snapshot: Snapshot, device: DeviceSnapshot, events: EventTable, runs: _Runs
) -> tuple[Int32Column, bool]:
    """Return the iteration of every event, and whether silent steps or a recorder count them.

    Each ends with a silent step or a run of steps; without any step, with a run of backward.
    """
    counted = recorded_iterations(snapshot.metadata, events)
    if counted is not None:
        return counted, True
    silent_steps = _silent_steps(snapshot, device, runs.certain)
    has_silent_steps = len(silent_steps) > 0
    kind = runs.phase[runs.begins]
    is_closing = has_code(kind, Phase.OPTIMIZER)
    if not (has_silent_steps or is_closing.any()):
        is_closing = has_code(kind, Phase.BACKWARD)
    ends = distinct(np.concatenate((runs.shown_ends[is_closing], silent_steps - 1)))
    return _numbered(runs.phase, ends), has_silent_steps


def _numbered(phase: Int8Column, ends: Int64Column) -> Int32Column:
    """Return the iteration of every event by the ends of iterations."""
    n = len(phase)
    edges = np.append(ends[ends < n - 1] + 1, n)
    numbers = np.arange(len(edges), dtype=np.int32)
    iteration = np.repeat(numbers, np.diff(edges, prepend=0))
    # What follows the last step without another forward or backward still belongs to it.
    last = int(ends[-1]) if len(ends) else -1
    following = phase[last + 1 :]
    begins_anew = has_code(following, Phase.FORWARD) | has_code(following, Phase.BACKWARD)
    if last >= 0 and not begins_anew.any():
        iteration[last + 1 :] = iteration[last]
    return iteration


# --- the optimizers, by name or by file


def _range_of_states(variants: tuple[Variant, ...]) -> tuple[int, int] | None:
    """Return the least and the most states of an optimizer; None if one is not as large."""
    usual = [variant for variant in variants if not variant.is_optional]
    if not any(variant.kinds[0] for variant in usual):
        usual = list(variants)
    if any(map(has_other_sizes, usual)):
        return None
    numbers = [n_same(kind) for variant in usual for kind in variant.kinds]
    return min(numbers), max(numbers)


def _variants_of(rows: tuple[OptimizerRow, ...]) -> tuple[Variant, ...]:
    """Return the variants of all rows of an optimizer, each once."""
    return tuple(dict.fromkeys(variant for row in rows for variant in row.variants))


def find_optimizers(snapshot: Snapshot, roles: StackRoles) -> Optimizers:
    """Find the optimizers, by the files of their steps' frames and by torch's annotations."""
    return known_optimizers(_annotated_optimizers(snapshot), roles)


def known_optimizers(names: set[str], roles: StackRoles) -> Optimizers:
    """Find the optimizers in the table; ``names`` are their classes, where torch wrote them."""
    optimizers = _rows_by_files(roles, names)
    if () not in optimizers and len(optimizers) < len(names):
        known_names = {row.name for rows in optimizers for row in rows}
        optimizers |= {tuple(rows_of_class(name)) for name in names - known_names}
    known_rows = [rows for rows in optimizers if rows]
    are_known = len(known_rows) == len(optimizers)
    is_built = [row.is_built for rows in known_rows for row in rows]
    variants = [_variants_of(rows) for rows in known_rows]
    return Optimizers(
        names=tuple(sorted(names)),
        variants=tuple(sorted(variants, key=repr)),
        are_known=are_known,
        states_are_built=bool(known_rows) and are_known and all(is_built),
        may_be_several=_n_lines_of_steps(roles.stacks, roles) > 1,
    )


def _annotated_optimizers(snapshot: Snapshot) -> set[str]:
    """Return the classes of the optimizers whose steps torch annotated."""
    name_ids = snapshot.annotations.name_id
    names = set()
    for name_id in distinct(name_ids[name_ids >= 0]).tolist():
        step = _STEP_NAME.match(snapshot.texts[name_id])
        if step:
            names.add(step[1])
    return names


def _rows_by_files(roles: StackRoles, names: set[str]) -> set[tuple[OptimizerRow, ...]]:
    """Return the rows of the optimizers whose steps the stacks show.

    No row for a step that is in no table.
    """
    stacks = roles.stacks
    functions = stacks.frames.names
    rows_of_frame: dict[int, tuple[OptimizerRow, ...]] = {}
    optimizers = set()
    for stack in rows_of(roles.has[Role.OPTIMIZER]).tolist():
        is_step = False
        for frame in reversed(stacks.frames_of(stack).tolist()):
            file = _file(stacks, frame)
            if not (functions[frame] == "step" or _TORCH_OPTIMIZER.search(file)):
                continue
            if frame not in rows_of_frame:
                rows_of_frame[frame] = tuple(rows_of_file(file, names))
            if rows_of_frame[frame]:
                optimizers.add(rows_of_frame[frame])
                break
            is_step |= not _OPTIMIZER_FILE.search(file)
        else:
            if is_step:
                optimizers.add(())
    return optimizers


def _n_lines_of_steps(stacks: StackTable, roles: StackRoles) -> int:
    """Count the lines that call steps: the first frame outside of the optimizers' own files."""
    calling_frames: set[int | None] = set()
    for stack in rows_of(roles.has[Role.OPTIMIZER]).tolist():
        calling = None
        for frame in reversed(stacks.frames_of(stack).tolist()):
            file = _file(stacks, frame)
            if _OPTIMIZER_FILE.search(file):
                calling_frames.add(calling)
                break
            if file.endswith(".py"):
                calling = frame
    return len(calling_frames - {None})


def _file(stacks: StackTable, frame: int) -> str:
    return normal(stacks.frames.filenames[frame])
