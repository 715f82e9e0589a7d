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
from snapconv.stacks.stack_roles import StackRoles, by_stack
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.optimizers import OF_OTHERS, OF_TORCH, OptimizerRule

_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"
# torch calls a step `Optimizer.step#AdamW.step` (torch/optim/optimizer.py, profile_hook_step).
_STEP_NAME = re.compile(r"^Optimizer\.step#(\w+)\.step$")
# What is between a step and the line that calls it: a wrapper, a schedule of learning rates, a
# GradScaler.
_OWN = re.compile(
    r"torch/(optim|amp|cuda/amp|utils/_contextlib|autograd/profiler)[/.\w]{0,255}\.py$"
)
_FILE = re.compile(r"torch/optim/(?!optimizer|lr_scheduler|swa_utils)(\w+)\.py$")


class Phase(IntEnum):
    """The phase of a training step, with the codes of RecordedPhase; OTHER is between, such as zero_grad."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers of a file.

    ``names``: their classes, if torch wrote them. ``states_range``: tensors that each keeps for
    every one of its parameters, the least and the most; None where one is not known, or where they
    differ. ``states_are_built``: each makes them when it is built itself, and so before the first
    gradients. ``are_known``: none was seen that is in no table. ``may_be_several``: steps on
    several lines; an iteration may then have the gradients of one model only.
    """

    names: tuple[str, ...]
    states_range: tuple[int, int] | None
    are_known: bool
    states_are_built: bool
    may_be_several: bool


@dataclass(frozen=True)
class Phases:
    """Phases of one device, one entry per event unless noted otherwise.

    ``certain`` is what the event itself shows, ``phase`` the same carried forward over events that
    show nothing, with the steps of hooks as a part of their backward. ``run_end`` is the last event
    of the run that shows the run's phase, ``run_last`` the one before the next run begins.
    ``iteration`` counts from 0. ``in_step`` and ``in_zero_grad`` mark the annotated ranges.
    ``n_iterations`` is at least 1. ``free_sites_known``: frees carry their own stacks, not those of
    their allocs. ``is_recorded``: a recorder marked the phases, nothing is inferred. ``has_steps``:
    iterations are known by optimizer steps, or were counted; without, by backward runs.
    ``oom_events``: the allocations that failed. ``ends_in_oom``: nothing follows one.
    """

    certain: Int8Column
    phase: Int8Column
    run_end: Int32Column
    run_last: Int32Column
    iteration: Int32Column
    in_step: BoolColumn
    in_zero_grad: BoolColumn
    n_iterations: int
    free_sites_known: bool
    is_recorded: bool
    has_steps: bool
    oom_events: Int64Column
    ends_in_oom: bool
    optimizers: Optimizers

    @cached_property
    def events_of_training(self) -> Int64Column:
        """The events that show a backward or a step."""
        return rows_of(
            has_code(self.certain, Phase.BACKWARD) | has_code(self.certain, Phase.OPTIMIZER)
        )

    def iteration_at(self, event: int) -> int | None:
        """Return the iteration of an event; None before the first, and where nothing ends an iteration."""
        is_known = event >= 0 and (self.has_steps or self.n_iterations > 1)
        return int(self.iteration[event]) if is_known else None

    def name_at(self, event: int) -> str | None:
        """Return the phase of an event as every answer names it; None before the first."""
        return Phase(int(self.phase[event])).name.lower() if event >= 0 else None

    def next_after(self, phase: Phase, event: NDArray[np.integer[Any]]) -> EventColumn:
        """Return the first event after each (-1: the start) that shows a phase, or the number of events."""
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


@stage
def find_phases(
    snapshot: Snapshot, device: DeviceSnapshot, allocations: AllocationTable, roles: StackRoles
) -> Phases:
    """Label every event with its phase and its iteration."""
    events = real_events(device.events)
    n = len(events)
    in_step = annotated(snapshot, device, _STEP)
    in_zero_grad = annotated(snapshot, device, _ZERO_GRAD)
    free_sites_known = _frees_have_stacks(events, allocations, roles)
    marked = recorded_phases(snapshot.metadata, events) if snapshot.metadata else None
    if marked is not None:
        certain = np.where(marked > 0, marked, np.int8(Phase.OTHER))
    elif device.is_host:
        # Its frames show who pins memory, on whatever thread, and not what the program does.
        certain = np.zeros(n, np.int8)
    else:
        certain = _labels(events, roles, in_step, in_zero_grad, free_sites_known=free_sites_known)
    # A step for one parameter, as soon as it has its gradient, ends neither backward nor the
    # iteration.
    in_hook = by_stack(roles.in_hook, events.stack_id) & (certain > 0)
    merged = np.where(in_hook, np.int8(Phase.BACKWARD), certain).astype(np.int8)
    phase, begins, ends, lasts = _runs(merged)
    counted = recorded_iterations(snapshot.metadata, events) if snapshot.metadata else None
    silent_steps = _silent_steps(snapshot, device, merged)
    has_steps = bool(has_code(phase, Phase.OPTIMIZER).any()) or len(silent_steps) > 0
    if counted is not None:
        iteration = counted
    else:
        closing = Phase.OPTIMIZER if has_steps else Phase.BACKWARD
        iteration = _iterations(phase, ends[has_code(phase[begins], closing)], silent_steps)
    found = Phases(
        certain=certain,
        phase=phase,
        run_end=np.repeat(ends.astype(np.int32), lasts - begins + 1),
        run_last=np.repeat(lasts.astype(np.int32), lasts - begins + 1),
        iteration=iteration,
        in_step=in_step,
        in_zero_grad=in_zero_grad,
        n_iterations=int(iteration[-1]) + 1 if n else 1,
        free_sites_known=free_sites_known,
        is_recorded=marked is not None,
        has_steps=has_steps
        or counted is not None
        or bool(np.any(in_hook & has_code(certain, Phase.OPTIMIZER))),
        optimizers=find_optimizers(snapshot, roles),
        oom_events=rows_of(has_code(events.action, Action.OOM)),
        ends_in_oom=bool(len(device.events) and device.events.action[-1] == Action.OOM),
    )
    return read_only(found)


def _runs(certain: Int8Column) -> tuple[Int8Column, Int64Column, Int64Column, Int64Column]:
    """Return the phase of every event; where each run begins, shows its phase for the last time, and ends."""
    n = len(certain)
    if not n:
        none = np.zeros(0, np.int64)
        return certain, none, none, none
    shows = rows_of(certain > 0)
    # What comes before the first event that shows a phase is a run of its own, of none.
    kind = np.append(certain[:1], certain[shows])
    first = np.append(0, shows)
    starts = run_starts(kind)
    begins = first[starts]
    ends = first[np.append(starts[1:], len(first)) - 1]
    lasts = np.append(begins[1:] - 1, n - 1)
    return np.repeat(kind[starts], lasts - begins + 1), begins, ends, lasts


def annotated(snapshot: Snapshot, device: DeviceSnapshot, prefix: str) -> BoolColumn:
    """Mark the events inside an annotated range whose name begins with ``prefix``."""
    inside = np.zeros(len(device.events), bool)
    _, first, last = recorded_functions(snapshot, device, prefix)
    for begin, end in plain_rows(first, last):
        inside[begin : end + 1] = True
    return inside


def _silent_steps(snapshot: Snapshot, device: DeviceSnapshot, certain: Int8Column) -> Int64Column:
    """Return the first events after annotated steps in which nothing was allocated or freed.

    SGD, and every fused optimizer, updates in place once its states are there.
    """
    event = recorded_functions(snapshot, device, _STEP)[2] + 1
    event = event[(event > 0) & (event < len(certain))]
    # A hook's step is within a backward that goes on at once.
    in_backward = has_code(certain[event - 1], Phase.BACKWARD) & has_code(
        certain[event], Phase.BACKWARD
    )
    return np.asarray(
        event[~(has_code(certain[event - 1], Phase.OPTIMIZER) | in_backward)], np.int64
    )


def _frees_have_stacks(events: EventTable, allocations: AllocationTable, roles: StackRoles) -> bool:
    """Return whether frees have stacks of their own: with context='alloc' they repeat those of allocs."""
    requested = allocations.free_requested_event
    both = (allocations.alloc_event >= 0) & (requested >= 0)
    alloc = events.stack_id[allocations.alloc_event[both]]
    free = allocations.free_stack_id[both]
    # Two stacks without a frame are the same stack, and are no evidence.
    captured = np.append(~roles.is_empty, False)[alloc] & (free >= 0)
    if not captured.any():
        stacks = events.stack_id[requested[requested >= 0]]
        return not len(stacks) or bool(np.any(stacks >= 0))
    return bool(np.count_nonzero(captured & (alloc == free)) / np.count_nonzero(captured) < 0.9)


def _labels(
    events: EventTable,
    roles: StackRoles,
    in_step: BoolColumn,
    in_zero_grad: BoolColumn,
    *,
    free_sites_known: bool,
) -> Int8Column:
    stack = events.stack_id
    if not free_sites_known:
        stack = np.where(has_code(events.action, Action.ALLOC), stack, -1).astype(np.int32)
    # One entry per stack, the last for stack -1. The second row is for a step without a closure, in
    # which the engine runs no backward.
    has = roles.has
    of_stack = np.zeros((2, len(roles.stacks) + 1), np.int8)
    forward = np.append(has[Role.MODULE_CALL] | has[Role.LOSS], False)
    of_stack[:, forward] = Phase.FORWARD
    of_stack[0, :-1][_engine_stacks(roles)] = Phase.BACKWARD
    of_stack[:, :-1][:, has[Role.ZERO_GRAD]] = Phase.OTHER
    of_stack[:, :-1][:, has[Role.OPTIMIZER]] = Phase.OPTIMIZER
    label: Int8Column = np.take(of_stack[0], stack)
    if len(rows := rows_of(in_step)):
        mine = stack[rows]
        # A step may be given a closure with a forward and a backward in it. Where the trace begins
        # in such a step, that forward may be lost.
        may_have_closure = (rows == np.arange(len(rows))) | forward[mine].any()
        found = np.where(may_have_closure, label[rows], of_stack[1][mine])
        label[rows] = np.where(
            (found == 0) & ~by_stack(roles.in_closure, mine), int(Phase.OPTIMIZER), found
        )
    rows = rows_of(in_zero_grad)  # that of a closure is within a step
    label[rows[~by_stack(has[Role.OPTIMIZER], stack[rows])]] = Phase.OTHER
    return label


def _engine_stacks(roles: StackRoles) -> BoolColumn:
    """Stacks of the autograd engine; with Python-only stacks its thread shows as an empty stack."""
    engine: BoolColumn = roles.has[Role.ENGINE] | roles.has[Role.RECOMPUTE]
    return engine if roles.has_cpp or roles.is_empty.all() else engine | roles.is_empty


def is_engine(roles: StackRoles, stack_ids: Int32Column) -> BoolColumn:
    """Return whether the autograd engine was at work in each of these stacks; False for -1."""
    return by_stack(_engine_stacks(roles), stack_ids)


def _iterations(phase: Int8Column, run_ends: Int64Column, silent_steps: Int64Column) -> Int32Column:
    """Return the iteration of every event: each ends with a run of the closing phase, or a silent step."""
    n = len(phase)
    if not n:
        return np.zeros(0, np.int32)
    ends = distinct(np.concatenate((run_ends, silent_steps - 1)))
    edges = np.append(ends[ends < n - 1] + 1, n)
    iteration = np.repeat(np.arange(len(edges), dtype=np.int32), np.diff(edges, prepend=0))
    # What follows the last step without another forward or backward still belongs to it.
    last = int(ends[-1]) if len(ends) else -1
    rest = phase[last + 1 :]
    if last >= 0 and not (has_code(rest, Phase.FORWARD) | has_code(rest, Phase.BACKWARD)).any():
        iteration[last + 1 :] = iteration[last]
    return iteration


# --- the optimizers, by name or by file


def find_optimizers(snapshot: Snapshot, roles: StackRoles) -> Optimizers:
    """Find the optimizers, by the names in torch's annotations, or else by the files of their frames."""
    stacks = snapshot.stacks
    named = snapshot.annotations.name_id
    steps = (
        _STEP_NAME.match(snapshot.texts[name]) for name in distinct(named[named >= 0]).tolist()
    )
    names = {step[1] for step in steps if step}
    in_optimizer = np.repeat(roles.has[Role.OPTIMIZER], np.diff(stacks.offsets))
    files = (
        _FILE.search(_file(stacks, frame))
        for frame in distinct(stacks.frame_ids[in_optimizer]).tolist()
    )
    rules = {rule_of(name, (*OF_TORCH, *OF_OTHERS)) for name in names}
    rules = rules or {
        rule_of(file[1].replace("_", ""), OF_TORCH, re.IGNORECASE) for file in files if file
    }
    ranges = {None if rule is None else (rule.least_states, rule.most_states) for rule in rules}
    return Optimizers(
        names=tuple(sorted(names)),
        states_range=ranges.pop() if len(ranges) == 1 else None,
        are_known=None not in rules,
        states_are_built=bool(rules) and all(rule is not None and rule.is_built for rule in rules),
        may_be_several=_n_lines_of_steps(stacks, roles) > 1,
    )


def rule_of(name: str, rules: tuple[OptimizerRule, ...], flags: int = 0) -> OptimizerRule | None:
    """Return the rule of an optimizer's class; None where it is not known."""
    return next((rule for rule in rules if re.search(rule.name, name, flags)), None)


def _n_lines_of_steps(stacks: StackTable, roles: StackRoles) -> int:
    """Count the lines that call steps: the first frame outside of the optimizers' own files."""
    found: set[int] = set()
    for stack in rows_of(roles.has[Role.OPTIMIZER]).tolist():
        frames = stacks.frames_of(stack).tolist()
        own = [place for place, frame in enumerate(frames) if _OWN.search(_file(stacks, frame))]
        outside = frames[own[-1] + 1 :] if own else []
        found.update(next(([f] for f in outside if _file(stacks, f).endswith(".py")), []))
    return len(found)


def _file(stacks: StackTable, frame: int) -> str:
    return normal(stacks.frames.filenames[frame])
