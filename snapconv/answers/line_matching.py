"""Lines of two versions of a program matched: by file, function and order, not by address.

Lines move when something is inserted above them, files when a project is cloned elsewhere or a folder is
renamed. Nothing is read but what the two snapshots have: no source files.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from snapconv.stacks.project_lines import SourceLine

# What a line allocates: the names of its operations and its categories.
Contents = frozenset[str]
# The lines of every function, in order, by its file and its name.
_Functions = dict[tuple[str, str], list[SourceLine]]

# Aligning the lines of one function takes the time of their product; no one writes one of so many.
_MOST_PAIRS = 10_000


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
