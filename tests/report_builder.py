"""A small MemoryReport in which every number can be checked by hand.

    event              0    1    2    3    4    5    6
    what               alloc 1   alloc 2   free 2 (requested, completed)
                                           free 1 (requested, completed)    alloc 3
    allocated bytes    3072 3584 3072 3072 1024 1024 2048        1024 before event 0

Allocation 0 is a weight that was there before the trace; 3 is its gradient, and never freed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from snapconv.analysis import Iteration
from snapconv.answers.growth import Fate, Growth
from snapconv.answers.memory_report import (
    PEAK_ALLOCATED,
    ActivationEntry,
    MemoryReport,
    Moment,
    ReportStacks,
    WeightEntry,
    report_stacks,
)
from snapconv.answers.oom.failed_allocation import FailedAllocation
from snapconv.answers.peak import CategoryTotal, DeviceMemory, LineTotal, ModuleTotal, MomentState
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import Int32Column, Int64Column
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import AllocationTable, Curve
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import Device
from snapconv.writers.sqlite.skyline_reports import memory_database
from snapconv.writers.sqlite.tables import write_databases

FORWARD = SourceLine("model/net.py", 12, "forward")
STEP = SourceLine("train.py", 40, "step")
BUILD = SourceLine("train.py", 8, "build")

WEIGHT = WeightEntry("encoder.weight", 1024, 1024, (BUILD,))
FAILED = FailedAllocation(
    event=6,
    block_bytes=1 << 40,
    segment_bytes=0,
    stream=0,
    pool=None,
    operation="",
    module="",
    lines=(FORWARD, BUILD),
    time_us=None,
    device_free_bytes=1 << 30,
    allocated_bytes=1024,
    reserved_bytes=2 << 20,
    stack_id=-1,
    has_stack=True,
)
ACTIVATION = ActivationEntry("linear", 2048, (FORWARD, STEP))
WITHOUT_FRAMES = ActivationEntry("relu", 512, ())

WRAPPED_ADDR = -(1 << 47)  # 0xffff800000000000
TIMES = np.array([10, 20, 30, 40, 50, 60, 70])


def int64(*values: int) -> Int64Column:
    return np.array(values, np.int64)


def int32(*values: int) -> Int32Column:
    return np.array(values, np.int32)


def small_stacks() -> StackTable:
    """0: torch code called by forward, called by step; 1: C++ only; 2: empty; 3: build."""
    frames = small_frames(
        names=("linear", "forward", "step", "at::native::relu", "build"),
        filenames=(
            "/site-packages/torch/nn/functional.py",
            "/home/me/project/model/net.py",
            "/home/me/project/train.py",
            "??",
            "/home/me/project/train.py",
        ),
        lines=int64(2300, 12, 40, 0, 8),
    )
    return StackTable(frames, offsets=int64(0, 3, 4, 4, 5), frame_ids=int32(0, 1, 2, 3, 4))


def small_frames(
    names: tuple[str, ...], filenames: tuple[str, ...], lines: Int64Column
) -> FrameTable:
    """Frames of code that was not compiled."""
    return FrameTable(names, filenames, lines)


def small_table() -> AllocationTable:
    return AllocationTable(
        alloc_event=int32(-1, 0, 1, 6),
        free_requested_event=int32(-1, 4, 2, -1),
        free_completed_event=int32(-1, 5, 3, -1),
        end_event=int32(-1, 5, 3, -1),
        addr=int64(0x7F0000000000, 0x7F0000000400, 0x7F0000000C00, WRAPPED_ADDR),
        stream=int64(0, 0, -1, 0),
        requested_bytes=int64(1000, 2000, 500, 1000),
        block_bytes=int64(1024, 2048, 512, 1024),
        is_exact=np.array([True, True, False, True]),
        is_pending_at_end=np.zeros(4, np.bool_),
        pool_id=int32(0, 0, 1, -1),
        stack_id=int32(3, 0, 1, -1),
        free_stack_id=int32(-1, -1, -1, -1),
    )


def small_analysis(
    *,
    table: AllocationTable | None = None,
    times: Int64Column | None = TIMES,
    iterations: tuple[Iteration, ...] = (Iteration(0, 6, 1, 3584),),
    **curves: Curve,
) -> Any:
    """As much of a DeviceAnalysis as writers take from one; for an empty ``table`` without allocations."""
    table = small_table() if table is None else table
    rows = slice(None, len(table))
    curves = {
        "requested": curve(3000, 3500, 3000, 3000, 1000, 1000, 2000),
        "allocated": curve(3072, 3584, 3072, 3072, 1024, 1024, 2048),
        "active": curve(3072, 3584, 3584, 3072, 3072, 1024, 2048),
        "reserved": curve(*[2 << 20] * 7),
    } | curves
    categories = [Category.WEIGHT, Category.ACTIVATION, Category.UNKNOWN, Category.GRADIENT]
    evidence = [Evidence.METADATA, Evidence.FRAMES, Evidence.NONE, Evidence.LIFETIME]
    return SimpleNamespace(
        allocations=table,
        replay=SimpleNamespace(**curves),
        device=SimpleNamespace(events=SimpleNamespace(time_us=times)),
        snapshot=SimpleNamespace(pools=((0, 0), (0, 1))),
        classification=SimpleNamespace(
            category=np.array(categories, np.int8)[rows],
            certainty=np.array([3, 2, 0, 1], np.int8)[rows],
            probability=np.array([1, 1, 0, 0.75], np.float32)[rows],
            evidence=np.array(evidence, np.int8)[rows],
            reason_id=int32(0, 2, 0, 1)[rows],
            reasons=("none", "gradients outlive the backward pass", "forward frames"),
        ),
        operation_id=int32(0, 1, 2, 0)[rows],
        operations=("unknown", "linear", "relu"),
        iteration=int32(-1, 0, 0, 0)[rows],
        iterations=iterations,
        naming=None,
        modules=SimpleNamespace(
            module_id=int32(0, 1, -1, -1)[rows],
            names=("encoder", "model/net.py:12 < train.py:40"),
            evidence=(Evidence.METADATA, Evidence.FRAMES),
        ),
    )


def curve(*after: int) -> Curve:
    return Curve(0, lambda: int64(*after))


def small_peak(**changes: Any) -> MomentState:
    """The state of the report's device at the peak, with some of its fields replaced."""
    state = MomentState(
        device=Device(0),
        moment="the peak",
        event=1,
        n_events=7,
        time_us=20,
        iteration=0,
        phase="forward",
        annotations=(),
        requested_bytes=3500,
        allocated_bytes=3584,
        active_bytes=3584,
        reserved_bytes=2 << 20,
        n_allocations=3,
        categories=(
            CategoryTotal("activation", 1, 2000, 2048),
            CategoryTotal("weight", 1, 1000, 1024),
            CategoryTotal("unknown", 1, 500, 512),
        ),
        gradient_or_state=CategoryTotal("gradient or optimizer state", 0, 0, 0),
        lines=(LineTotal(FORWARD, 1, 2048), LineTotal(BUILD, 1, 1024)),
        modules=(
            ModuleTotal("model/net.py:12 < train.py:40", "frames", 1, 2048),
            ModuleTotal("encoder", "metadata", 1, 1024),
        ),
        operations=(),
        pools=(),
        project_root="/home/me/project",
        project_includes=(),
        history_verdict="truncated",
        history_reason="frees without an alloc",
        memory=DeviceMemory(None, 2 << 20, None, None, None, None),
    )
    return replace(state, **changes)


def stacks_of(
    stacks: StackTable, is_project: Any = (False, True, True, False, True)
) -> ReportStacks:
    """All of these stacks, as a report has them."""
    return report_stacks(stacks, np.arange(len(stacks)), np.array(is_project, np.bool_))


def small_report(**changes: Any) -> MemoryReport:
    """The report above, with some of its fields, or of those of its peak, replaced."""
    of_peak = {name: changes.pop(name) for name in MomentState.__slots__ if name in changes}
    report = MemoryReport(
        analysis=small_analysis(),
        peak=small_peak(**of_peak),
        weights=(WEIGHT,),
        activations=(ACTIVATION, WITHOUT_FRAMES),
        source=(("file", "snapshot.pickle"), ("format", "pickle")),
        notes=(
            Note("truncated-history", "The oldest events are lost.", 0),
            Note("no-settings", "None found."),
        ),
        moments=(
            Moment(PEAK_ALLOCATED, 1, 20, 3584),
            Moment("start", -1, None, 1024),
            Moment("peak_reserved", 0, 10, 2 << 20),
        ),
        growth=(
            Growth(0, Fate.NEVER_FREED, 0, 0, 1, 4096, 4096, np.arange(8), (FORWARD,)),
            Growth(-1, Fate.REPLACED, 0, 0, 1, 1536, 1536, np.arange(3)),
        ),
        oom_events=(FAILED,),
        phase=np.array([-1, Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD], np.int8),
        stacks=stacks_of(small_stacks()),
    )
    return replace(report, **changes)


def write_memory_reports(
    reports: Sequence[tuple[Path, MemoryReport]],
    *,
    extended: bool,
    force: bool,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write every report to its path: all of them, or none."""
    databases = [memory_database(path, report, extended=extended) for path, report in reports]
    write_databases(databases, force=force, progress=progress)
