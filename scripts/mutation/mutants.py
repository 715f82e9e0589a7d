"""A package -> a seeded sample of changes to it: one operator, number or keyword of its source each.

The places and replacements are those of cosmic-ray, and ``NumberByAFactor``. A place is drawn first and then
one of its replacements, as otherwise comparisons, with ten replacements each, would be most of the sample.
Places in annotations are left out, as nothing runs them, and those in decorators, which
scripts/check_project reads.
"""

import ast
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes, get_ast, is_number
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator

# These need arguments: names of variables, of which nothing general can be said.
_WITH_ARGUMENTS = ("VariableReplacer", "VariableInserter")
# What a decorator does is mostly seen by mypy (frozen, override, overload), and their removal dies at import.
# For masks, which are most of what is joined by | and & here, + and * are the same. Whether equal numbers are
# one object is no matter of this code.
_LEFT_OUT = (*_WITH_ARGUMENTS, "RemoveDecorator", "BitOr_Add", "BitAnd_Mul", "_Is", "_IsNot")

Position = tuple[int, int]


class NumberByAFactor(Operator):  # type: ignore[misc] # cosmic-ray has no types
    """Doubles or halves a number: cosmic-ray adds 1 and takes 1 away, which is far too much for 0.4."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Position, Position]]:
        """Find every number but 0 and 1, twice each."""
        if is_number(node) and ast.literal_eval(node.value) not in (0, 1):
            for _ in range(2):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the number doubled, or halved."""
        value = ast.literal_eval(node.value)
        half = value / 2 if isinstance(value, float) else value // 2
        return parso.python.tree.Number(" " + str(half if index else value * 2), node.start_pos)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Show what it does."""
        return Example("x = 0.4", "x = 0.8"), Example("x = 0.4", "x = 0.2", occurrence=1)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the ``occurrence``-th that an operator of cosmic-ray could make there."""

    path: str
    line: int
    operator: str
    occurrence: int
    source: str
    changed: str

    @property
    def id(self) -> str:
        """Name the change by what it does, so that a line added above leaves the name."""
        return f"{self.path}: {self.source.strip()} -> {self.changed.strip()}"


def sample(root: Path, package: str, *, n: int, seed: int) -> list[Mutant]:
    """Draw ``n`` changes of a package; all that there are if they are fewer."""
    draw = random.Random(f"{seed} {package}")
    found: list[Mutant] = []
    places = [place for path in _modules(root, package) for place in _places(root, path)]
    for path, at, replacements in draw.sample(places, len(places)):
        if len(found) == n:
            break
        operator, occurrence = draw.choice(replacements)
        if mutant := _mutant(root, path, at, operator=operator, occurrence=occurrence):
            found.append(mutant)
    return found


def mutated(text: str, mutant: Mutant) -> str | None:
    """Return a file's text with the change; None where there is nothing to change."""
    changed: str | None = mutate_code(text, _operators()[mutant.operator], mutant.occurrence)
    return changed


def _modules(root: Path, package: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in (root / "snapconv" / package).rglob("*.py"))


def _operators() -> dict[str, Operator]:
    names = (name for name in cosmic_ray.plugins.operator_names() if not name.endswith(_LEFT_OUT))
    return {name: cosmic_ray.plugins.get_operator(name)() for name in names} | {
        "NumberByAFactor": NumberByAFactor()
    }


def _places(root: Path, path: str) -> list[tuple[str, Position, list[tuple[str, int]]]]:
    """Find every place of a file that some operator changes, with these operators and their occurrences."""
    text = (root / path).read_text(encoding="utf-8")
    annotated = _annotations(text)
    places: dict[tuple[Position, Position], list[tuple[str, int]]] = defaultdict(list)
    nodes = list(ast_nodes(get_ast(text)))
    for name, operator in _operators().items():
        positions = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, place in enumerate(positions):
            if not any(start <= place[0] < end for start, end in annotated):
                places[place].append((name, occurrence))
    return [(path, place[0], replacements) for place, replacements in sorted(places.items())]


def _annotations(text: str) -> list[tuple[Position, Position]]:
    """Find where decorators stand, and annotations of arguments, results and variables."""
    found = []
    for node in ast.walk(ast.parse(text)):
        annotations = getattr(node, "annotation", None), getattr(node, "returns", None)
        for note in (*annotations, *getattr(node, "decorator_list", ())):
            if isinstance(note, ast.expr) and note.end_lineno is not None:
                start, end = (note.lineno, note.col_offset), (note.end_lineno, note.end_col_offset or 0)
                found.append((start, end))
    return found


def _mutant(root: Path, path: str, at: Position, *, operator: str, occurrence: int) -> Mutant | None:
    text = (root / path).read_text(encoding="utf-8")
    unfinished = Mutant(path, at[0], operator, occurrence, "", "")
    after = mutated(text, unfinished)
    if after is None or after == text:
        return None
    before, lines = text.splitlines(), after.splitlines()
    first = next(
        (i for i, (old, new) in enumerate(zip(before, lines, strict=False)) if old != new), at[0] - 1
    )
    return Mutant(path, first + 1, operator, occurrence, before[first], lines[first])
