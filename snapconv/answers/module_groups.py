"""Modules of equal size that differ in a number -> one row for all of them: `blocks.*.mlp`, 12 modules."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from snapconv.answers.live_totals import ModuleTotal
from snapconv.classification.categories import Evidence
from snapconv.units import counted

_ANY = "*"
# Paths of modules are not deeper; a longer one stays as it is.
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Modules with as many allocations and as many bytes each; ``block_bytes`` is what all have together."""

    path: tuple[str, ...]
    n_modules: int
    n_allocations: int
    block_bytes: int

    @property
    def label(self) -> str:
        """The path, and how many modules it stands for."""
        path = ".".join(self.path)
        return path if self.n_modules == 1 else f"{path}, {counted(self.n_modules, 'module')}"


def group_modules(modules: Sequence[ModuleTotal]) -> tuple[ModuleGroup, ...]:
    """Put equal modules into groups, number by number from the left; most bytes first.

    A module whose name is not a recorded path is a group of its own.
    """
    groups = [ModuleGroup(_path_of(row), 1, row.n_allocations, row.block_bytes) for row in modules]
    for place in range(min(_MAX_DEPTH, max((len(group.path) for group in groups), default=0))):
        groups = _joined_at(groups, place)
    return tuple(sorted(groups, key=lambda group: (-group.block_bytes, group.path)))


def _path_of(total: ModuleTotal) -> tuple[str, ...]:
    is_path = total.evidence == Evidence.METADATA.label
    return tuple(total.module.split(".")) if is_path else (total.module,)


def _joined_at(groups: Iterable[ModuleGroup], place: int) -> list[ModuleGroup]:
    """Join the groups that differ in the number at one place of their path alone."""
    alike: dict[object, list[ModuleGroup]] = defaultdict(list)
    for group in groups:
        sizes = group.n_modules, group.n_allocations, group.block_bytes
        alike[_without_number(group.path, place), sizes].append(group)
    return [_join(same, place) for same in alike.values()]


def _join(groups: Sequence[ModuleGroup], place: int) -> ModuleGroup:
    first = groups[0]
    if len(groups) == 1:
        return first
    return ModuleGroup(
        path=_without_number(first.path, place),
        n_modules=sum(group.n_modules for group in groups),
        n_allocations=sum(group.n_allocations for group in groups),
        block_bytes=sum(group.block_bytes for group in groups),
    )


def _without_number(path: tuple[str, ...], place: int) -> tuple[str, ...]:
    if len(path) <= place or not path[place].isdecimal():
        return path
    return (*path[:place], _ANY, *path[place + 1 :])
