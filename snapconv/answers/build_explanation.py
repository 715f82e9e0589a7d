"""Turns the analysis of a device into explanations of some of its allocations: the data of explanation.py."""

from collections.abc import Iterator

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.explanation import (
    AllocationExplanation,
    Annotation,
    CategoryVerdict,
    Frame,
    Lifetime,
    LifetimeEvent,
    Opinion,
    Origin,
    Place,
    Segment,
    StackRole,
)
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rule_catalog import EVIDENCE_WORTH, reason_of
from snapconv.classification.rule_order import opinions as opinions_of
from snapconv.classification.rule_order import pipeline_of
from snapconv.columns import BoolColumn, Int64Column
from snapconv.naming.weights.weight_names import weight_names
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase, is_engine
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import ProjectLines, both_ends
from snapconv.stacks.stack_roles import matching_frame
from snapconv.torch_knowledge.frame_roles import Role
from snapconv.torch_knowledge.operation_catalog import UNNAMED

_MOST_ANNOTATIONS = 20
# No stack of a real file has more than 131 frames; a recursion may have thousands.
_FRAMES_OF_AN_END = 128


def explain_allocations(analysis: DeviceAnalysis, rows: Int64Column) -> Iterator[AllocationExplanation]:
    """Explain some allocations of a device, in the order given."""
    explainer = _Explainer(analysis)
    opinions: dict[int, list[Opinion]] = {row: [] for row in rows.tolist()}
    pipeline = pipeline_of(is_host=analysis.device.is_host)
    for opinion in opinions_of(analysis.features, rows, pipeline):
        opinions[opinion.row].append(explainer.opinion(opinion.category, opinion.evidence, opinion.reason))
    for row in rows.tolist():
        yield explainer.explain(row, opinions[row])


def unsigned(addr: int) -> str:
    """An address as people write it."""
    return hex(addr & (1 << 64) - 1)


def contains_addr(addr: Int64Column, n_bytes: Int64Column, wanted: int) -> BoolColumn:
    """The pieces of memory that an address is in."""
    return np.asarray((addr <= wanted) & (wanted <= addr + (n_bytes - 1)))


def _names(analysis: DeviceAnalysis) -> dict[int, str]:
    """The name of each weight in the report, by row; its gradient and its states have the same name."""
    weights = analysis.weights
    names = weight_names(
        weights.names, weights.stack_id, ProjectLines(analysis.snapshot.stacks, analysis.project)
    )
    rows = np.concatenate((weights.row, weights.gradient_row))
    known = dict(zip(rows.tolist(), names * 2, strict=True))
    if analysis.recorded is not None:
        known |= _recorded_names(analysis.recorded)
    return known


def _recorded_names(recorded: RecordedMatches) -> dict[int, str]:
    """The names that a recorder wrote: of parameters and buffers, their gradients and states.

    Memory that only the program keeps has no name.
    """
    metadata = recorded.metadata
    names = metadata.parameters.names
    known = dict(zip(recorded.parameters.tolist(), names, strict=True))
    for row, owner in zip(recorded.gradients.tolist(), metadata.gradients.parameter.tolist(), strict=True):
        if owner >= 0:
            known[row] = names[owner]
    states = zip(
        recorded.states.tolist(), metadata.states.parameter.tolist(), metadata.states.states, strict=True
    )
    known |= {row: f"{names[owner]} ({state})" for row, owner, state in states if owner >= 0}
    return {row: name for row, name in known.items() if name}


class _Explainer:
    """Turns rows of the tables of one device into explanations."""

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self._snapshot, self._project, self._analysis = analysis.snapshot, analysis.project, analysis
        self._live_at_peak = analysis.allocations.live_at(analysis.peak_event)
        self._freed_event = analysis.allocations.freed_event
        self._names = _names(analysis)
        self._of_user = {rule.slug: rule.reason for rule in analysis.user_rules.rules}

    def explain(self, row: int, opinions: list[Opinion]) -> AllocationExplanation:
        """Everything about one allocation; ``opinions`` are those of all rules."""
        table = self._analysis.allocations
        return AllocationExplanation(
            device=self._analysis.device.device,
            id=row,
            address=unsigned(int(table.addr[row])),
            name=self._names.get(row),
            requested_bytes=int(table.requested_bytes[row]),
            block_bytes=int(table.block_bytes[row]),
            is_exact=bool(table.is_exact[row]),
            place=self._place(row),
            lifetime=self._lifetime(row),
            annotations=tuple(self._annotations(row)),
            origin=self._origin(row),
            verdict=self._verdict(row, opinions),
        )

    def opinion(self, category: Category, evidence: Evidence, slug: str) -> Opinion:
        """The decision of one rule, with the reason of that rule."""
        reason, torch = (self._of_user[slug], "") if slug in self._of_user else reason_of(slug)
        return Opinion(category.label, evidence.label, slug, reason, torch or None)

    def _lifetime_event(self, event: int) -> LifetimeEvent | None:
        if event < 0:
            return None
        times, phases = self._analysis.device.events.time_us, self._analysis.phases
        return LifetimeEvent(
            event=event,
            time_us=None if times is None else int(times[event]),
            after_us=None if times is None else int(times[event] - times[0]),
            iteration=int(phases.iteration[event]),
            phase=Phase(int(phases.phase[event])).name.lower(),
        )

    def _lifetime(self, row: int) -> Lifetime:
        table, events = self._analysis.allocations, self._analysis.device.events
        alloc, end, freed = (
            int(table.alloc_event[row]),
            int(table.end_event[row]),
            int(self._freed_event[row]),
        )
        first, last = max(alloc, 0), freed if freed >= 0 else max(len(events) - 1, 0)
        times = events.time_us if len(events) else None
        return Lifetime(
            allocated=self._lifetime_event(alloc),
            free_requested=self._lifetime_event(int(table.free_requested_event[row])),
            free_completed=self._lifetime_event(int(table.free_completed_event[row])),
            end_event=end if end >= 0 else None,
            in_use_us=None if times is None else int(times[last] - times[first]),
            in_use_events=last - first,
            is_live_at_peak=bool(self._live_at_peak[row]),
            is_live_at_dump=end < 0,
        )

    def _annotations(self, row: int) -> Iterator[Annotation]:
        """The annotations of its alloc (_set_memory_metadata, or the allocator), and later ones."""
        events, table, texts = self._analysis.device.events, self._analysis.allocations, self._snapshot.texts
        alloc, end = int(table.alloc_event[row]), int(table.end_event[row])
        is_annotation = (events.action == Action.ANNOTATE) & (events.addr == int(table.addr[row]))
        annotations = np.flatnonzero(is_annotation)
        annotations = annotations[(annotations > alloc) & ((end < 0) | (annotations < end))]
        columns = ((events.user_metadata_id, False), (events.internal_metadata_id, True))
        for event in [*([alloc] if alloc >= 0 else []), *annotations[:_MOST_ANNOTATIONS].tolist()]:
            for ids, is_internal in columns:
                if ids is not None and ids[event] >= 0 and texts[ids[event]]:
                    yield Annotation(event, texts[ids[event]], is_internal)

    def _place(self, row: int) -> Place:
        """The segment is that given back to the driver after the alloc, or else the one there at the dump."""
        events, segments = self._analysis.device.events, self._analysis.device.segments
        table, pools = self._analysis.allocations, self._snapshot.pools
        addr, alloc, pool = (int(column[row]) for column in (table.addr, table.alloc_event, table.pool_id))
        segment = None
        is_return = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        given_back = np.flatnonzero(is_return & contains_addr(events.addr, events.size, addr))
        there = np.flatnonzero(contains_addr(segments.addr, segments.total_bytes, addr))
        if len(later := given_back[given_back > alloc]):
            event = int(later[0])
            segment = Segment(unsigned(int(events.addr[event])), int(events.size[event]), event)
        elif len(there):
            at_dump = int(there[0])
            segment = Segment(unsigned(int(segments.addr[at_dump])), int(segments.total_bytes[at_dump]), None)
            pool = int(segments.pool_id[at_dump]) if pool < 0 else pool
        return Place(segment, pools[pool] if pool >= 0 else None, int(table.stream[row]))

    def _origin(self, row: int) -> Origin:
        table = self._analysis.allocations
        stack = int(table.stack_id[row])
        free_stack = int(table.free_stack_id[row]) if self._analysis.phases.free_sites_known else -1
        operation, operation_from = self._operation(row)
        return Origin(
            operation=operation,
            operation_from=operation_from,
            stack=self._stack(stack),
            free_stack=self._stack(free_stack),
            stack_roles=tuple(self._roles(stack)),
            free_stack_roles=tuple(self._roles(free_stack)),
        )

    def _verdict(self, row: int, opinions: list[Opinion]) -> CategoryVerdict:
        found = self._analysis.classification
        category, evidence = Category(int(found.category[row])), Evidence(int(found.evidence[row]))
        decision = self.opinion(category, evidence, found.reasons[int(found.reason_id[row])])
        worth = EVIDENCE_WORTH[evidence]
        # Without its records a rule gives the same category with weaker evidence: that is no other opinion.
        others = (
            opinion
            for opinion in opinions
            if (opinion.category, opinion.rule) != (decision.category, decision.rule)
        )
        return CategoryVerdict(decision, worth.follows_from, worth.is_wrong_when, tuple(others))

    def _roles(self, stack: int) -> Iterator[StackRole]:
        """The roles of a stack, each with the first rule that matches."""
        roles, stacks = self._analysis.roles, self._snapshot.stacks
        if stack < 0:
            return
        for role in Role:
            number = int(roles.rule_id[role, stack])
            if number >= 0:
                rule = roles.rules[number]
                frame = self._frame(matching_frame(stacks, rule, stack))
                torch = None if rule.slug in self._of_user else rule.seen
                yield StackRole(role.name.lower(), rule.slug, rule.reason, torch, frame)
        is_host = self._analysis.device.is_host
        if not is_host and roles.is_empty[stack] and is_engine(roles, np.array([stack], np.int32))[0]:
            reason = "with Python-only stacks the engine's thread shows as a stack without frames"
            yield StackRole(Role.ENGINE.name.lower(), "empty-stack", reason, None, None)

    def _operation(self, row: int) -> tuple[str | None, str]:
        """The name of the operation, and what it was inferred from."""
        operation = self._analysis.named.found[int(self._analysis.named.id[row])]
        return (None if operation.name == UNNAMED else operation.name), operation.source

    def _stack(self, stack: int) -> tuple[Frame, ...]:
        frames = self._snapshot.stacks.frames_of(stack).tolist()
        return tuple(self._frame(frame) for frame in both_ends(frames, _FRAMES_OF_AN_END))

    def _frame(self, frame: int) -> Frame:
        frames, project = self._snapshot.stacks.frames, self._project
        return Frame(
            function=frames.names[frame],
            file=project.relative_paths[frame],
            line=int(frames.lines[frame]) or None,
            is_project=bool(project.is_project[frame]),
        )
