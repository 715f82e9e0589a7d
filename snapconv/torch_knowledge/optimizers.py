"""The states that optimizers keep: the table of what was measured, read when a step is met."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).with_name("optimizer_states.tsv")
# A state as large as its weight has so many eighths of it: quantized ones have one or two, those in
# full precision beside weights in half have 16.
SAME = 8
# Released torch had one file for each class: torch/optim/adamw.py has been adam.py since.
_TORCH = "torch/optim/"
# The longest path in the table has so many parts.
_MOST_PARTS = 4


class States(NamedTuple):
    """So many states of a weight, each so many eighths as large as it."""

    eighths: int
    number: int


# The states of one kind of weight.
Kind = tuple[States, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """The states of an optimizer with one set of options.

    ``kinds``: those of each kind of weight, matrices first. ``squares``: a matrix also has states
    as large as each of its sides times itself. ``is_flat``: states are as large as all weights
    together. ``has_others``: some have sizes that do not follow from those of weights.
    ``is_optional``: by options other than the defaults.
    """

    kinds: tuple[Kind, ...]
    squares: bool = False
    is_flat: bool = False
    has_others: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerRow:
    """A row of the table; ``is_built``: its states are made at construction."""

    file: str
    name: str
    is_built: bool
    variants: tuple[Variant, ...]


def _states_of(numbers: dict[int, int]) -> Kind:
    return tuple(States(eighths, n) for eighths, n in numbers.items() if n)


def same_states(number: int, eighths: int = SAME) -> Variant:
    """Return the variant of so many states of one size, as large as their weight by default."""
    return Variant((_states_of({eighths: number}),))


NO_STATES = same_states(0)


def n_same(kind: Kind) -> int:
    """Count the states that are as large as their weight."""
    return sum(states.number for states in kind if states.eighths == SAME)


def is_as_large(kind: Kind) -> bool:
    """Return whether all states are as large as their weight."""
    return all(states.eighths == SAME for states in kind)


def most_same(variant: Variant) -> int:
    """Return the most states that are as large as their weight."""
    return max(map(n_same, variant.kinds))


def has_states(variant: Variant) -> bool:
    """Return whether anything is kept."""
    return any(variant.kinds) or has_other_sizes(variant)


def has_other_sizes(variant: Variant) -> bool:
    """Return whether any state is not as large as its weight."""
    is_scaled = not all(map(is_as_large, variant.kinds))
    return is_scaled or variant.squares or variant.is_flat or variant.has_others


def _variant(text: str) -> Variant:
    """Parse a variant, as "~2*2/2 square"."""
    kinds_text, *words = text.removeprefix("~").split(" ")
    kinds = []
    for kind_text in kinds_text.split("/"):
        numbers = {}
        for term in kind_text.split("+"):
            number, _, eighths = term.partition("*")
            numbers[int(eighths or SAME)] = int(number)
        kinds.append(_states_of(numbers))
    return Variant(
        tuple(kinds),
        squares="square" in words,
        is_flat="flat" in words,
        has_others="other" in words,
        is_optional=text.startswith("~"),
    )


@lru_cache(1)
def optimizer_rows() -> dict[str, list[OptimizerRow]]:
    """Read the table: the rows of every file."""
    rows = defaultdict(list)
    lines = [line for line in _TABLE.read_text("utf-8").splitlines() if line[0] != "#"]
    for line in lines[1:]:
        file, name, is_built, states = line.split("\t")
        variants = tuple(map(_variant, states.split(";")))
        row = OptimizerRow(file, name, is_built == "1", variants)
        rows[file].append(row)
        own_file = f"{_TORCH}{name.lower()}.py"
        if file.startswith(_TORCH) and own_file != file:
            rows[own_file].append(row)
    return dict(rows)


def rows_of_file(path: str, names: Iterable[str]) -> list[OptimizerRow]:
    """Return the rows of the optimizers in a file; of the named classes, if they are there."""
    parts = path.split("/")
    for n_parts in range(min(_MOST_PARTS, len(parts)), 0, -1):
        rows = optimizer_rows().get("/".join(parts[-n_parts:]))
        # A module without a package may be any program's own, unless it is installed.
        is_installed = n_parts > 1 or parts[-2:-1] in (["site-packages"], ["dist-packages"])
        if rows and is_installed:
            return [row for row in rows if row.name in names] or rows
    return []


def rows_of_class(name: str) -> list[OptimizerRow]:
    """Return the rows of a class whose file is not known: torch's, if there is one."""
    rows = [
        row
        for file, rows_of_file in optimizer_rows().items()
        for row in rows_of_file
        if (file, row.name) == (row.file, name)
    ]
    return [row for row in rows if row.file.startswith(_TORCH)] or rows
