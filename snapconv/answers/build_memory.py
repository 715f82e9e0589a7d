"""From an analysis to a Report: everything counted, named and put in order for the writers."""

from collections.abc import Iterator

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.annotation_totals import AnnotatedSpans, annotated_spans, totals_by_annotation
from snapconv.answers.bounded_frames import left_out_note, n_frames_of_an_end, with_fewer_frames
from snapconv.answers.device_notes import device_notes
from snapconv.answers.growth import find_growth
from snapconv.answers.live_totals import totals_by_category, totals_by_line, totals_by_module
from snapconv.answers.memory_report import (
    CURVES,
    END,
    END_ALLOCATED,
    PEAK,
    PEAK_ACTIVATIONS,
    PEAK_ALLOCATED,
    START,
    ActivationEntry,
    AllocationColumns,
    AnnotationColumns,
    BreakdownRow,
    IterationRow,
    MemoryReport,
    Moment,
    MomentLayout,
    Timeline,
    WeightEntry,
    WeightNaming,
    moment_name,
)
from snapconv.answers.oom.failed_allocation import failed_allocations, free_after_oom
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.naming.weight_table import weight_names
from snapconv.phases.annotation_spans import SpanKind
from snapconv.replay.memory_layout import layouts
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.stacks.project_frames import Project
from snapconv.stacks.project_lines import ProjectLines
from snapconv.stop_signals import stage
from snapconv.units import device_argument
from snapconv.version import VERSION

# TBD's classes, each with the categories that make it up, and the classes that are parts of "dynamic".
_CLASSES = (
    ("weights", (Category.WEIGHT,)),
    ("gradients", (Category.GRADIENT,)),
    ("activations", (Category.ACTIVATION, Category.KV_CACHE)),
    ("workspace", (Category.WORKSPACE,)),
)
_DYNAMIC = "dynamic"
_DYNAMIC_CLASSES = (
    ("optimizer", (Category.OPTIMIZER_STATE,)),
    ("input", (Category.INPUT,)),
    ("temporary", (Category.TEMPORARY,)),
    ("communication", (Category.COMMUNICATION,)),
    ("unknown", (Category.UNKNOWN,)),
)


@stage
def build_memory_report(analysis: DeviceAnalysis) -> MemoryReport:
    """Put together all that any writer of one device's memory report needs."""
    live = analysis.allocations.live_at(analysis.peak_event)
    lines = ProjectLines(analysis.snapshot.stacks, analysis.project)
    weights, activations = tuple(_weights(analysis, lines)), tuple(_activations(analysis, lines))
    n_frames = n_frames_of_an_end([*weights, *activations], analysis.snapshot.container.n_unpacked_bytes)
    device, spans = analysis.device.device, annotated_spans(analysis)
    return MemoryReport(
        device=device,
        peak_usage_bytes=analysis.replay.allocated.peak,
        weights=with_fewer_frames(weights, n_frames),
        activations=with_fewer_frames(activations, n_frames),
        source=_source(analysis.snapshot, analysis.project),
        notes=(
            *device_notes(analysis),
            *left_out_note(n_frames, n_cut_stacks=lines.n_cut_stacks, device=device),
        ),
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
        project_root=analysis.project.root,
        moments=tuple(_moments(analysis)),
        categories_at_peak=tuple(totals_by_category(analysis, live)),
        breakdown=tuple(_breakdown(analysis, live)),
        lines_at_peak=totals_by_line(analysis.allocations, live, lines),
        iterations=tuple(
            IterationRow(number, it.first_event, it.last_event, it.peak_bytes, it.peak_event)
            for number, it in enumerate(analysis.iterations)
        ),
        oom_events=failed_allocations(analysis),
        timeline=_timeline(analysis),
        allocations=_allocation_columns(analysis),
        stacks=analysis.snapshot.stacks,
        own_stacks=_own_stacks(analysis.snapshot, analysis.device),
        is_project=analysis.project.is_project,
        weight_naming=_weight_naming(analysis),
        modules_at_peak=totals_by_module(analysis, live),
        growth=find_growth(analysis),
        project_includes=analysis.project.includes,
        layouts=tuple(_layouts(analysis)),
        annotations=_annotations(analysis.snapshot, spans),
        annotation_totals=totals_by_annotation(analysis.snapshot, spans),
        after_oom=free_after_oom(analysis),
    )


def _weights(analysis: DeviceAnalysis, lines: ProjectLines) -> Iterator[WeightEntry]:
    table = analysis.weights
    names = weight_names(table.names, table.stack_id, lines)
    columns = (column.tolist() for column in (table.size_bytes, table.gradient_bytes, table.stack_id))
    for name, size_bytes, gradient_bytes, stack_id in zip(names, *columns, strict=True):
        yield WeightEntry(name, size_bytes, gradient_bytes, lines.of(stack_id))


def _weight_naming(analysis: DeviceAnalysis) -> WeightNaming | None:
    found = analysis.naming
    if found is None:
        return None
    return WeightNaming(
        file_name=found.file_name,
        n_weights=len(found.names),
        n_named=len(found.names) - found.names.count(""),
        weight_bytes=found.n_bytes,
        named_bytes=found.named_bytes,
        certain_bytes=found.certain_bytes,
        n_listed=found.n_listed,
        n_without_memory=found.n_without_memory,
    )


def _activations(analysis: DeviceAnalysis, lines: ProjectLines) -> Iterator[ActivationEntry]:
    for row in analysis.activation_rows.tolist():
        yield ActivationEntry(
            operation_name=analysis.operations[int(analysis.operation_id[row])],
            size_bytes=int(analysis.allocations.block_bytes[row]),
            frames=lines.of(int(analysis.allocations.stack_id[row])),
        )


def _source(snapshot: Snapshot, project: Project) -> tuple[tuple[str, str], ...]:
    container = snapshot.container
    rows = [
        ("snapconv_version", VERSION),
        ("file_name", snapshot.path.name),
        ("file_bytes", str(container.n_bytes)),
        ("format", container.format + (" in gzip" if container.is_gzip else "")),
        ("written_by", snapshot.written_by),
        ("devices", ", ".join(device_argument(device.device) for device in snapshot.devices)),
        ("project_root", project.root or ""),
        ("project_root_is_inferred", "yes" if project.is_inferred else "no"),
        ("project_includes", ", ".join(project.includes)),
    ]
    if container.pickle_protocol is not None:
        rows.append(("pickle_protocol", str(container.pickle_protocol)))
    if snapshot.metadata is not None:
        rows += [(f"recorder.{key}", text) for key, text in snapshot.metadata.facts]
    return (*rows, *((f"allocator_settings.{key}", text) for key, text in snapshot.settings_entries))


def _moments(analysis: DeviceAnalysis) -> Iterator[Moment]:
    """Start, peak and end of each curve, and the high-water mark of the activations."""
    times = analysis.device.events.time_us
    last = len(analysis.device.events) - 1

    def moment(name: str, event: int, size_bytes: int) -> Moment:
        time_us = int(times[event]) if times is not None and event >= 0 else None
        return Moment(name, event, time_us, size_bytes)

    for name in CURVES:
        curve = getattr(analysis.replay, name)
        for which, event in ((START, -1), (PEAK, curve.peak_event), (END, last)):
            yield moment(moment_name(which, name), event, curve.at(event))
    activations = analysis.allocations.block_bytes[analysis.activation_rows]
    yield moment(PEAK_ACTIVATIONS, analysis.activation_event, int(activations.sum()))


def _breakdown(analysis: DeviceAnalysis, live: BoolColumn) -> Iterator[BreakdownRow]:
    """TBD's classes in requested bytes, and what is between them and the reserved bytes."""
    allocations, replay = analysis.allocations, analysis.replay
    event = analysis.peak_event

    def requested(categories: tuple[Category, ...]) -> int:
        rows = live & is_among(analysis.classification.category, categories)
        return int(allocations.requested_bytes[rows].sum())

    for name, categories in _CLASSES:
        yield BreakdownRow(name, None, requested(categories))
    dynamic = [(name, requested(categories)) for name, categories in _DYNAMIC_CLASSES]
    yield BreakdownRow(_DYNAMIC, None, sum(size for _, size in dynamic))
    for name, size in dynamic:
        yield BreakdownRow(name, _DYNAMIC, size)
    blocks = analysis.device.blocks
    unmapped = int(analysis.device.segments.total_bytes.sum() - blocks.block_bytes.sum())
    reserved, active, allocated = (
        replay.reserved.at(event),
        replay.active.at(event),
        replay.allocated.at(event),
    )
    yield BreakdownRow("rounding", None, allocated - int(allocations.requested_bytes[live].sum()))
    yield BreakdownRow("pending_free", None, active - allocated)
    yield BreakdownRow("cached_blocks", None, reserved - active - unmapped)
    yield BreakdownRow("unmapped", None, unmapped)


def _layouts(analysis: DeviceAnalysis) -> Iterator[MomentLayout]:
    """The layouts at the peak and at the dump."""
    moments = {PEAK_ALLOCATED: analysis.peak_event, END_ALLOCATED: len(analysis.device.events) - 1}
    found = layouts(analysis.device, analysis.allocations, list(moments.values()))
    for name, event in moments.items():
        yield MomentLayout(name, found[event])


def _annotations(snapshot: Snapshot, found: AnnotatedSpans) -> AnnotationColumns:
    labels, spans = [kind.label for kind in SpanKind], found.spans
    used, name_id = np.unique(spans.name_id, return_inverse=True)
    return AnnotationColumns(
        names=tuple(snapshot.texts[i] for i in used.tolist()),
        name_id=name_id.reshape(-1).astype(np.int64),
        kinds=tuple(labels[i] for i in spans.kind.tolist()),
        found=found,
    )


def _timeline(analysis: DeviceAnalysis) -> Timeline:
    replay = analysis.replay
    return Timeline(
        time_us=analysis.device.events.time_us,
        requested=replay.requested,
        allocated=replay.allocated,
        active=replay.active,
        reserved=replay.reserved,
    )


def _own_stacks(snapshot: Snapshot, device: DeviceSnapshot) -> Int64Column:
    """The stacks of a device's events and blocks; all, also those of no event, where it is the only one."""
    if len(snapshot.devices) == 1:
        return np.arange(len(snapshot.stacks))
    ids = distinct(np.concatenate((device.events.stack_id, device.blocks.stack_id)))
    return ids[ids >= 0].astype(np.int64)


def _allocation_columns(analysis: DeviceAnalysis) -> AllocationColumns:
    rows, found, modules = analysis.allocations, analysis.classification, analysis.modules
    phase = np.full(len(rows), -1, np.int8)
    traced = rows.alloc_event >= 0
    phase[traced] = analysis.phases.phase[rows.alloc_event[traced]]
    return AllocationColumns(
        table=rows,
        category=found.category,
        evidence=found.evidence,
        rule_id=found.reason_id,
        operation_id=analysis.operation_id,
        iteration=analysis.iteration,
        phase=phase,
        pools=tuple(map(str, analysis.snapshot.pools)),
        rules=found.reasons,
        operations=analysis.operations,
        module_id=modules.module_id,
        modules=tuple((name, e.label) for name, e in zip(modules.names, modules.evidence, strict=True)),
    )
