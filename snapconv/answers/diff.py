"""Differences of two files: their peaks, iterations and settings.

Peaks are compared by category, line, module and operation. The files may be of two versions of a
program, of two runs, or of two programs. Nothing is matched by address. Lines are matched by file,
function and order: they move when something is inserted above them, files when a project is cloned
elsewhere or a folder is renamed. Nothing is read but the two snapshots: no source files.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.peak import NOTHING, Sum, sums_by_name
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import number_groups, plain_rows
from snapconv.json_text import picked
from snapconv.replay.history_verdict import Verdict
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine, line_values
from snapconv.units import HOST, Device, device_kind

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
        names: dict[str, object] = {"name": self.name}
        if isinstance(self.name, tuple):
            old, new = self.name
            names = {
                "old": line_values(old) if isinstance(old, SourceLine) else None,
                "new": line_values(new) if isinstance(new, SourceLine) else None,
                "has_stack": NO_STACK not in self.name,
            }
        counts = picked(self, ("n_old", "n_new"))
        return names | {"difference": self.difference.value} | self.figures | counts


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
        values: dict[str, object] = {
            "old_device": self.old_device,
            "new_device": self.new_device,
            "kind": device_kind(self.new_device),
            "peak_allocated": self.allocated.figures,
            "peak_reserved": self.reserved.figures,
            "likely_at_peak": self.likely.figures,
            "old_iteration_peaks": list(self.old_iterations),
            "new_iteration_peaks": list(self.new_iterations),
        }
        for name in _TABLES:
            values[name] = [row.to_json() for row in getattr(self, name)]
        return values


@dataclass(frozen=True, slots=True)
class FileDiff:
    """Two files compared.

    ``only_old`` and ``only_new`` are devices that the other file does not have. ``display_order``
    are the positions of ``devices`` as a reader wants them: those that ran out of memory in one of
    the files, then by peak. ``settings`` are those of the allocator that differ, and the torch that
    wrote the files: by name, in the old and in the new file; None where a file does not have it.
    """

    old_name: str
    new_name: str
    devices: tuple[DeviceDiff, ...]
    display_order: tuple[int, ...]
    only_old: tuple[Device, ...]
    only_new: tuple[Device, ...]
    settings: tuple[tuple[str, str | None, str | None], ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values in bytes; docs/reference/json.md has the schema."""
        settings = [
            {"name": name, "old": old, "new": new} for name, old, new in self.settings
        ]
        return {
            "old": self.old_name,
            "new": self.new_name,
            "devices": [device.to_json() for device in self.devices],
            "only_old": list(self.only_old),
            "only_new": list(self.only_new),
            "settings": settings,
        }


def compare_files(old: Analysis, new: Analysis) -> FileDiff:
    """Compare two files."""
    pairs, only_old, only_new = paired(old.devices, new.devices)
    urgencies = [
        min(old_device.urgency, new_device.urgency) for old_device, new_device in pairs
    ]
    return FileDiff(
        old_name=str(old.snapshot.path),
        new_name=str(new.snapshot.path),
        devices=tuple(_compared(*pair) for pair in pairs),
        display_order=tuple(sorted(range(len(pairs)), key=urgencies.__getitem__)),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        settings=tuple(_changed_settings(_settings(old), _settings(new))),
    )


def _settings(analysis: Analysis) -> dict[str, str]:
    snapshot = analysis.snapshot
    return {"written by": snapshot.written_by, **dict(snapshot.settings_entries)}


def _changed_settings(
    old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in dict.fromkeys((*old, *new)):
        before = old.get(name)
        after = new.get(name)
        if (before or None) != (after or None):
            yield name, before, after


def _compared(old: DeviceAnalysis, new: DeviceAnalysis) -> DeviceDiff:
    categories, modules, operations = zip(
        _sums_at_peak(old), _sums_at_peak(new), strict=True
    )
    old_likely, new_likely = map(_likely_bytes, categories)
    peak_name = " → ".join(dict.fromkeys((_peak_name(old), _peak_name(new))))
    return DeviceDiff(
        old_device=old.device.device,
        new_device=new.device.device,
        allocated=Change(peak_name, old.replay.allocated.peak, new.replay.allocated.peak),
        reserved=Change(
            "peak reserved", old.replay.reserved.peak, new.replay.reserved.peak
        ),
        likely=Change("likely at the peak", old_likely, new_likely),
        old_iterations=tuple(iteration.peak_bytes for iteration in old.traced_iterations),
        new_iterations=tuple(iteration.peak_bytes for iteration in new.traced_iterations),
        categories=_changes(*categories, order=str),
        lines=_lines(old, new),
        modules=_changes(*modules, order=str),
        operations=_changes(*operations, order=str),
    )


def _likely_bytes(sums: Mapping[str, Sum]) -> int:
    return sum(total.likely_bytes for total in sums.values())


def _peak_name(analysis: DeviceAnalysis) -> str:
    is_dump = analysis.history.verdict is Verdict.NO_TRACE
    return "allocated at the dump" if is_dump else "peak allocated"


def _sums_at_peak(
    analysis: DeviceAnalysis,
) -> tuple[dict[str, Sum], dict[str, Sum], dict[str, Sum]]:
    """Sum up the peak by category, by module with a recorded path, and by operation."""
    live = analysis.live_at_peak
    modules = analysis.modules
    is_path = [evidence is Evidence.METADATA for evidence in modules.evidence]
    is_path.append(False)  # what is in no module has the number -1
    has_path = np.array(is_path)[modules.module_id]
    return (
        sums_by_name(analysis, live, _category_label, analysis.classification.category),
        sums_by_name(
            analysis, live & has_path, modules.names.__getitem__, modules.module_id
        ),
        sums_by_name(
            analysis, live, analysis.operations.__getitem__, analysis.operation_id
        ),
    )


def _category_label(code: int) -> str:
    return Category(code).label


def _changes(
    old: Mapping[_Key, Sum], new: Mapping[_Key, Sum], *, order: Callable[[_Key], Any]
) -> tuple[Change[_Key], ...]:
    """Bring the sums of one name together, largest changes first; leave out empty ones."""
    changes: list[Change[_Key]] = []
    for name in dict.fromkeys((*old, *new)):
        n_old, _, old_bytes, _ = old.get(name, NOTHING)
        n_new, _, new_bytes, _ = new.get(name, NOTHING)
        if n_old or n_new:
            changes.append(Change(name, old_bytes, new_bytes, n_old, n_new))

    def largest_first(change: Change[_Key]) -> tuple[Any, ...]:
        return -abs(change.more_bytes), -change.new_bytes, order(change.name)

    return tuple(sorted(changes, key=largest_first))


def _lines(old: DeviceAnalysis, new: DeviceAnalysis) -> tuple[Change[Match], ...]:
    """Compare the lines of the project at the peaks; memory that no line made has rows too."""
    reasons: list[Match] = [(reason, reason) for reason in (LIBRARY_ONLY, NO_STACK)]
    matches = [*reasons, *match_lines(_contents(old), _contents(new))]
    old_sums = _line_sums(old)
    new_sums = _line_sums(new)
    old_side = {match: old_sums.get(match[0], NOTHING) for match in matches if match[0]}
    new_side = {match: new_sums.get(match[1], NOTHING) for match in matches if match[1]}
    return _changes(old_side, new_side, order=_match_place)


def _line_sums(analysis: DeviceAnalysis) -> dict[SourceLine | str, Sum]:
    """Sum up the peak by the line of the project, or the reason why there is none."""
    return sums_by_name(
        analysis,
        analysis.live_at_peak,
        analysis.lines.line_or_reason,
        analysis.allocations.stack_id,
    )


def _match_place(match: Match) -> tuple[str, int]:
    line = match[1] or match[0]
    return (line.file_path, line.line_number) if isinstance(line, SourceLine) else ("", 0)


def _contents(analysis: DeviceAnalysis) -> Contents:
    """Find the operations and the categories that every line allocates at any time."""
    names: dict[SourceLine, set[str]] = defaultdict(set)
    key = (
        analysis.allocations.stack_id,
        analysis.operation_id,
        analysis.classification.category,
    )
    first, _ = number_groups(*key)
    for stack, operation, code in plain_rows(*(column[first] for column in key)):
        line = analysis.lines.innermost(stack)
        if line:
            names[line] |= {
                analysis.operations[operation],
                f"category {_category_label(code)}",
            }
    return {line: frozenset(contents) for line, contents in names.items()}


def paired(
    old: Sequence[DeviceAnalysis], new: Sequence[DeviceAnalysis]
) -> tuple[list[tuple[DeviceAnalysis, DeviceAnalysis]], list[Device], list[Device]]:
    """Pair the devices of the same ordinal; list those that only one of the files has.

    Where each has one, beside pinned host memory, they are a pair whatever their ordinals are.
    """
    old_devices = {analysis.device.device: analysis for analysis in old}
    new_devices = {analysis.device.device: analysis for analysis in new}
    pairs = []
    old_gpus = [device for device in old_devices if device != HOST]
    new_gpus = [device for device in new_devices if device != HOST]
    if len(old_gpus) == len(new_gpus) == 1:
        pairs.append((old_devices.pop(old_gpus[0]), new_devices.pop(new_gpus[0])))
    for device in list(old_devices):
        if device in new_devices:
            pairs.append((old_devices.pop(device), new_devices.pop(device)))
    return pairs, list(old_devices), list(new_devices)


def match_lines(old: Contents, new: Contents) -> list[Match]:
    """Match the lines of two versions; each is in exactly one match.

    Lines of one function keep their order. A file that only one version has is taken for a file of
    the same name that only the other has, where there is just one such and they share a function.
    """
    renamed: tuple[Mapping[str, str], ...] = (_renamed_files(old, new), {})
    functions: dict[tuple[str, str], tuple[list[SourceLine], list[SourceLine]]]
    # By file and name: the lines of either version.
    functions = defaultdict(lambda: ([], []))
    for side, lines in enumerate((old, new)):
        for line in sorted(lines):
            file = renamed[side].get(line.file_path, line.file_path)
            functions[file, line.function][side].append(line)
    matches: list[Match] = []
    for old_lines, new_lines in functions.values():
        matches += _aligned(old_lines, new_lines, old, new)
    return matches


def _renamed_files(old: Contents, new: Contents) -> dict[str, str]:
    """Find the files of the old version that have another path in the new one."""
    old_functions = _functions_by_file(old)
    new_functions = _functions_by_file(new)
    old_paths = _paths_by_name(old_functions.keys() - new_functions.keys())
    new_paths = _paths_by_name(new_functions.keys() - old_functions.keys())
    renamed = {}
    for name in old_paths.keys() & new_paths.keys():
        if len(old_paths[name]) == len(new_paths[name]) == 1:
            old_path = old_paths[name][0]
            new_path = new_paths[name][0]
            if old_functions[old_path] & new_functions[new_path]:
                renamed[old_path] = new_path
    return renamed


def _functions_by_file(lines: Contents) -> dict[str, set[str]]:
    functions: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        functions[line.file_path].add(line.function)
    return functions


def _paths_by_name(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group paths by the name of the file, without its folders."""
    names: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        names[path.replace("\\", "/").rpartition("/")[2]].append(path)
    return names


def _aligned(
    old: Sequence[SourceLine],
    new: Sequence[SourceLine],
    old_contents: Contents,
    new_contents: Contents,
) -> list[Match]:
    """Pair the lines of one function in their order, so that most of them allocate the same."""
    if len(old) * len(new) > _MOST_PAIRS:
        return _matches_by_number(old, new)
    # From the ends on: the best path from an old line and each of the new ones, the last first.
    paths = [_Path()]
    for new_line in reversed(new):
        paths.append(_Path(0.0, (None, new_line), paths[-1]))
    for old_line in reversed(old):
        row = [_Path(0.0, (old_line, None), paths[0])]
        for new_line, rest_of_both, rest_of_old in zip(
            reversed(new), paths, paths[1:], strict=False
        ):
            ways = [
                _Path(rest_of_old.likeness, (old_line, None), rest_of_old),
                _Path(row[-1].likeness, (None, new_line), row[-1]),
            ]
            likeness = _likeness(old_line, new_line, old_contents, new_contents)
            if likeness:
                total = rest_of_both.likeness + likeness
                ways.insert(0, _Path(total, (old_line, new_line), rest_of_both))
            row.append(max(ways, key=attrgetter("likeness")))
        paths = row
    return list(paths[-1].matches())


class _Path(NamedTuple):
    """Pairs of lines in order: the sum of their likeness, the first pair, and the path after it."""

    likeness: float = 0.0
    match: Match = (None, None)
    following: "_Path | None" = None

    def matches(self) -> Iterator[Match]:
        path = self
        while path.following:
            yield path.match
            path = path.following


# A line number counts less than any content that two lines share: lines above may be new.
_SAME_NUMBER_ALONE, _SAME_NUMBER_TOO = 0.25, 0.5


def _likeness(
    old: SourceLine, new: SourceLine, old_contents: Contents, new_contents: Contents
) -> float:
    """Score how likely two lines of one function are the same, by the contents that both have."""
    shared = old_contents[old] & new_contents[new]
    is_same_number = old.line_number == new.line_number
    if not shared:
        return _SAME_NUMBER_ALONE if is_same_number else 0.0
    n_contents = len(old_contents[old] | new_contents[new])
    likeness = 1.0 + len(shared) / n_contents
    return likeness + _SAME_NUMBER_TOO if is_same_number else likeness


def _matches_by_number(old: Sequence[SourceLine], new: Sequence[SourceLine]) -> list[Match]:
    """Match lines that have the same number."""
    numbers = {line.line_number: line for line in new}
    matches: list[Match] = [(line, numbers.pop(line.line_number, None)) for line in old]
    return matches + [(None, line) for line in numbers.values()]
