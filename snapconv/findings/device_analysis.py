"""One device, analysed from end to end: the tables that reports and notebooks read."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features, find_features
from snapconv.classification.rule import Classification
from snapconv.classification.rule_order import classify, pipeline_of
from snapconv.classification.rules.of_unknown import PERSISTENT
from snapconv.classification.size_splits import GRADIENT_OR_STATE
from snapconv.classification.user_rules import NO_RULES, UserRules, rule_notes
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only, sums_by
from snapconv.findings.dominant_lines import dominant_lines_note
from snapconv.findings.growth import Growth, find_growth, growth_notes
from snapconv.naming.modules import Modules, find_modules
from snapconv.naming.operation_names import Operations, name_allocations
from snapconv.naming.weights.weights_by_size import WeightTable, match_weights
from snapconv.notes import Note
from snapconv.phases.recorded_matches import RecordedMatches, match_recorded
from snapconv.phases.trace_phases import Phases, find_phases
from snapconv.replay.device_replay import AllocationTable, Curve, Replay, replay
from snapconv.replay.history_verdict import History, Verdict, decide_history
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_facts import StackFacts
from snapconv.stacks.stack_roles import StackRoles
from snapconv.stop_signals import stage
from snapconv.units import format_bytes

if TYPE_CHECKING:  # what names weights by a list or a record is imported where there is one
    from snapconv.naming.weights.param_names import Naming
    from snapconv.snapshot.recorded.params_file import ParamList

# What is said of memory whose purpose is not known, by the reason of the rule that knows so much.
_KNOWN_OF_UNKNOWN = {
    GRADIENT_OR_STATE.slug: "gradients and optimizer states of equal sizes",
    PERSISTENT.slug: "persistent since before the recording",
}


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

    ``features`` are what the classification went by. ``operation_id`` (position in
    ``operations``), ``iteration`` (-1: before the trace) and the columns of ``classification`` and ``named``
    have one entry per row of ``replay.allocations``. ``activation_rows`` are the activations live at
    ``activation_event``, the high-water mark of activations in the iteration with the peak, newest
    first.
    """

    device: DeviceSnapshot
    replay: Replay
    history: History
    features: Features
    classification: Classification
    named: Operations
    modules: Modules
    iteration: Int32Column
    iterations: tuple[Iteration, ...]
    growth: tuple[Growth, ...]
    weights: WeightTable
    naming: "Naming | None"
    activation_event: int
    activation_rows: Int64Column
    notes: tuple[Note, ...]

    @property
    def allocations(self) -> AllocationTable:
        """Every allocation of the device."""
        return self.replay.allocations

    @property
    def phases(self) -> Phases:
        """The phase and the iteration of every event."""
        return self.features.phases

    @property
    def roles(self) -> StackRoles:
        """The roles of every stack."""
        return self.features.roles

    @property
    def user_rules(self) -> UserRules:
        """The user's own rules, and the stacks that they match."""
        return self.features.user_rules

    @property
    def recorded(self) -> RecordedMatches | None:
        """What a recorder wrote, matched with the allocations; None where there is none."""
        return self.features.recorded

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

    def rows(self, category: Category) -> Int64Column:
        """The allocations of one category."""
        return np.flatnonzero(self.classification.category == category)


@stage
def analyze_device(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    facts: StackFacts,
    *,
    user_rules: UserRules = NO_RULES,
    params: "ParamList | None" = None,
) -> DeviceAnalysis:
    """Replay and classify one device, and pick out what its report is about.

    ``user_rules`` win over ours. ``params`` names weights that the recorder did not name.
    """
    replayed = replay(snapshot, device)
    allocations = replayed.allocations
    for curve in (replayed.requested, replayed.active, replayed.reserved):
        _ = curve.peak_event  # found while there is room for a curve, which is not kept
    phases = find_phases(snapshot, device, allocations, facts.roles)
    recorded = _recorded(snapshot, device, allocations)
    features = find_features(allocations, phases, facts.roles, user_rules=user_rules, recorded=recorded)
    classification = classify(features, pipeline_of(is_host=device.is_host))
    category = classification.category
    named = name_allocations(facts.stacks, facts.operations, allocations, phases, user_rules)
    iterations = tuple(_iterations(replayed.allocated, phases))
    peak = replayed.allocated.peak_event
    peak_iteration = iterations[int(phases.iteration[peak])] if peak >= 0 else iterations[0]
    activation_event, activation_rows = _activations(allocations, category, peak_iteration)
    weights, naming = _weights(
        snapshot, device, allocations, category, recorded, peak, peak_iteration, params
    )
    found = DeviceAnalysis(
        device=device,
        replay=replayed,
        history=decide_history(snapshot, device, replayed),
        features=features,
        classification=classification,
        named=named,
        modules=find_modules(facts.module_calls, allocations, category, recorded),
        iteration=features.iteration,
        iterations=iterations,
        growth=(),
        weights=weights,
        naming=naming,
        activation_event=activation_event,
        activation_rows=activation_rows,
        notes=(),
    )
    found = replace(found, growth=_growth(facts, found))
    return read_only(replace(found, notes=tuple(_notes(snapshot, facts, found, params))))


def _growth(facts: StackFacts, found: DeviceAnalysis) -> tuple[Growth, ...]:
    return find_growth(
        found.allocations,
        found.phases,
        found.iteration,
        category=found.classification.category,
        stacks=facts.stacks,
        project=facts.project,
    )


def _recorded(
    snapshot: Snapshot, device: DeviceSnapshot, allocations: AllocationTable
) -> RecordedMatches | None:
    if snapshot.metadata is None or device.is_host:
        return None
    return match_recorded(snapshot.metadata, device.device, device.events, allocations)


def _weights(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    allocations: AllocationTable,
    category: Int8Column,
    recorded: RecordedMatches | None,
    peak: int,
    peak_iteration: Iteration,
    params: "ParamList | None",
) -> tuple[WeightTable, "Naming | None"]:
    """The weights at the peak, with the names that were recorded, or else those of a list."""
    is_wanted = params is None or _has_names(recorded, device)
    if is_wanted and recorded is not None and len(recorded.parameters):
        from snapconv.naming.weights.recorded_weights import recorded_weights

        return recorded_weights(recorded, device, allocations, event=peak), None
    iteration_events = (peak_iteration.first_event, peak_iteration.last_event)
    if params is None or device.is_host:
        return match_weights(allocations, category, event=peak, iteration_events=iteration_events), None
    from snapconv.naming.weights.listed_weights import listed_weights

    return listed_weights(
        params, snapshot.stacks, allocations, category, event=peak, iteration_events=iteration_events
    )


def _has_names(recorded: RecordedMatches | None, device: DeviceSnapshot) -> bool:
    """Whether the recorder read names of parameters on this device from the model itself."""
    if recorded is None:
        return False
    parameters, earlier = recorded.metadata.parameters, recorded.metadata.earlier
    is_here = parameters.memory.device == device.device
    moved = np.flatnonzero((earlier.memory.device == device.device) & (earlier.parameter >= 0))
    is_here[earlier.parameter[moved]] = True  # it was here first, perhaps also at the peak
    return bool((is_here & ~parameters.is_buffer).any())


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
            first, after - 1, -1 if at_start else peak, before if at_start else int(allocated.after[peak])
        )


def _activations(
    allocations: AllocationTable, category: Int8Column, peak_iteration: Iteration
) -> tuple[int, Int64Column]:
    """The first moment of the iteration with most bytes of activations, and their rows.

    Skyline has no cache of keys and values: what modules made and keep is an activation there.
    """
    rows = np.flatnonzero((category == Category.ACTIVATION) | (category == Category.KV_CACHE))
    alloc = allocations.alloc_event[rows]
    n_bytes = allocations.block_bytes[rows]
    end = allocations.freed_event[rows]
    first = peak_iteration.first_event if peak_iteration.first_event > 0 else -1
    n_within = peak_iteration.last_event + 1 - first
    change = np.zeros(n_within, np.int64)
    for sign, events in ((1, alloc), (-1, end)):
        # What is live all along adds the same to every moment. -1 is no end.
        is_within = (events > first) & (events < first + n_within)
        change += sign * sums_by(events[is_within] - first, n_bytes[is_within], n_within)
    event = first + int(np.cumsum(change).argmax())
    live = rows[allocations.live_at(event)[rows]]
    newest_first = np.lexsort((-allocations.addr[live], -allocations.alloc_event[live]))
    return event, live[newest_first]


def _notes(
    snapshot: Snapshot,
    facts: StackFacts,
    found: DeviceAnalysis,
    params: "ParamList | None",
) -> Iterator[Note]:
    project = facts.project
    ordinal, history, weights = found.device.device, found.history, found.weights
    yield from snapshot.notes
    yield from found.replay.notes
    if history.verdict is Verdict.TRUNCATED:
        yield Note(
            "truncated-history",
            f"{history.reason}: the true peak may be in what is lost; record with a larger max_entries",
            ordinal,
        )
    if len(snapshot.stacks.frames) and not project.is_project.any():
        yield Note("no-project-frames", _why_no_project(project))
    if weights.n_unmatched_gradients:
        yield Note(
            "unmatched-gradients",
            f"{weights.n_unmatched_gradients} gradients live at the peak have the size of no unmatched "
            "weight, so they are in no weight's row",
            ordinal,
        )
    yield from _category_notes(found)
    if project.unused_includes:
        yield Note("unused-include", _no_such_frames(project))
    if not found.device.is_host:
        live = found.allocations.live_at(found.peak_event)
        yield from dominant_lines_note(snapshot.stacks, project, found.allocations, live, ordinal)
    peak = found.replay.allocated.peak
    yield from growth_notes(found.growth, snapshot.stacks, project, ordinal, peak_bytes=peak)
    # Notes about --params, --rules and --source.
    yield from _list_notes(found, params, ordinal)
    yield from rule_notes(found.user_rules, free_sites_known=found.phases.free_sites_known)
    yield from facts.sources.notes if facts.sources else ()


def _category_notes(found: DeviceAnalysis) -> Iterator[Note]:
    """What the categories lack, or of pinned host memory the sizes."""
    if found.device.is_host:
        yield Note(
            "host-sizes",
            "pinned host memory is recorded with the sizes of its blocks, mostly powers of two: what was "
            "requested is not in the file, so requested bytes are block bytes",
            found.device.device,
        )
        return
    live = found.allocations.live_at(found.peak_event)
    is_unknown = found.classification.category == Category.UNKNOWN
    unknown = int(found.allocations.block_bytes[live & is_unknown].sum())
    if unknown > found.replay.allocated.peak // 20:
        yield Note(
            "much-unknown",
            f"{format_bytes(unknown)} of the peak could not be classified{_of_it_known(found, live)}; "
            f"{_better_recording(found)}"
            "name the code that made them with --rules",
            found.device.device,
        )


def _of_it_known(found: DeviceAnalysis, live: BoolColumn) -> str:
    """Say what is known of how much of what is unknown; empty for nothing."""
    reasons, parts = found.classification.reasons, []
    for reason, words in _KNOWN_OF_UNKNOWN.items():
        if reason in reasons:
            rows = live & (found.classification.reason_id == reasons.index(reason))
            n_bytes = int(found.allocations.block_bytes[rows].sum())
            sums = _both_sums(found.phases, n_bytes) if reason == GRADIENT_OR_STATE.slug else ""
            parts += [f", {format_bytes(n_bytes)} of it {words}{sums}"] if n_bytes else []
    return "".join(parts)


def _both_sums(phases: Phases, n_bytes: int) -> str:
    """How much of them the gradients are, and the states: known where every parameter has as many states."""
    if not phases.n_states or phases.has_several_steps:
        return ""
    gradients = n_bytes // (1 + phases.n_states)
    return f" ({format_bytes(gradients)} gradients, {format_bytes(n_bytes - gradients)} states)"


def _better_recording(found: DeviceAnalysis) -> str:
    """Say what a better recording would have, as far as this one lacks it; empty for one of ours."""
    if found.history.verdict is not Verdict.COMPLETE:
        return "record from the start of the program, or "
    if found.recorded is not None:
        return ""
    return "record it with `snapconv record`, which notes what memory is for, or "


def _no_such_frames(project: Project) -> str:
    """Show what of --include has no effect here."""
    return (
        f"no frame is in {', '.join(project.unused_includes)}: --include names a package as it is "
        "imported, or a folder as the file has it"
    )


def _why_no_project(project: Project) -> str:
    """Name the folder without files, and the one to try."""
    if project.is_inferred:
        return "all Python frames are of installed packages: count one of them with --include"
    if project.seen_root is None:
        return f"nothing is under {project.root}: all Python frames are of installed packages"
    return f"nothing is under {project.root}: the program's own files are under {project.seen_root}"


def _list_notes(found: DeviceAnalysis, params: "ParamList | None", ordinal: int) -> Iterator[Note]:
    if not params:
        return
    from snapconv.naming.weights.listed_weights import naming_notes, unused_list_note

    if found.naming:
        yield from naming_notes(found.naming, params, ordinal)
    elif found.recorded:
        yield unused_list_note(params, found.recorded.metadata.parameters, ordinal)
