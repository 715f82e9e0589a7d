"""Facts about lines that make one block for every parameter: moments, masters, further models, samples.

A table of its own: its conditions are about all that a line makes in an iteration, and a few counts are
needed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Decided, Proposal
from snapconv.classification.parameters import (
    NEARLY,
    ParameterLine,
    find_parameters,
    parameter_lines,
)
from snapconv.columns import BoolColumn, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role


@dataclass(frozen=True, slots=True)
class LineTraits:
    """What a line does with the blocks that it makes for every parameter: most of them, by number."""

    factor: float
    is_kept: bool
    has_zeros: bool
    beside_zeros: bool
    is_copy: bool
    is_deep_copy: bool
    comes_first: bool
    is_stepped_on: bool
    reaches_forward: bool


@dataclass(frozen=True, slots=True)
class LineFact:
    """A row: the category of all that a line makes for every parameter."""

    category: Category
    slug: str
    reason: str
    holds: Callable[[LineTraits], bool]


LINES: tuple[LineFact, ...] = (
    LineFact(
        Category.OPTIMIZER_STATE,
        "zeros-for-every-parameter",
        "kept, and filled with zeros by a line that makes one for every parameter: moments",
        lambda line: line.has_zeros and line.is_kept,
    ),
    LineFact(
        Category.OPTIMIZER_STATE,
        "full-precision-beside-moments",
        "kept, one for every parameter in full precision, beside moments: masters of an optimizer",
        lambda line: line.is_kept and line.factor == 2 and line.beside_zeros and not line.is_stepped_on,
    ),
    LineFact(
        Category.WEIGHT,
        "full-precision-and-stepped-on",
        "kept, one for every parameter in full precision, and the optimizer has states of its size: the "
        "weights "
        "that it works on",
        lambda line: line.is_kept and line.factor == 2 and line.is_stepped_on and line.comes_first,
    ),
    LineFact(
        Category.WEIGHT,
        "deep-copy-of-every-parameter",
        "a deep copy of all parameters of a model, in use in a later forward: a second model",
        lambda line: line.is_deep_copy and line.reaches_forward,
    ),
    LineFact(
        Category.WEIGHT,
        "copy-of-every-parameter",
        "kept, and copied from every parameter before the first backward: a second model",
        lambda line: line.is_kept and line.is_copy and line.comes_first and line.factor == 1,
    ),
    LineFact(
        Category.TEMPORARY,
        "made-for-every-parameter-and-freed",
        "one for every parameter, and freed before the next forward: a step that is written by hand",
        lambda line: not line.is_kept and not line.reaches_forward,
    ),
)


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """The stage of lines that make one block for every parameter."""

    name: str = "parameter_facts"

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Propose by the first row that holds for each line."""
        features = decided.features
        wanted = find_parameters(decided).sizes
        out = features.outside | features.preexisting_outside
        rows = np.flatnonzero(out & features.has_stack & decided.is_open)
        lines = list(parameter_lines(decided, rows, wanted)) if wanted else []
        if lines:
            traits = _traits(decided, lines)
            for line in lines:
                of_line = traits(line)
                fact = next((fact for fact in LINES if fact.holds(of_line)), None)
                if fact:
                    yield Proposal(features.mask(line.rows), fact.category, Evidence.SIZES, fact.slug)


def _traits(decided: Decided, lines: list[ParameterLine]) -> Callable[[ParameterLine], LineTraits]:
    """Return what finds the traits of each of the lines."""
    features = decided.features
    out = features.outside | features.preexisting_outside
    zeros, deep = features.made_through(Role.ZEROS), features.made_through(Role.DEEP_COPY)
    copies = features.made_through(Role.CLONE) | features.made_through(Role.COPY)
    first = features.first(Phase.BACKWARD)
    states = features.sizes[decided.has(Category.OPTIMIZER_STATE) & ~out]
    in_full = [line for line in lines if line.factor == 2]

    def most(where: BoolColumn, line: ParameterLine) -> bool:
        return bool(np.mean(where[line.rows]) > 0.5)

    has_moments = len(in_full) > 1 and any(most(zeros, line) for line in in_full)
    reaches_forward = features.is_live_at_dump | (features.end >= features.next_forward)
    is_of_states = is_among(features.sizes, states)

    def find(line: ParameterLine) -> LineTraits:
        rows = line.rows
        return LineTraits(
            factor=line.factor,
            is_kept=most(features.is_live_at_dump, line),
            has_zeros=most(zeros, line),
            beside_zeros=has_moments or not features.has_cpp,
            is_copy=most(copies, line),
            is_deep_copy=most(deep, line),
            comes_first=bool(features.alloc[rows].max() < first),
            is_stepped_on=bool(len(states) and is_of_states[rows].mean() >= NEARLY),
            reaches_forward=most(reaches_forward, line),
        )

    return find


REASONS = {fact.slug: fact.reason for fact in LINES}
