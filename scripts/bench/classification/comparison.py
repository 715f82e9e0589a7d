"""A bare snapshot's classification against the truth of the run that it was cut from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cases import Bare, Case
from cutting import Cut

from snapconv.analysis import DeviceAnalysis, analyze_device
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import BoolColumn, Int8Column, Int64Column, take
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.load import Snapshot, load_snapshot
from snapconv.stacks.project_frames import Project, find_project
from snapconv.stacks.stack_facts import StackFacts

Confusion = Counter[tuple[str, str]]


@dataclass(slots=True)
class Bytes:
    """Bytes that were live at one moment, by what was said of them."""

    right: int = 0
    wrong: int = 0
    unknown: int = 0
    not_counted: int = 0
    recorded: int = 0
    confusion: Confusion = field(default_factory=Counter)
    by_rule: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def in_sum(self) -> int:
        """Bytes that are right if only the total of every category counts."""
        true: Counter[str] = Counter()
        said: Counter[str] = Counter()
        for (is_truly, is_said), size in self.confusion.items():
            true[is_truly] += size
            said[is_said] += size
        return (true & said).total()

    @property
    def counted(self) -> int:
        """Bytes whose truth is known."""
        return self.right + self.wrong + self.unknown


@dataclass(frozen=True, slots=True)
class Result:
    """One case: bytes at the peak, and where the true activations hold most.

    ``decided`` has, per evidence and rule, the bytes at the peak that it decided, and those of them
    that are right. ``named_right`` is the share of the true activations' bytes with the right
    operation name, None where nothing is known of names.
    """

    case: Case
    at_peak: Bytes
    at_activations: Bytes
    decided: dict[tuple[str, str], tuple[int, int]]
    named_right: float | None


@dataclass(frozen=True, slots=True)
class Analysed:
    """A bare snapshot, and its one device as every command analyses it."""

    snapshot: Snapshot
    project: Project
    found: DeviceAnalysis


def analysed(path: Path) -> Analysed:
    """Read a snapshot and analyse its device."""
    snapshot = load_snapshot(path)
    (device,) = snapshot.devices
    project = find_project(snapshot.stacks)
    found = analyze_device(snapshot, device, StackFacts(snapshot.stacks, project))
    return Analysed(snapshot, project, found)


def compare(bare: Bare, bare_analysed: Analysed) -> Result:
    """Compare the classification of a bare snapshot with the truth."""
    case, found, truth = bare.case, bare_analysed.found, bare.truth
    row = match(found.allocations, truth.allocations, bare.cut)
    true = truth.category[row]
    recorded = truth.is_recorded[row]
    peak = found.allocations.live_at(found.peak_event)
    highest = found.allocations.live_at(_highest(found.allocations, true == Category.ACTIVATION))
    true_names = [bare.names[i] for i in row.tolist()]
    return Result(
        case,
        _bytes(found, true, recorded, peak),
        _bytes(found, true, recorded, highest),
        _decided(found, true, peak),
        _named_right(found, true, true_names),
    )


def match(allocations: AllocationTable, whole: AllocationTable, cut: Cut) -> Int64Column:
    """For every allocation of a cut its row in the whole run: by address and lifetime."""
    never = np.int64(np.iinfo(np.int64).max)
    last = never if cut.end is None else np.int64(cut.end)

    def keys(table: AllocationTable, n_before: int, last: np.int64) -> list[tuple[int, int, int]]:
        alloc = np.maximum(table.alloc_event - n_before, -1)
        freed = (table.end_event >= 0) & (table.end_event < last)
        end = np.where(freed, table.end_event - n_before, never)
        return list(zip(table.addr.tolist(), alloc.tolist(), end.tolist(), strict=True))

    made = np.flatnonzero(whole.alloc_event < last)
    rows = {
        key: made[row]
        for row, key in enumerate(keys(take(whole, made), cut.n_lost, last))
        if key[2] >= 0
    }
    return np.array([rows[key] for key in keys(allocations, 0, never)], np.int64)


def _highest(allocations: AllocationTable, rows: BoolColumn) -> int:
    """Return the first event at which these rows together hold most; -1: before the first one."""
    n_bytes, n_events = allocations.block_bytes[rows], int(allocations.alloc_event.max()) + 1
    end = allocations.freed_event
    end = np.minimum(np.where(end >= 0, end, n_events), n_events)
    change = np.zeros(n_events + 2, np.int64)
    np.add.at(change, allocations.alloc_event[rows] + 1, n_bytes)
    np.subtract.at(change, end[rows] + 1, n_bytes)
    return int(np.cumsum(change).argmax()) - 1


def _bytes(
    found: DeviceAnalysis, true: Int8Column, recorded: BoolColumn, live: BoolColumn
) -> Bytes:
    total = Bytes()
    said, n_bytes = found.classification.category, found.allocations.block_bytes
    for row in np.flatnonzero(live).tolist():
        size = int(n_bytes[row])
        if true[row] == Category.UNKNOWN:
            total.not_counted += size
            continue
        total.recorded += size * int(recorded[row])
        if said[row] == true[row]:
            total.right += size
        elif said[row] == Category.UNKNOWN:
            total.unknown += size
        else:
            total.wrong += size
        is_, called = Category(true[row]).label, Category(said[row]).label
        total.confusion[is_, called] += size
        rule = found.classification.reasons[found.classification.reason_id[row]]
        total.by_rule[is_, called, rule] += size
    return total


def _named_right(found: DeviceAnalysis, true: Int8Column, names: Sequence[str]) -> float | None:
    """Of the bytes of activations that the cut itself allocates, the share with the right name."""
    right = total = 0
    said, n_bytes = found.operation_id.tolist(), found.allocations.block_bytes.tolist()
    for row in np.flatnonzero(
        (true == Category.ACTIVATION) & (found.allocations.alloc_event >= 0)
    ).tolist():
        if names[row]:
            total += n_bytes[row]
            right += n_bytes[row] * (found.operations[said[row]] == names[row])
    return round(right / total, 4) if total else None


def _decided(
    found: DeviceAnalysis, true: Int8Column, live: BoolColumn
) -> dict[tuple[str, str], tuple[int, int]]:
    decided: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    judged = found.classification
    for row in np.flatnonzero(live & (true != Category.UNKNOWN)).tolist():
        size = int(found.allocations.block_bytes[row])
        key = Evidence(judged.evidence[row]).label, judged.reasons[judged.reason_id[row]]
        decided[key] += size
        right[key] += size * int(judged.category[row] == true[row])
    return {key: (n_bytes, right[key]) for key, n_bytes in decided.items()}
