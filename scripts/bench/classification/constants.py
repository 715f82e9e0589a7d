"""Every number of the inventory, changed by 30 % -> by how many points a mean of recordings moves.

    constants.py FOLDER... [--cuts late,forward] [--change 0.3] [--only BITS] [--cache FOLDER] | sort -rn

A number that was fitted to some programs may say little of others where the figures depend on it.
Thresholds of certainty are chosen, sizes and numbers that are facts are none: both are left out.
"""

import argparse
import ast
import copy
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from corpus import Labelled, labelled, shares

from snapconv.classification import inventory, job, other_sizes, parameters, predictions
from snapconv.classification.classify import ORDER
from snapconv.classification.decisions import Decided, Stage

_MODULES = (inventory, predictions, job, parameters, other_sizes)
_LEFT_OUT = frozenset({"_STATED", "_RIGHT", "_SURE", "_ELEMENT_BYTES", "_TIMES"})
_CUTS = "late,backward,forward"
_FIRST = ORDER.index(inventory.explain_by_job)

Cell = tuple[str, str]
Means = dict[Cell, list[float]]
# The fields and positions that lead to a number.
Way = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number of a module: the name that it belongs to, the way to it from there, its value."""

    module: str
    name: str
    way: Way
    value: float

    def __str__(self) -> str:
        return ".".join(map(str, (self.name, *self.way)))

    def scaled(self, factor: float) -> float:
        """Return the number times a factor; a whole one differs by 1 at least."""
        scaled = self.value * factor
        if not isinstance(self.value, int):
            return scaled
        return (
            max(self.value + 1, round(scaled)) if factor > 1 else min(self.value - 1, round(scaled))
        )


def constants() -> list[Constant]:
    """Return the numbers that the modules of the inventory define."""
    numbers = []
    for module in _MODULES:
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        for name in _assigned(tree.body):
            if name not in _LEFT_OUT:
                numbers += [
                    Constant(module.__name__, name, way, value)
                    for way, value in _numbers(getattr(module, name))
                ]
    for sign in other_sizes.Sign:
        for way, value in _numbers(sign.value):
            numbers.append(Constant(other_sizes.__name__, "Sign", (sign.name, *way), value))
    return numbers


def _assigned(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Assign):
            nodes = [node for target in statement.targets for node in ast.walk(target)]
            yield from (node.id for node in nodes if isinstance(node, ast.Name))


def _numbers(value: Any, way: Way = ()) -> Iterator[tuple[Way, float]]:
    """Yield the numbers in nested tuples and in the bits, each with the way to it."""
    if isinstance(value, inventory.Bits):
        for field in inventory.Bits.__slots__:
            yield from _numbers(getattr(value, field), (*way, field))
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from _numbers(part, (*way, position))
    elif type(value) in (int, float):
        yield way, value


def _with(value: Any, way: Way, number: float) -> Any:
    """Return a value with another number in it."""
    if not way:
        return number
    step, *rest = way
    if isinstance(step, str):
        return replace(value, **{step: _with(getattr(value, step), tuple(rest), number)})
    return (*value[:step], _with(value[step], tuple(rest), number), *value[step + 1 :])


def set_constant(constant: Constant, number: float) -> None:
    """Change a number in every module that has it."""
    inventory.bits_of_count.cache_clear()
    if constant.name == "Sign":
        sign = other_sizes.Sign[str(constant.way[0])]
        sign._value_ = _with(sign.value, constant.way[1:], number)
        return
    former = getattr(sys.modules[constant.module], constant.name)
    changed = _with(former, constant.way, number)
    for name, module in sys.modules.items():
        is_ours = name.startswith("snapconv.classification.")
        if is_ours and getattr(module, constant.name, None) is former:
            setattr(module, constant.name, changed)


# --- what is measured


@dataclass(frozen=True, slots=True)
class Case:
    """A cut of a recording, and what facts have decided of it before the inventory."""

    folder: str
    case: Labelled
    decided: Decided


def _run(decided: Decided, stages: Sequence[Stage]) -> Decided:
    for propose in stages:
        for proposal in propose(decided):
            decided.add(proposal)
    return decided


def _copied(decided: Decided) -> Decided:
    """Copy what was decided so that it may be decided on."""
    twin = copy.copy(decided)
    for name, value in vars(decided).items():
        if name != "features":
            setattr(twin, name, value.copy() if hasattr(value, "copy") else value)
    return twin


def means(cases: Sequence[Case], *, from_facts: bool) -> Means:
    """Return the mean percentages of each folder and cut: right and wrong, certain and likely."""
    cells = defaultdict(list)
    for case in cases:
        if from_facts:
            decided = _run(Decided(case.case.features), ORDER)
        else:
            decided = _run(_copied(case.decided), ORDER[_FIRST:])
        share = shares(case.case, decided.result())
        cells[case.folder, case.case.history].append((*share["certain"], *share["likely"]))
    return {
        cell: [100 * fmean(column) for column in zip(*rows, strict=True)]
        for cell, rows in cells.items()
    }


_CASES: list[Case] = []


def moved(trial: tuple[Constant, float]) -> Means:
    """Return the means with a number changed."""
    constant, number = trial
    former = constant.value
    set_constant(constant, number)
    try:
        # Facts ask for parameters, too.
        return means(_CASES, from_facts=constant.module == parameters.__name__)
    finally:
        set_constant(constant, former)


def main(argv: Sequence[str]) -> None:
    """Print for every number by how much the mean moves that moves most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cuts", default=_CUTS)
    parser.add_argument("--change", type=float, default=0.3)
    parser.add_argument("--only", default="", help="names that begin so")
    parser.add_argument("--every", type=int, default=1, help="of the files, every so many")
    parser.add_argument("--cache", type=Path, help="keep here what was read of recordings")
    chosen = parser.parse_args(argv)
    for folder in chosen.folders:
        for path in sorted(folder.glob("*.pickle.xz"))[:: chosen.every]:
            for case in labelled(path, chosen.cuts.split(","), ("all",), chosen.cache):
                decided = _run(Decided(case.features), ORDER[:_FIRST])
                _CASES.append(Case(folder.name, case, decided))
    trials = [
        (constant, constant.scaled(factor))
        for constant in constants()
        if str(constant).startswith(chosen.only)
        for factor in (1 - chosen.change, 1 + chosen.change)
    ]
    trials = [(constant, number) for constant, number in trials if number != constant.value]
    base = means(_CASES, from_facts=False)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for trial, changed in zip(trials, pool.imap(moved, trials), strict=True):
            print(_line(base, *trial, changed), flush=True)


def _line(base: Means, constant: Constant, number: float, changed: Means) -> str:
    words = ("certain and right", "certain and wrong", "right", "wrong")
    most, cell, word = max(
        (abs(new - old), cell, f"{word} {new - old:+.2f}")
        for cell, olds in base.items()
        for old, new, word in zip(olds, changed[cell], words, strict=True)
    )
    return f"{most:5.2f}  {constant} {constant.value} -> {number:.4g}: {' '.join(cell)}, {word}"


if __name__ == "__main__":
    main(sys.argv[1:])
