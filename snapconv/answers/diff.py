"""Differences of two files: the peaks by category, line, module and operation, iterations and settings.

They may be of two versions of a program, of two runs, or of two programs. Nothing is matched by address.
Lines are matched by file, function and order: they move when something is inserted above them, files when a
project is cloned elsewhere or a folder is renamed. Nothing is read but the two snapshots: no source files.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.category_totals import totals_by_category
from snapconv.answers.peak import totals_by_module, totals_by_operation
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import BoolColumn, Int64Column, sums_by
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import ProjectLines, SourceLine, line_values
from snapconv.units import device_kind

# What a line allocates: the names of its operations and its categories.
Contents = frozenset[str]
# The lines of every function, in order, by its file and its name.
_Functions = dict[tuple[str, str], list[SourceLine]]

# Aligning the lines of one function takes the time of their product; no one writes one of so many.
_MOST_PAIRS = 10_000


class Difference(Enum):
    """The kinds of difference; the values stand in every output."""

    APPEARED = "appeared"
    GONE = "gone"
    GREW = "grew"
    SHRANK = "shrank"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes in the old file and in the new one, and how many allocations they are of."""

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
        return {"old_bytes": self.old_bytes, "new_bytes": self.new_bytes, "change_bytes": self.more_bytes}

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {
            "difference": self.difference.value,
            **self.figures,
            "n_old": self.n_old,
            "n_new": self.n_new,
        }


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A category, module or operation at the peaks."""

    name: str
    change: Change

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {"name": self.name} | self.change.to_json()


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """A line of the project at the peaks; both lines None: memory that no line of the project made."""

    old_line: SourceLine | None
    new_line: SourceLine | None
    change: Change

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        old, new = (line and line_values(line) for line in (self.old_line, self.new_line))
        return {"old": old, "new": new} | self.change.to_json()


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """Two devices compared; the rows that changed the peak most stand first.

    ``allocated`` and ``reserved`` are peaks; ``likely`` is the part of the allocated with a likely category,
    and not a certain one. ``old_iterations`` and ``new_iterations`` have the peak of every
    iteration. ``modules`` are only those with a path: the lines of calls are in ``lines``.
    """

    old_device: int
    new_device: int
    allocated: Change
    reserved: Change
    old_iterations: tuple[int, ...]
    new_iterations: tuple[int, ...]
    categories: tuple[ComparedRow, ...]
    lines: tuple[ComparedLine, ...]
    modules: tuple[ComparedRow, ...]
    operations: tuple[ComparedRow, ...]
    likely: Change = Change(0, 0)

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
            "categories": [row.to_json() for row in self.categories],
            "lines": [row.to_json() for row in self.lines],
            "modules": [row.to_json() for row in self.modules],
            "operations": [row.to_json() for row in self.operations],
        }


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """A setting of the allocator, or the torch that wrote the file; None where a file does not have it."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Two files compared. ``only_old`` and ``only_new`` are devices that the other file does not have."""

    old_name: str
    new_name: str
    devices: tuple[DeviceDiff, ...]
    only_old: tuple[int, ...]
    only_new: tuple[int, ...]
    settings: tuple[ComparedSetting, ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values in bytes; docs/reference/json.md has the schema."""
        return {
            "old": self.old_name,
            "new": self.new_name,
            "devices": [device.to_json() for device in self.devices],
            "only_old": list(self.only_old),
            "only_new": list(self.only_new),
            "settings": list(map(asdict, self.settings)),
        }


def compare_files(old: Analysis, new: Analysis) -> FileDiff:
    """Compare two files."""
    pairs, only_old, only_new = paired(old.devices, new.devices)
    old_lines, new_lines = (ProjectLines(side.snapshot.stacks, side.project) for side in (old, new))
    return FileDiff(
        old_name=str(old.snapshot.path),
        new_name=str(new.snapshot.path),
        devices=tuple(_compared(a, b, old_lines=old_lines, new_lines=new_lines) for a, b in pairs),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        settings=tuple(_settings(old.snapshot, new.snapshot)),
    )


def _settings(old: Snapshot, new: Snapshot) -> Iterator[ComparedSetting]:
    """Find the settings that differ."""
    sides = [{"written by": side.written_by, **dict(side.settings_entries)} for side in (old, new)]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        before, after = (side.get(name) for side in sides)
        if before != after:
            yield ComparedSetting(name, before, after)


def _compared(
    old: DeviceAnalysis, new: DeviceAnalysis, *, old_lines: ProjectLines, new_lines: ProjectLines
) -> DeviceDiff:
    """Compare two devices at their peaks of allocated bytes."""
    sides = [(one, one.allocations.live_at(one.peak_event)) for one in (old, new)]
    return DeviceDiff(
        old_device=old.device.device,
        new_device=new.device.device,
        allocated=Change(old.replay.allocated.peak, new.replay.allocated.peak),
        reserved=Change(old.replay.reserved.peak, new.replay.reserved.peak),
        old_iterations=tuple(iteration.peak_bytes for iteration in old.iterations),
        new_iterations=tuple(iteration.peak_bytes for iteration in new.iterations),
        categories=_rows(*(_categories(one, live) for one, live in sides)),
        lines=_compared_lines(_at_lines(old, old_lines), _at_lines(new, new_lines)),
        modules=_rows(*(_modules(one, live) for one, live in sides)),
        operations=_rows(*(_operations(one, live) for one, live in sides)),
        likely=Change(*(_likely_bytes(one, live) for one, live in sides)),
    )


_Total = tuple[str, int, int]


def _categories(one: DeviceAnalysis, live: BoolColumn) -> Iterator[_Total]:
    for row in totals_by_category(one, live):
        yield row.category, row.n_allocations, row.block_bytes


def _likely_bytes(one: DeviceAnalysis, live: BoolColumn) -> int:
    return int(one.allocations.block_bytes[live & one.classification.is_likely].sum())


def _modules(one: DeviceAnalysis, live: BoolColumn) -> Iterator[_Total]:
    for row in totals_by_module(one, live):
        if row.evidence == Evidence.METADATA.label:
            yield row.module, row.n_allocations, row.block_bytes


def _operations(one: DeviceAnalysis, live: BoolColumn) -> Iterator[_Total]:
    for row in totals_by_operation(one, live):
        yield row.operation, row.n_allocations, row.block_bytes


def _rows(old: Iterable[_Total], new: Iterable[_Total]) -> tuple[ComparedRow, ...]:
    """Bring the totals of one name together, those without memory on either side left out."""
    sides = [{name: (count, size) for name, count, size in one} for one in (old, new)]
    rows = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        (n_old, old_bytes), (n_new, new_bytes) = (side.get(name, (0, 0)) for side in sides)
        if n_old or n_new:
            rows.append(ComparedRow(name, Change(old_bytes, new_bytes, n_old, n_new)))
    return tuple(sorted(rows, key=lambda row: (*_order(row.change), row.name)))


@dataclass(frozen=True, slots=True)
class _AtLine:
    """The memory of a line at the peak, and all that it allocates at any time."""

    n_bytes: int
    n_allocations: int
    contents: Contents


def _at_lines(analysis: DeviceAnalysis, lines: ProjectLines) -> dict[SourceLine | None, _AtLine]:
    """Sum up the peak by line of the project; None has the memory that no line made."""
    allocations = analysis.allocations
    stacks, place = np.unique(allocations.stack_id, return_inverse=True)
    live = allocations.live_at(analysis.peak_event)
    n_bytes = sums_by(place.reshape(-1)[live], allocations.block_bytes[live], len(stacks))
    counts = np.bincount(place.reshape(-1)[live], minlength=len(stacks))
    names = _contents(analysis, place)
    by_line: dict[SourceLine | None, list[int]] = defaultdict(list)
    for number, stack in enumerate(stacks.tolist()):
        by_line[lines.innermost(stack)].append(number)
    return {
        line: _AtLine(
            int(n_bytes[numbers].sum()),
            int(counts[numbers].sum()),
            frozenset().union(*map(names, numbers)),
        )
        for line, numbers in by_line.items()
    }


def _contents(analysis: DeviceAnalysis, place: Int64Column) -> Callable[[int], Contents]:
    """Make a function that gives the operations and categories of a stack by its place."""
    category = analysis.classification.category.astype(np.int64)
    both = np.stack((place.reshape(-1), analysis.operation_id.astype(np.int64), category), axis=1)
    names: dict[int, set[str]] = defaultdict(set)
    for stack, operation, kind in np.unique(both, axis=0).tolist():
        names[stack] |= {analysis.operations[operation], f"category {Category(kind).label}"}
    return lambda stack: frozenset(names[stack])


def _compared_lines(
    old: dict[SourceLine | None, _AtLine], new: dict[SourceLine | None, _AtLine]
) -> tuple[ComparedLine, ...]:
    contents = [{line: at.contents for line, at in side.items() if line} for side in (old, new)]
    pairs: list[tuple[SourceLine | None, SourceLine | None]] = [(None, None)]
    pairs += [(match.old, match.new) for match in match_lines(*contents)]
    nothing = _AtLine(0, 0, frozenset())
    rows = []
    for old_line, new_line in pairs:
        is_rest = old_line is None and new_line is None
        before = old.get(old_line, nothing) if old_line or is_rest else nothing
        after = new.get(new_line, nothing) if new_line or is_rest else nothing
        if before.n_allocations or after.n_allocations:
            change = Change(before.n_bytes, after.n_bytes, before.n_allocations, after.n_allocations)
            rows.append(ComparedLine(old_line, new_line, change))
    return tuple(sorted(rows, key=lambda row: (*_order(row.change), _name(row))))


def _order(change: Change) -> tuple[int, int]:
    return -abs(change.more_bytes), -change.new_bytes


def _name(row: ComparedLine) -> tuple[str, int]:
    line = row.new_line or row.old_line
    return (line.file_path, line.line_number) if line else ("", 0)


def paired(
    old: Sequence[DeviceAnalysis], new: Sequence[DeviceAnalysis]
) -> tuple[list[tuple[DeviceAnalysis, DeviceAnalysis]], list[int], list[int]]:
    """Pair the devices of the same ordinal; list those that only the old file has, or only the new one.

    Where each has one, beside pinned host memory, they are a pair whatever their ordinals are.
    """
    on_old, on_new = ([one for one in side if not one.device.is_host] for side in (old, new))
    pairs = []
    if len(on_old) == len(on_new) == 1:
        pairs.append((on_old[0], on_new[0]))
    in_pairs = {id(one) for pair in pairs for one in pair}
    rest = {one.device.device: one for one in new if id(one) not in in_pairs}
    for one in old:
        if id(one) not in in_pairs and one.device.device in rest:
            pairs.append((one, rest.pop(one.device.device)))
            in_pairs.add(id(one))
    gone = [one.device.device for one in old if id(one) not in in_pairs]
    return pairs, gone, list(rest)


@dataclass(frozen=True, slots=True)
class LineMatch:
    """A line of the old version and the same of the new one; None where a version does not have it."""

    old: SourceLine | None
    new: SourceLine | None

    @property
    def is_moved(self) -> bool:
        """Whether it is another line, or in another file, now."""
        return self.old is not None and self.new is not None and self.old.place != self.new.place


def match_lines(
    old: Mapping[SourceLine, Contents], new: Mapping[SourceLine, Contents]
) -> tuple[LineMatch, ...]:
    """Match the lines of two versions; each is in exactly one match.

    Lines of one function keep their order. A file that only one version has is taken for a file of the same
    name that only the other has, where there is just one such and they share a function; and a function that
    only one version of a file has for one that only the other has, where just these two allocate the same.
    """
    renamed = _renamed_files(old, new)
    functions_old, functions_new = _by_function(old, renamed), _by_function(new, {})
    for before, after in _renamed_functions(functions_old, functions_new, old, new):
        functions_old[after] = functions_old.pop(before)
    found: list[LineMatch] = []
    for function in dict.fromkeys((*functions_old, *functions_new)):
        lines_old, lines_new = functions_old.get(function, []), functions_new.get(function, [])
        found += _aligned(lines_old, lines_new, old, new)
    return tuple(found)


def _by_function(lines: Mapping[SourceLine, Contents], renamed: Mapping[str, str]) -> _Functions:
    functions: _Functions = defaultdict(list)
    for line in sorted(lines):
        functions[renamed.get(line.file_path, line.file_path), line.function].append(line)
    return functions


def _renamed_files(old: Mapping[SourceLine, Contents], new: Mapping[SourceLine, Contents]) -> dict[str, str]:
    """Find the files of the old version that have another path in the new one."""
    functions_old, functions_new = _functions_of_files(old), _functions_of_files(new)
    gone, come = (
        _by_name(file for file in one if file not in other)
        for one, other in ((functions_old, functions_new), (functions_new, functions_old))
    )
    return {
        before[0]: after[0]
        for name, before in gone.items()
        if len(before) == 1
        and len(after := come.get(name, [])) == 1
        and functions_old[before[0]] & functions_new[after[0]]
    }


def _renamed_functions(
    functions_old: _Functions,
    functions_new: _Functions,
    old: Mapping[SourceLine, Contents],
    new: Mapping[SourceLine, Contents],
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Find the functions of the old version that have another name in the new one."""
    alike: dict[object, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = defaultdict(lambda: ([], []))
    sides = ((functions_old, functions_new, old), (functions_new, functions_old, new))
    for side, (own, others, contents) in enumerate(sides):
        for function in own.keys() - others.keys():
            allocated = tuple(contents[line] for line in own[function])
            alike[function[0], allocated][side].append(function)
    return [(gone[0], come[0]) for gone, come in alike.values() if len(gone) == 1 and len(come) == 1]


def _functions_of_files(lines: Mapping[SourceLine, Contents]) -> dict[str, set[str]]:
    functions: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        functions[line.file_path].add(line.function)
    return functions


def _by_name(files: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for file in files:
        names[file.replace("\\", "/").rpartition("/")[2]].append(file)
    return names


def _aligned(
    old: Sequence[SourceLine],
    new: Sequence[SourceLine],
    contents_old: Mapping[SourceLine, Contents],
    contents_new: Mapping[SourceLine, Contents],
) -> list[LineMatch]:
    """Pair the lines of one function in their order, so that most of them allocate the same."""
    if len(old) * len(new) > _MOST_PAIRS:
        return _by_number(old, new)
    score = [[_likeness(a, b, contents_old[a], contents_new[b]) for b in new] for a in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + score[i][j])
    return _walked(old, new, score, best)


def _walked(
    old: Sequence[SourceLine],
    new: Sequence[SourceLine],
    score: list[list[float]],
    best: list[list[float]],
) -> list[LineMatch]:
    """Follow the best alignment from the first line to the last."""
    found, i, j = [], 0, 0
    while i < len(old) and j < len(new):
        if score[i][j] and best[i][j] == best[i + 1][j + 1] + score[i][j]:
            found.append(LineMatch(old[i], new[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            found.append(LineMatch(old[i], None))
            i += 1
        else:
            found.append(LineMatch(None, new[j]))
            j += 1
    found += [LineMatch(line, None) for line in old[i:]]
    return found + [LineMatch(None, line) for line in new[j:]]


def _likeness(old: SourceLine, new: SourceLine, in_old: Contents, in_new: Contents) -> float:
    """Score how likely two lines of one function are the same: 0 where they allocate nothing alike."""
    is_same_number = old.line_number == new.line_number
    if not in_old & in_new:
        return 0.25 if is_same_number else 0.0
    alike = len(in_old & in_new) / len(in_old | in_new)
    return 1.0 + alike + 0.5 * is_same_number


def _by_number(old: Sequence[SourceLine], new: Sequence[SourceLine]) -> list[LineMatch]:
    numbers = {line.line_number: line for line in new}
    pairs = [LineMatch(line, numbers.pop(line.line_number, None)) for line in old]
    return pairs + [LineMatch(None, line) for line in numbers.values()]
