"""What every allocation of a recorded run was for, from what was recorded and not from any rule of ours.

A note names parameters, gradients, states, inputs, and what autograd saved. For the rest the
category follows from the definitions, by the phases that were marked: what forward made is an
activation if it is there when backward begins, else temporary; what is computed again within
backward (by a checkpoint, a function or a hook) is one if it is there when that forward ends, or
when a backward begins that is a part of it; what backward and the optimizer make for themselves is
temporary, and what backward made and left behind is a gradient, as those of single samples are.
Where that leaves room, the truth is ``unknown``, and the allocation is not counted.

After a forward without a graph (embeddings that are computed without gradients, then compared), a
graph may come about outside of modules: what its backward frees there was an activation.

Autograd saves a tensor for a backward that may come. None can come any more once a module's own
forward has freed it: the result that held the graph is gone. Then it is temporary, though it was
saved. What a graph still held when the modules had returned is an activation, with a backward or
without.

What an entry names as a batch is an input unless a module made it; what it names as activations are
those that a backward finds or nothing frees: for the rest the definitions are as for what it does
not name.

A module's function ``forward`` makes what it makes in forward, also where the program calls it itself.
What a module has put on the device for a forward is a weight, also if the program gives the
parameter other memory before any note of it.

What autocast casts of weights are copies of weights: what it drops at its exit, and of what a graph
keeps those casts that are half as large as a parameter, where a forward has no more of that size
than parameters. An input of an operation is cast by the same code: where its size makes them more,
they are not counted.

A batch that is put together after the forward of another model (``x / 255`` after a target network)
is an input as before it: a model was called with it, and neither a module nor an operation with a
gradient made it.
"""

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recording import NAMED_BY_ENTRY, Recording

from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int8Column, Int64Column
from snapconv.phases.recorded_matches import RecordedMatches, match_recorded, recorded_phases
from snapconv.recorder.observe.tensors import Row
from snapconv.replay.device_replay import AllocationTable, replay
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import load_snapshot
from snapconv.snapshot.recorded.metadata import RecordedPhase

# A column of events may be narrower: of a Python integer NumPy would keep the low bits only.
_NEVER = np.int64(np.iinfo(np.int64).max)
# Of a cast by autocast that may be one of a weight or of an input.
_NOT_COUNTED = -1


@dataclass(frozen=True, slots=True)
class Truth:
    """Per allocation of the whole run: its category, and whether it was recorded by name."""

    allocations: AllocationTable
    category: Int8Column
    is_recorded: BoolColumn


def truth_of(recorded: Recording, folder: Path) -> Truth:
    """Work out the truth of a run; ``folder`` is for a file on the way."""
    path = folder / "recorded.pickle"
    path.write_bytes(pickle.dumps(recorded.raw))
    snapshot = load_snapshot(path)
    if snapshot.metadata is None:
        raise ValueError(f"what was recorded cannot be read: {snapshot.notes}")
    (device,) = snapshot.devices
    allocations = replay(snapshot, device).allocations
    phases = recorded_phases(snapshot.metadata, device.events)
    assert phases is not None
    matches = match_recorded(snapshot.metadata, device.device, device.events, allocations)
    is_called = _is_in_function("forward", allocations.alloc_event, recorded)
    moments = _Moments(allocations, device.events, phases, recorded, is_called)
    category = _told(allocations, device.events, recorded)
    is_kept = ~(
        _is_in_module(allocations.free_requested_event, recorded) & moments.ends_in_own_forward()
    )
    # One module's result is the next one's input (a loss after a model); a batch comes from
    # outside, also between the forwards of two models.
    may_be_given = moments.marked_phase != RecordedPhase.FORWARD
    may_be_given |= _has_no_history(matches, len(allocations)) & ~_is_in_module(
        allocations.alloc_event, recorded
    )
    is_kept &= ~_named(allocations, device.events, recorded, "saved") | moments.may_be_activation()
    of_matches = _recorded(matches, may_be_given, is_kept)
    category = np.where(is_open(category), of_matches, category)
    for rows, found in _casts_of_weights(allocations, recorded, matches, moments):
        category[rows & (is_open(category) | (category == Category.ACTIVATION))] = found
    is_counted = category != _NOT_COUNTED
    named_inputs = _named(allocations, device.events, recorded, "inputs")
    named_inputs &= ~_is_in_module(allocations.alloc_event, recorded)
    category[named_inputs & ((category == Category.ACTIVATION) | is_open(category))] = (
        Category.INPUT
    )
    is_recorded = category != Category.UNKNOWN
    for rows, found in moments.by_phase():
        category[is_open(category) & rows] = found
    is_placed = _is_in(allocations.alloc_event, recorded, "_apply", "torch/nn/modules/module.py")
    category[is_placed & ~is_recorded & (category == Category.INPUT)] = Category.WEIGHT
    category[~is_counted], is_recorded[~is_counted] = Category.UNKNOWN, False
    return Truth(allocations, category, is_recorded)


def _told(allocations: AllocationTable, events: EventTable, recorded: Recording) -> Int8Column:
    """Find what the simulation made itself, and what an entry names that no capture has a key for."""
    category = np.zeros(len(allocations), np.int8)
    is_kept = allocations.end_event < 0
    category[is_kept & np.isin(allocations.addr, recorded.workspaces)] = Category.WORKSPACE
    for name, rows in recorded.told.items():
        for row in rows:
            category[_lies_at(allocations, events, row)] = Category[name.upper()]
    return category


def _named(
    allocations: AllocationTable, events: EventTable, recorded: Recording, key: str
) -> BoolColumn:
    """Find what the entry itself names as inputs or as activations: a batch may be fetched in a forward."""
    named = np.zeros(len(allocations), np.bool_)
    for row in recorded.raw["snapconv"][key]:
        if row.get("name") == NAMED_BY_ENTRY:
            named[_lies_at(allocations, events, row)] = True
    return named


def _lies_at(allocations: AllocationTable, events: EventTable, row: Row) -> Int64Column:
    """Return the allocation that a row of memory is part of: it is there at that time."""
    assert events.time_us is not None
    moment = int(np.searchsorted(events.time_us, row["noted_us"], side="right"))
    within = (allocations.addr <= row["addr"]) & (
        row["addr"] < allocations.addr + allocations.block_bytes
    )
    end = np.where(allocations.end_event >= 0, allocations.end_event, _NEVER)
    return np.flatnonzero(within & (allocations.alloc_event < moment) & (end >= moment))


def _is_in_module(event: NDArray[np.integer[Any]], recorded: Recording) -> BoolColumn:
    """For each event whether a module was being called then; no mark of the recorder says so."""
    return _is_in_function("_call_impl", event, recorded)


def _is_in_function(
    function: str, event: NDArray[np.integer[Any]], recorded: Recording
) -> BoolColumn:
    """For each event whether a function of this name was being called then."""
    (trace,) = recorded.raw["device_traces"]
    is_in = {
        number: any(frame["name"] == function for frame in trace[number]["frames"])
        for number in np.unique(event).tolist()
        if number >= 0
    }
    return np.array([is_in.get(number, False) for number in event.tolist()], bool)


def _is_in(
    event: NDArray[np.integer[Any]], recorded: Recording, name: str, file: str = ""
) -> BoolColumn:
    """For each event whether its stack has a function that begins with a name, in a file that ends so."""
    (trace,) = recorded.raw["device_traces"]
    is_in = {
        number: any(
            frame["name"].startswith(name) and frame["filename"].endswith(file)
            for frame in trace[number]["frames"]
        )
        for number in np.unique(event).tolist()
        if number >= 0
    }
    return np.array([is_in.get(number, False) for number in event.tolist()], bool)


def _is_input(allocations: AllocationTable, is_cast: BoolColumn) -> BoolColumn:
    """Find casts of an operation's input: the last of bias, weight and input, in which order they are cast.

    It is the third of an operation, or comes after one that is no smaller: a bias is smaller than
    its weight.
    """
    stack, n_bytes = allocations.stack_id, allocations.requested_bytes
    follows = np.append(False, is_cast[1:] & is_cast[:-1] & (stack[1:] == stack[:-1]))
    is_third = np.append(False, follows[1:] & follows[:-1])
    return np.asarray(follows & (is_third | np.append(False, n_bytes[1:] <= n_bytes[:-1])))


def _casts_of_weights(
    allocations: AllocationTable, recorded: Recording, matches: RecordedMatches, moments: "_Moments"
) -> Iterator[tuple[BoolColumn, int]]:
    """Find the copies of weights that autocast made, then what may be one or the cast of an input."""
    is_cast = _is_in(allocations.alloc_event, recorded, "at::autocast::cached_cast(")
    if not is_cast.any():
        return
    exits = _is_in(
        allocations.free_requested_event, recorded, "__exit__", "torch/amp/autocast_mode.py"
    )
    yield is_cast & exits, Category.WEIGHT
    sizes = matches.metadata.parameters.n_bytes[~matches.metadata.parameters.is_buffer]
    n_parameters = Counter(sizes.tolist())
    rows = np.flatnonzero(
        is_cast
        & ~_is_input(allocations, is_cast)
        & moments.may_be_activation()
        & ~moments.ends_in_own_forward()
    )
    dropped = np.unique(allocations.free_requested_event[exits])
    key = np.searchsorted(dropped, moments.alloc[rows]), moments.next_backward()[rows]
    keys = list(
        zip(
            *(column.tolist() for column in key),
            allocations.requested_bytes[rows].tolist(),
            strict=True,
        )
    )
    n_casts = Counter(keys)
    for row, forward in zip(rows.tolist(), keys, strict=True):
        n_most = n_parameters[2 * forward[-1]]
        if n_most:
            yield (
                _mask(np.array([row]), len(is_cast)),
                (Category.WEIGHT if n_casts[forward] <= n_most else _NOT_COUNTED),
            )


def _backward_within_module(recorded: Recording) -> list[int]:
    """Return the events of backwards that were called within a module's call."""
    (trace,) = recorded.raw["device_traces"]
    found = []
    for number, event in enumerate(trace):
        names = [frame["name"] for frame in event["frames"]]
        if (
            "_engine_run_backward" in names
            and "_call_impl" in names[names.index("_engine_run_backward") :]
        ):
            found.append(number)
    return found


def _has_no_history(matches: RecordedMatches, n_rows: int) -> BoolColumn:
    """Find what autograd saved although no operation that has a gradient computed it."""
    saved = matches.saved[matches.metadata.saved.without_history]
    return _mask(saved, n_rows)


def _mask(rows: Int64Column, n_rows: int) -> BoolColumn:
    where = np.zeros(n_rows, np.bool_)
    where[rows[rows >= 0]] = True
    return where


def _with_forward(phases: Int8Column) -> Int8Column:
    """Where no module ran before backward, so that no forward was marked, it is what comes before."""
    begins = np.flatnonzero(np.diff(phases, prepend=-1))
    run = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(phases))))
    is_forward = phases[begins] == RecordedPhase.OTHER
    is_forward &= np.append(phases[begins[1:]] == RecordedPhase.BACKWARD, [False])
    # After another backward's forward there may be code that sums up its results; a step must lie
    # between.
    before = np.concatenate(([RecordedPhase.OPTIMIZER], phases[begins[:-1]]))
    is_forward &= before == RecordedPhase.OPTIMIZER
    return np.where(is_forward[run], np.int8(RecordedPhase.FORWARD), phases).astype(np.int8)


def is_open(category: Int8Column) -> BoolColumn:
    """Rows without a category so far."""
    return np.asarray(category == Category.UNKNOWN)


def _recorded(
    matches: RecordedMatches, may_be_given: BoolColumn, is_kept: BoolColumn
) -> Int8Column:
    """Categories from notes; the first that applies. ``is_kept``: by its own forward, if it was saved."""
    category = np.zeros(len(is_kept), np.int8)
    for rows, found in (
        (matches.parameters, Category.WEIGHT),
        (matches.gradients, Category.GRADIENT),
        (matches.states, Category.OPTIMIZER_STATE),
        (matches.inputs, Category.INPUT),
        (matches.saved, Category.ACTIVATION),
    ):
        where = _mask(rows, len(category))
        if found is Category.INPUT:
            where &= may_be_given
        if found is Category.ACTIVATION:
            where &= is_kept
        category[where & is_open(category)] = found
    return category


class _Moments:
    """When each allocation came and went, in events, and in which phase."""

    def __init__(
        self,
        allocations: AllocationTable,
        events: EventTable,
        phases: Int8Column,
        recorded: Recording,
        is_called: BoolColumn,
    ) -> None:
        assert events.time_us is not None
        self.alloc = allocations.alloc_event.astype(np.int64)
        end = allocations.freed_event
        self.end = np.where(end >= 0, end, _NEVER)
        self.marked_phase = phases[self.alloc]
        phases = _with_forward(phases)
        self.phase = phases[self.alloc]
        # The program itself calls a module's function: nothing marks that forward.
        self.phase[is_called & (self.phase == RecordedPhase.OTHER)] = RecordedPhase.FORWARD
        self._phases = phases
        self._inner_backward = _backward_within_module(recorded) if recorded.recomputed else []
        starts = np.array([start for start, _ in recorded.recomputed], np.int64)
        ends = np.array([end for _, end in recorded.recomputed], np.int64)
        # What its last lines drop, before anything else is allocated, did not outlive that forward.
        after = np.append(np.flatnonzero(events.action == Action.ALLOC), len(events))
        ends = np.searchsorted(events.time_us, ends, side="right")
        self._recomputed = (
            np.searchsorted(events.time_us, starts),
            after[np.searchsorted(after, ends)],
        )

    def by_phase(self) -> tuple[tuple[BoolColumn, Category], ...]:
        """Find what follows from the phases, for rows that nothing was recorded of."""
        forward, backward = (
            self.phase == RecordedPhase.FORWARD,
            self.phase == RecordedPhase.BACKWARD,
        )
        step, other = self.phase == RecordedPhase.OPTIMIZER, self.phase == RecordedPhase.OTHER
        again, until = self._again()
        ends_within = self.end < self._phase_end()
        to_backward = self.end >= self._next(RecordedPhase.BACKWARD)
        next_forward = self._next(RecordedPhase.FORWARD)
        is_freed = self.end < _NEVER
        return (
            (again & ((self.end >= until) | self._is_found_within()), Category.ACTIVATION),
            (again, Category.TEMPORARY),
            (forward & to_backward, Category.ACTIVATION),
            (forward & is_freed, Category.TEMPORARY),
            ((backward | step) & ends_within, Category.TEMPORARY),
            (backward & ~self._is_part_of_forward(), Category.GRADIENT),
            (self._is_of_later_graph(), Category.ACTIVATION),
            (other & (self.end < next_forward), Category.TEMPORARY),
            (other & is_freed & (next_forward < _NEVER), Category.INPUT),
        )

    def may_be_activation(self) -> BoolColumn:
        """Whether a backward can find it, or nothing frees it: else it is temporary, whoever keeps it."""
        return np.asarray((self.end >= self._next(RecordedPhase.BACKWARD)) | (self.end == _NEVER))

    def ends_in_own_forward(self) -> BoolColumn:
        """Whether the marked forward that made it also freed it."""
        return np.asarray(
            (self.marked_phase == RecordedPhase.FORWARD) & (self.end < self._phase_end())
        )

    def next_backward(self) -> Int64Column:
        """For each allocation the first event of a backward after it."""
        return self._next(RecordedPhase.BACKWARD)

    def _again(self) -> tuple[BoolColumn, Int64Column]:
        """Find what a forward within backward made, and the event by which that forward was over."""
        starts, ends = self._recomputed
        if not len(starts):
            return np.zeros(len(self.alloc), np.bool_), self.alloc
        place = np.maximum(np.searchsorted(starts, self.alloc, side="right") - 1, 0)
        return (self.alloc >= starts[place]) & (self.alloc < ends[place]), ends[place]

    def _is_part_of_forward(self) -> BoolColumn:
        """Whether a forward goes on after the backward that made it: it is a derivative in a loss."""
        end = np.minimum(self._phase_end(), len(self._phases) - 1)
        return np.asarray(self._phases[end] == RecordedPhase.FORWARD)

    def _is_of_later_graph(self) -> BoolColumn:
        """Made right before a backward, after a forward that had no graph, and freed by that backward."""
        begins = np.flatnonzero(np.diff(self._phases, prepend=-1))
        run = np.maximum(np.searchsorted(begins, self.alloc, side="right") - 1, 0)
        of_run = np.concatenate(([-1], self._phases[begins], [-1, -1]))
        end = np.concatenate((begins, [_NEVER, _NEVER, _NEVER]))
        return np.asarray(
            (of_run[run] == RecordedPhase.FORWARD)
            & (of_run[run + 1] == RecordedPhase.OTHER)
            & (of_run[run + 2] == RecordedPhase.BACKWARD)
            & (end[run + 1] <= self.end)
            & (self.end < end[run + 2])
        )

    def _is_found_within(self) -> BoolColumn:
        """Whether a backward that a module itself runs finds it: for a derivative that is part of forward."""
        events = np.append(np.array(self._inner_backward, np.int64), _NEVER)
        begins = events[np.searchsorted(events, self.alloc, side="right")]
        return np.asarray((begins <= self.end) & ~np.isin(self.alloc, events))

    def _next(self, phase: RecordedPhase) -> Int64Column:
        """For each allocation the first event of this phase after it."""
        events = np.append(np.flatnonzero(self._phases == phase), _NEVER)
        return np.asarray(events[np.searchsorted(events, self.alloc, side="right")])

    def _phase_end(self) -> Int64Column:
        """For each allocation the event with which another phase than its own begins."""
        changes = np.append(np.flatnonzero(np.diff(self._phases)) + 1, _NEVER)
        return np.asarray(changes[np.searchsorted(changes, self.alloc, side="right")])
