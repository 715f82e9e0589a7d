"""All that is live at one moment of a device: how much, for what, by which lines, modules and operations.

The peak is one moment among others: what is said of it can be said of every event.

The memory of the device outside torch (contexts, libraries, NCCL and other processes) is in no file. With the
device's total, and what the driver had free, it is what is left; without, it is not known, and never taken
for nothing.
"""

from dataclasses import asdict, dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.answers.oom.message import compact, read_message
from snapconv.answers.program_names import annotations_at
from snapconv.answers.totals import (
    CategoryTotal,
    LineTotal,
    ModuleTotal,
    OperationTotal,
    PoolTotal,
    job_sentence,
    rows_of_summary,
    total_of_either,
    totals_by_category,
    totals_by_line,
    totals_by_module,
    totals_by_operation,
    totals_by_pool,
)
from snapconv.columns import BoolColumn
from snapconv.phases.trace_phases import Phase
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.event_table import Action
from snapconv.units import HOST, device_kind


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device at a moment; None: not known.

    ``total_from`` says who gave the total. ``free_bytes`` is the driver's, which torch writes at a failed
    allocation alone: ``measured_event`` is the one that it is of. ``outside_bytes`` was in use then and not
    torch's. At other moments ``at_most_bytes`` is the most that can have been. ``is_simulated``: there was no
    device, and nothing outside torch.
    """

    total_bytes: int | None
    total_from: str | None
    reserved_bytes: int
    free_bytes: int | None
    measured_event: int | None
    outside_bytes: int | None
    at_most_bytes: int | None
    is_simulated: bool = False


@dataclass(frozen=True, slots=True)
class MomentState:
    """The memory of a device just after an event; None: before the first event, or not in the file.

    ``annotations`` are the names of the spans that the event is in, outermost first. ``lines`` and
    ``modules`` leave out what has none; ``categories``, ``operations`` and ``pools`` sum to the allocated
    bytes. ``gradient_or_state`` is the part of the unknown that is one of these. ``job``: what explains
    all that was there before the trace. ``no_stack_bytes``: those of which no stack was recorded.
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
    gradient_or_state: CategoryTotal
    lines: tuple[LineTotal, ...]
    modules: tuple[ModuleTotal, ...]
    operations: tuple[OperationTotal, ...]
    pools: tuple[PoolTotal, ...]
    project_root: str | None
    project_includes: tuple[str, ...]
    history_verdict: str
    history_reason: str
    memory: DeviceMemory
    job: str | None = None
    no_stack_bytes: int = 0

    @property
    def summary_rows(self) -> tuple[CategoryTotal, ...]:
        """The categories, with a row of its own for what is a gradient or an optimizer state."""
        return rows_of_summary(self.categories, self.gradient_or_state)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {"kind": device_kind(self.device), **asdict(self)}


def state_at(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    device_total: int | None = None,
    layout: MemoryLayout | None = None,
) -> MomentState:
    """Describe the memory of one device just after a moment's event; ``device_total`` is all that it has.

    ``layout`` is that of the event, where it is known already.
    """
    event, events, replay = moment.event, analysis.device.events, analysis.replay
    live = analysis.allocations.live_at(event)
    layout = layout or layout_at(analysis.device, analysis.allocations, event)
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
        categories=totals_by_category(analysis, live),
        gradient_or_state=total_of_either(analysis, live),
        job=job_sentence(analysis),
        lines=totals_by_line(analysis, live),
        modules=totals_by_module(analysis, live),
        operations=totals_by_operation(analysis, live),
        pools=totals_by_pool(analysis, live, layout),
        project_root=analysis.project.root,
        project_includes=analysis.project.includes,
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
        memory=device_memory(analysis, event, given_total=device_total),
        no_stack_bytes=_no_stack_bytes(analysis, live),
    )


def _no_stack_bytes(analysis: DeviceAnalysis, live: BoolColumn) -> int:
    is_recorded = np.append(np.diff(analysis.snapshot.stacks.offsets) > 0, [False])  # -1 is the last
    is_without = live & ~is_recorded[analysis.allocations.stack_id]
    return int(analysis.allocations.block_bytes[is_without].sum())


def device_memory(analysis: DeviceAnalysis, event: int, *, given_total: int | None = None) -> DeviceMemory:
    """Find what of the device is not torch's, just after an event, or at the failed allocation before it."""
    total, total_from = _total(analysis, given_total)
    events, reserved = analysis.device.events, analysis.replay.reserved
    failed = np.flatnonzero(events.action == Action.OOM)
    before = failed[failed <= event]
    measured = int(before[-1]) if len(before) else int(failed[0]) if len(failed) else None
    free = int(events.addr[measured]) if measured is not None else None
    outside = None
    if total is not None and free is not None and measured is not None:
        outside = max(total - free - reserved.at(measured), 0)
    return DeviceMemory(
        total_bytes=total,
        total_from=total_from,
        reserved_bytes=reserved.at(event),
        free_bytes=free if measured == event else None,
        measured_event=measured,
        outside_bytes=outside,
        at_most_bytes=None if total is None else max(total - reserved.peak, 0),
        is_simulated=analysis.snapshot.metadata is not None and analysis.snapshot.metadata.is_simulated,
    )


def _total(analysis: DeviceAnalysis, given: int | None) -> tuple[int | None, str | None]:
    """Return the device's total: as given, as recorded, or as torch's message in a capture has it."""
    device = analysis.device.device
    if given is not None:
        return given, "given"
    if analysis.snapshot.metadata is None or device == HOST:
        return None, None
    if total := analysis.snapshot.metadata.device_bytes.get(device):
        return total, "recorded"
    message = read_message(compact(analysis.snapshot.metadata.ended_detail))
    if message.total_bytes is not None and message.device == device:
        return message.total_bytes, "torch's message"
    return None, None
