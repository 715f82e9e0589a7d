"""All that is live at one moment of a device: how much, for what, by which lines, modules and operations.

The peak is one moment among others: what is said of it can be said of every event.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.device_memory import DeviceMemory, device_memory
from snapconv.answers.live_totals import (
    CategoryTotal,
    LineTotal,
    ModuleTotal,
    OperationTotal,
    PoolTotal,
    totals_by_category,
    totals_by_line,
    totals_by_module,
    totals_by_operation,
    totals_by_pool,
)
from snapconv.answers.moments import FoundMoment
from snapconv.phases.annotation_spans import SpanKind, find_spans, is_of_program
from snapconv.phases.trace_phases import Phase
from snapconv.replay.memory_layout import layout_at
from snapconv.stacks.project_lines import ProjectLines


@dataclass(frozen=True, slots=True)
class MomentState:
    """The memory of a device just after an event; None: before the first event, or not in the file.

    ``annotations`` are the names of the spans that the event is in, outermost first. ``lines`` and
    ``modules`` leave out what has none; ``categories``, ``operations`` and ``pools`` sum to the allocated
    bytes.
    """

    device: int
    moment: str
    event: int | None
    n_events: int
    time_us: int | None
    iteration: int | None
    phase: str | None
    annotations: tuple[str, ...]
    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    n_allocations: int
    categories: tuple[CategoryTotal, ...]
    lines: tuple[LineTotal, ...]
    modules: tuple[ModuleTotal, ...]
    operations: tuple[OperationTotal, ...]
    pools: tuple[PoolTotal, ...]
    project_root: str | None
    project_includes: tuple[str, ...]
    history_verdict: str
    history_reason: str
    memory: DeviceMemory


def state_at(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    device_total: int | None = None,
) -> MomentState:
    """Describe the memory of one device just after a moment's event; ``device_total`` is all that it has."""
    event, events, replay = moment.event, analysis.device.events, analysis.replay
    live = analysis.allocations.live_at(event)
    layout = layout_at(analysis.device, analysis.allocations, event)
    is_in_trace = event >= 0
    timed = is_in_trace and events.time_us is not None
    return MomentState(
        device=analysis.device.device,
        moment=moment.name,
        event=event if is_in_trace else None,
        n_events=len(events),
        time_us=int(events.time_us[event]) if timed and events.time_us is not None else None,
        iteration=int(analysis.phases.iteration[event]) if is_in_trace else None,
        phase=Phase(analysis.phases.phase[event]).name.lower() if is_in_trace else None,
        annotations=annotations_at(analysis, event),
        requested_bytes=replay.requested.at(event),
        allocated_bytes=replay.allocated.at(event),
        active_bytes=replay.active.at(event),
        reserved_bytes=replay.reserved.at(event),
        n_allocations=int(np.count_nonzero(live)),
        categories=tuple(totals_by_category(analysis, live)),
        lines=totals_by_line(
            analysis.allocations, live, ProjectLines(analysis.snapshot.stacks, analysis.project)
        ),
        modules=totals_by_module(analysis, live),
        operations=totals_by_operation(analysis, live),
        pools=totals_by_pool(analysis, live, layout, analysis.snapshot.pools),
        project_root=analysis.project.root,
        project_includes=analysis.project.includes,
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
        memory=device_memory(analysis, event, given_total=device_total),
    )


def annotations_at(analysis: DeviceAnalysis, event: int) -> tuple[str, ...]:
    """The program's names of the spans that an event is in, outermost first; texts of tensors are none."""
    spans = find_spans(analysis.snapshot, analysis.device)
    is_inside = (spans.first_event <= event) & (spans.last_event >= event) & (spans.kind != SpanKind.TENSOR)
    names = dict.fromkeys(analysis.snapshot.texts[i] for i in spans.name_id[is_inside].tolist())
    return tuple(filter(is_of_program, names))
