"""Differences of two files: the peaks by category, line, module and operation, iterations and settings.

They may be of two versions of a program, of two runs, or of two programs. Nothing is matched by
address. Lines are matched by file, function and order: they move when something is inserted above
them, files when a project is cloned elsewhere or a folder is renamed. Nothing is read but the two
snapshots: no source files.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.peak import NOTHING, Sum, sums_by_name
from snapconv.classification.categories import Category, Evidence
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine, line_values
from snapconv.units import Device, device_kind

# What every line allocates: the names of its operations and its categories.
Contents = Mapping[SourceLine, frozenset[str]]
# A line of the old version and the same of the new one; None where a version does not have it. Of
# the memory that no line of the project made, the reason stands in both places.
Match = tuple[SourceLine | str | None, SourceLine | str | None]
_Key = TypeVar("_Key")

# Aligning the lines of one function takes the time of their product; no one writes one of so many.
_MOST_PAIRS = 10_000
_TABLES = ("categories", "lines", "modules", "operations")


class Difference(Enum):
    """The kinds of difference; the values stand in every output."""

    APPEARED = "appeared"
    GONE = "gone"
    GREW = "grew"
    SHRANK = "shrank"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Change(Generic[_Key]):
    """Bytes of something in the old file and in the new one, and the numbers of its allocations.

    ``name`` is that of a category, module or operation, or a line of the project by its place in
    both files.
    """

    name: _Key
    old_bytes: int
    new_bytes: int
    n_old: int = 1
    n_new: int = 1

    @property
    def more_bytes(self) -> int:
        """The bytes that the new one has more."""
        return self.new_bytes - self.old_bytes

    @property
    def difference(self) -> Difference:
        """The kind of the difference."""
        if not self.n_old or not self.n_new:
            return Difference.APPEARED if self.n_new else Difference.GONE
        if not self.more_bytes:
            return Difference.SAME
        return Difference.GREW if self.more_bytes > 0 else Difference.SHRANK

    @property
    def figures(self) -> dict[str, object]:
        """The bytes as JSON-ready values."""
        return {
            "old_bytes": self.old_bytes,
            "new_bytes": self.new_bytes,
            "change_bytes": self.more_bytes,
        }

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        if isinstance(self.name, tuple):
            old, new = (
                line_values(one) if isinstance(one, SourceLine) else None for one in self.name
            )
            named: dict[str, object] = {
                "old": old,
                "new": new,
                "has_stack": NO_STACK not in self.name,
            }
        else:
            named = {"name": self.name}
        counts = {"n_old": self.n_old, "n_new": self.n_new}
        return named | {"difference": self.difference.value} | self.figures | counts


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """Two devices compared; the rows that changed the peak most stand first.

    ``allocated`` and ``reserved`` are peaks; ``likely`` is the part of the allocated with a likely
    category. ``old_iterations`` and ``new_iterations`` have the peak of every iteration.
    ``modules`` are only those with a path: the lines of calls are in ``lines``.
    """

    old_device: Device
    new_device: Device
    allocated: Change[str]
    reserved: Change[str]
    likely: Change[str]
    old_iterations: tuple[int, ...]
    new_iterations: tuple[int, ...]
    categories: tuple[Change[str], ...]
    lines: tuple[Change[Match], ...]
    modules: tuple[Change[str], ...]
    operations: tuple[Change[str], ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "old_device": self.old_device,
            "new_device": self.new_device,
            "kind": device_kind(self.new_device),
            "peak_allocated": self.allocated.figures,
            "peak_reserved": self.reserved.figures,
            "likely_at_peak": self.likely.figures,
            "old_iteration_peaks": list(self.old_iterations),
            "new_iteration_peaks": list(self.new_iterations),
            **{name: [row.to_json() for row in getattr(self, name)] for name in _TABLES},
        }


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Two files compared. ``only_old`` and ``only_new`` are devices that the other file does not have.

    ``by_urgency`` are the positions of ``devices`` as a reader wants them: those that ran out of
    memory in one of the files, then by peak. ``settings`` are those of the allocator that differ,
    and the torch that wrote the files: by name, in the old and in the new file; None where a file
    does not have it.
    """

    old_name: str
    new_name: str
    devices: tuple[DeviceDiff, ...]
    by_urgency: tuple[int, ...]
    only_old: tuple[Device, ...]
    only_new: tuple[Device, ...]
    settings: tuple[tuple[str, str | None, str | None], ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values in bytes; docs/reference/json.md has the schema."""
        return {
            "old": self.old_name,
            "new": self.new_name,
            "devices": [device.to_json() for device in self.devices],
            "only_old": list(self.only_old),
            "only_new": list(self.only_new),
            "settings": [
                {"name": name, "old": old, "new": new} for name, old, new in self.settings
            ],
        }


def compare_files(old: Analysis, new: Analysis) -> FileDiff:
    """Compare two files."""
    pairs, only_old, only_new = paired(old.devices, new.devices)
    urgencies = [min(one.urgency for one in pair) for pair in pairs]
    before, after = (
        {"written by": side.snapshot.written_by, **dict(side.snapshot.settings_entries)}
        for side in (old, new)
    )
    return FileDiff(
        old_name=str(old.snapshot.path),
        new_name=str(new.snapshot.path),
        devices=tuple(_compared(*pair) for pair in pairs),
        by_urgency=tuple(sorted(range(len(pairs)), key=urgencies.__getitem__)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        settings=tuple(
            (name, before.get(name), after.get(name))
            for name in dict.fromkeys((*before, *after))
            if (before.get(name) or None) != (after.get(name) or None)
        ),
    )


def _compared(old: DeviceAnalysis, new: DeviceAnalysis) -> DeviceDiff:
    categories, modules, operations = zip(_sums_at_peak(old), _sums_at_peak(new), strict=True)
    likely = (sum(one.likely_bytes for one in side.values()) for side in categories)
    is_dump = (one.history.verdict is Verdict.NO_TRACE for one in (old, new))
    names = ("allocated at the dump" if is_it else "peak allocated" for is_it in is_dump)
    return DeviceDiff(
        old_device=old.device.device,
        new_device=new.device.device,
        allocated=Change(
            " → ".join(dict.fromkeys(names)), old.replay.allocated.peak, new.replay.allocated.peak
        ),
        reserved=Change("peak reserved", old.replay.reserved.peak, new.replay.reserved.peak),
        likely=Change("likely at the peak", *likely),
        old_iterations=tuple(iteration.peak_bytes for iteration in old.iterations),
        new_iterations=tuple(iteration.peak_bytes for iteration in new.iterations),
        categories=_changes(*categories, order=str),
        lines=_lines(old, new),
        modules=_changes(*modules, order=str),
        operations=_changes(*operations, order=str),
    )


def _sums_at_peak(
    analysis: DeviceAnalysis,
) -> tuple[dict[str, Sum], dict[str, Sum], dict[str, Sum]]:
    """Sum up the peak by category, by module with a recorded path, and by operation."""
    live = analysis.live_at_peak
    modules = analysis.modules
    has_path = np.array([*(one is Evidence.METADATA for one in modules.evidence), False])[
        modules.module_id
    ]
    return (
        sums_by_name(
            analysis, live, lambda code: Category(code).label, analysis.classification.category
        ),
        sums_by_name(analysis, live & has_path, modules.names.__getitem__, modules.module_id),
        sums_by_name(analysis, live, analysis.operations.__getitem__, analysis.operation_id),
    )


def _changes(
    old: Mapping[_Key, Sum], new: Mapping[_Key, Sum], *, order: Callable[[_Key], Any]
) -> tuple[Change[_Key], ...]:
    """Bring the sums of one name together, the largest changes first, those without memory left out."""
    both = [
        (name, old.get(name, NOTHING), new.get(name, NOTHING))
        for name in dict.fromkeys((*old, *new))
    ]
    found = [
        Change(
            name, before.block_bytes, after.block_bytes, before.n_allocations, after.n_allocations
        )
        for name, before, after in both
        if before.n_allocations or after.n_allocations
    ]
    return tuple(
        sorted(found, key=lambda one: (-abs(one.more_bytes), -one.new_bytes, order(one.name)))
    )


def _lines(old: DeviceAnalysis, new: DeviceAnalysis) -> tuple[Change[Match], ...]:
    """Compare the lines of the project at the peaks; memory that no line made has rows too."""
    reasons: list[Match] = [(reason, reason) for reason in (LIBRARY_ONLY, NO_STACK)]
    matches = [*reasons, *match_lines(_contents(old), _contents(new))]
    sides = []
    for side, one in enumerate((old, new)):
        live = one.live_at_peak
        sums = sums_by_name(one, live, one.lines.line_or_reason, one.allocations.stack_id)
        sides.append({match: sums.get(name, NOTHING) for match in matches if (name := match[side])})

    def place(match: Match) -> tuple[str, int]:
        line = match[1] or match[0]
        return (line.file_path, line.line_number) if isinstance(line, SourceLine) else ("", 0)

    return _changes(*sides, order=place)


def _contents(analysis: DeviceAnalysis) -> Contents:
    """Find what every line of the project allocates at any time: the operations, and the categories."""
    everything = np.ones(len(analysis.allocations), bool)
    category = analysis.classification.category
    innermost = analysis.lines.innermost
    names: dict[SourceLine, set[str]] = defaultdict(set)
    columns = (analysis.allocations.stack_id, analysis.operation_id, category)
    for stack, operation, code in sums_by_name(analysis, everything, lambda *key: key, *columns):
        if line := innermost(stack):
            names[line] |= {analysis.operations[operation], f"category {Category(code).label}"}
    return {line: frozenset(found) for line, found in names.items()}


def paired(
    old: Sequence[DeviceAnalysis], new: Sequence[DeviceAnalysis]
) -> tuple[list[tuple[DeviceAnalysis, DeviceAnalysis]], list[Device], list[Device]]:
    """Pair the devices of the same ordinal; list those that only the old file has, or only the new one.

    Where each has one, beside pinned host memory, they are a pair whatever their ordinals are.
    """
    left, right = ({one.device.device: one for one in side} for side in (old, new))
    on_old, on_new = (
        [number for number in side if not side[number].device.is_host] for side in (left, right)
    )
    pairs = []
    if len(on_old) == len(on_new) == 1:
        pairs.append((left.pop(on_old[0]), right.pop(on_new[0])))
    pairs += [(left.pop(number), right.pop(number)) for number in list(left) if number in right]
    return pairs, list(left), list(right)


def match_lines(old: Contents, new: Contents) -> list[Match]:
    """Match the lines of two versions; each is in exactly one match.

    Lines of one function keep their order. A file that only one version has is taken for a file of
    the same name that only the other has, where there is just one such and they share a function.
    """
    renamed: tuple[Mapping[str, str], ...] = (_renamed_files(old, new), {})
    functions: dict[tuple[str, str], tuple[list[SourceLine], list[SourceLine]]]
    functions = defaultdict(lambda: ([], []))  # by file and name: the lines of either version
    for side, lines in enumerate((old, new)):
        for line in sorted(lines):
            file = renamed[side].get(line.file_path, line.file_path)
            functions[file, line.function][side].append(line)
    return [match for both in functions.values() for match in _aligned(*both, old, new)]


def _renamed_files(old: Contents, new: Contents) -> dict[str, str]:
    """Find the files of the old version that have another path in the new one."""
    sides: list[dict[str, set[str]]] = []  # the functions of every file
    for lines in (old, new):
        sides.append(defaultdict(set))
        for line in lines:
            sides[-1][line.file_path].add(line.function)
    same_name: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side in (0, 1):
        for file in sides[side].keys() - sides[1 - side].keys():
            same_name[file.replace("\\", "/").rpartition("/")[2]][side].append(file)
    return {
        gone[0]: come[0]
        for gone, come in same_name.values()
        if len(gone) == len(come) == 1 and sides[0][gone[0]] & sides[1][come[0]]
    }


def _aligned(
    old: Sequence[SourceLine], new: Sequence[SourceLine], in_old: Contents, in_new: Contents
) -> list[Match]:
    """Pair the lines of one function in their order, so that most of them allocate the same."""
    if len(old) * len(new) > _MOST_PAIRS:
        numbers = {line.line_number: line for line in new}
        pairs: list[Match] = [(line, numbers.pop(line.line_number, None)) for line in old]
        return pairs + [(None, line) for line in numbers.values()]
    # By the place in both: the most likeness of all that follows, and how many lines of each come
    # next.
    steps: dict[tuple[int, int], tuple[float, int, int]] = {}
    for i, j in product(range(len(old), -1, -1), range(len(new), -1, -1)):
        is_within = i < len(old) and j < len(new)
        likeness = _likeness(old[i], new[j], in_old, in_new) if is_within else 0.0
        choices = ((1, 1, likeness), (1, 0, 0.0), (0, 1, 0.0))[not likeness :]
        rests = ((steps.get((i + m, j + n)), more, m, n) for m, n, more in choices)
        totals = [(rest[0] + more, m, n) for rest, more, m, n in rests if rest]
        steps[i, j] = max(totals, key=itemgetter(0), default=(0.0, 0, 0))
    i = 0
    j = 0
    matches: list[Match] = []
    while i < len(old) or j < len(new):
        _, m, n = steps[i, j]
        matches.append((old[i] if m else None, new[j] if n else None))
        i = i + m
        j = j + n
    return matches


def _likeness(old: SourceLine, new: SourceLine, in_old: Contents, in_new: Contents) -> float:
    """Score how likely two lines of one function are the same, by the contents that both have."""
    both = in_old[old] & in_new[new]
    is_same_number = old.line_number == new.line_number
    if not both:
        return 0.25 * is_same_number
    return 1.0 + len(both) / len(in_old[old] | in_new[new]) + 0.5 * is_same_number
