"""Two read files -> what is different between them: the devices compared, and the settings."""

from collections.abc import Iterator
from dataclasses import dataclass

from snapconv.analysis import Analysis
from snapconv.answers.comparison import Comparison, compare, paired
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import ProjectLines


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """A setting of the allocator, or the torch that wrote the file; None where a file does not have it."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """Two files compared. ``only_old`` and ``only_new`` are devices that the other file does not have."""

    old_name: str
    new_name: str
    devices: tuple[Comparison, ...]
    only_old: tuple[int, ...]
    only_new: tuple[int, ...]
    settings: tuple[ComparedSetting, ...]


def build_comparison(old: Analysis, new: Analysis) -> ComparisonReport:
    """Compare two files."""
    pairs, only_old, only_new = paired(old.devices, new.devices)
    old_lines, new_lines = (ProjectLines(side.snapshot.stacks, side.project) for side in (old, new))
    return ComparisonReport(
        old_name=str(old.snapshot.path),
        new_name=str(new.snapshot.path),
        devices=tuple(compare(a, b, old_lines=old_lines, new_lines=new_lines) for a, b in pairs),
        only_old=tuple(only_old),
        only_new=tuple(only_new),
        settings=tuple(_settings(old.snapshot, new.snapshot)),
    )


def _settings(old: Snapshot, new: Snapshot) -> Iterator[ComparedSetting]:
    """The settings that differ."""
    sides = [{"written by": side.written_by, **dict(side.settings_entries)} for side in (old, new)]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        before, after = (side.get(name) for side in sides)
        if before != after:
            yield ComparedSetting(name, before, after)
