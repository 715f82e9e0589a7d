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
from typing import Any

import numpy as np

from snapconv.answers.growth import Fate, Growth
from snapconv.answers.live_totals import CategoryTotal, LineTotal, ModuleTotal
from snapconv.answers.memory_report import (
    PEAK_ALLOCATED,
    ActivationEntry,
    AllocationColumns,
    BreakdownRow,
    IterationRow,
    MemoryReport,
    Moment,
    Timeline,
    WeightEntry,
)
from snapconv.answers.oom.failed_allocation import FailedAllocation
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import Int32Column, Int64Column
from snapconv.notes import Note
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import AllocationTable, Curve
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.sqlite.database import write_databases
from snapconv.writers.sqlite.skyline_memory import memory_database

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
)
ACTIVATION = ActivationEntry("linear", 2048, (FORWARD, STEP))
WITHOUT_FRAMES = ActivationEntry("relu", 512, ())

WRAPPED_ADDR = -(1 << 47)  # 0xffff800000000000


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


def small_frames(names: tuple[str, ...], filenames: tuple[str, ...], lines: Int64Column) -> FrameTable:
    """Frames of code that was not compiled."""
    return FrameTable(names, filenames, lines, originals=("",) * len(names), targets=("",) * len(names))


def small_allocations() -> AllocationColumns:
    table = AllocationTable(
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
    return AllocationColumns(
        table,
        category=np.array(
            [Category.WEIGHT, Category.ACTIVATION, Category.UNKNOWN, Category.GRADIENT], np.int8
        ),
        evidence=np.array([Evidence.METADATA, Evidence.FRAMES, Evidence.NONE, Evidence.LIFETIME], np.int8),
        rule_id=int32(0, 2, 0, 1),
        operation_id=int32(0, 1, 2, 0),
        iteration=int32(-1, 0, 0, 0),
        phase=np.array([-1, Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD], np.int8),
        pools=("(0, 0)", "(0, 1)"),
        rules=("none", "gradients outlive the backward pass", "forward frames"),
        operations=("unknown", "linear", "relu"),
        module_id=int32(0, 1, -1, -1),
        modules=(("encoder", "metadata"), ("model/net.py:12 < train.py:40", "frames")),
    )


def small_timeline() -> Timeline:
    return Timeline(
        time_us=int64(10, 20, 30, 40, 50, 60, 70),
        requested=curve(3000, 3500, 3000, 3000, 1000, 1000, 2000),
        allocated=curve(3072, 3584, 3072, 3072, 1024, 1024, 2048),
        active=curve(3072, 3584, 3584, 3072, 3072, 1024, 2048),
        reserved=curve(*[2 << 20] * 7),
    )


def curve(*after: int) -> Curve:
    return Curve(0, lambda: int64(*after))


def small_report(**changes: Any) -> MemoryReport:
    """The report above, with some of its fields replaced."""
    report = MemoryReport(
        device=0,
        peak_usage_bytes=3584,
        weights=(WEIGHT,),
        activations=(ACTIVATION, WITHOUT_FRAMES),
        source=(("file", "snapshot.pickle"), ("format", "pickle")),
        notes=(
            Note("truncated-history", "The oldest events are lost.", 0),
            Note("no-settings", "None found."),
        ),
        history_verdict="truncated",
        history_reason="frees without an alloc",
        project_root="/home/me/project",
        moments=(Moment(PEAK_ALLOCATED, 1, 20, 3584), Moment("start", -1, None, 1024)),
        categories_at_peak=(
            CategoryTotal("activation", 1, 2000, 2048),
            CategoryTotal("weight", 1, 1000, 1024),
            CategoryTotal("unknown", 1, 500, 512),
        ),
        breakdown=(BreakdownRow("reserved", None, 2 << 20), BreakdownRow("weights", "reserved", 1024)),
        lines_at_peak=(LineTotal(FORWARD, 1, 2048), LineTotal(BUILD, 1, 1024)),
        modules_at_peak=(
            ModuleTotal("model/net.py:12 < train.py:40", "frames", 1, 2048),
            ModuleTotal("encoder", "metadata", 1, 1024),
        ),
        growth=(
            Growth(0, Fate.NEVER_FREED, 0, 0, 1, 4096, np.arange(8), (FORWARD,)),
            Growth(-1, Fate.FREED_LATE, 0, 0, 1, 1536, np.arange(3)),
        ),
        iterations=(IterationRow(0, 0, 6, 3584, 1),),
        oom_events=(FAILED,),
        timeline=small_timeline(),
        allocations=small_allocations(),
        stacks=small_stacks(),
        own_stacks=np.arange(len(changes.get("stacks", small_stacks()))),
        is_project=np.array([False, True, True, False, True]),
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
