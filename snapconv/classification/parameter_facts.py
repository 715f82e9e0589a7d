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
    bytes_of,
    counted,
    find_parameters,
    is_training,
    layers_by_counts,
    parameter_lines,
)
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
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
    is_filled: bool
    comes_first: bool
    comes_after: bool
    is_stepped_on: bool
    has_steps: bool
    reaches_forward: bool
    reaches_step: bool
    frees_weights: bool


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
        Category.OPTIMIZER_STATE,
        "made-after-backward-and-kept",
        "filled for every parameter after a backward, and kept: states of an optimizer that is none of "
        "torch's",
        lambda line: line.is_kept and line.comes_after and line.is_filled and not line.has_steps,
    ),
    LineFact(
        Category.GRADIENT,
        "made-for-every-parameter-for-the-step",
        "one for every parameter, as large or several times as large, and in use when the step begins",
        lambda line: (
            line.reaches_step
            and (line.factor >= 3 or (line.factor == 2 and line.comes_after and line.is_stepped_on))
        ),
    ),
    LineFact(
        Category.WEIGHT,
        "new-values-of-weights",
        "one for every parameter, by a line that frees weights: their new values",
        lambda line: line.frees_weights,
    ),
    LineFact(
        Category.TEMPORARY,
        "made-for-every-parameter-and-freed",
        "one for every parameter, and freed before the next forward",
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
    zeros, deep, filled = (features.made_through(role) for role in (Role.ZEROS, Role.DEEP_COPY, Role.FACTORY))
    copies = features.made_through(Role.CLONE) | features.made_through(Role.COPY)
    first = features.first(Phase.BACKWARD)
    step = features.phases.next_after(Phase.OPTIMIZER, features.alloc)
    states = features.sizes[decided.has(Category.OPTIMIZER_STATE) & ~out]
    in_full = [line for line in lines if line.factor == 2]

    def most(where: BoolColumn, line: ParameterLine) -> bool:
        return bool(np.mean(where[line.rows]) > 0.5)

    has_moments = len(in_full) > 1 and any(most(zeros, line) for line in in_full)
    reaches_forward = features.is_live_at_dump | (features.end >= features.next_forward)
    reaches_step = (features.end > step) & (step < features.n_events)
    freed_by = _lines_that_free_weights(decided)
    line_of = features.lines()
    has_steps = bool(np.any(features.phases.certain == Phase.OPTIMIZER))
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
            is_filled=most(filled, line) or not features.has_cpp,
            comes_first=bool(features.alloc[rows].max() < first),
            comes_after=bool(features.alloc[rows].min() > first),
            is_stepped_on=bool(len(states) and is_of_states[rows].mean() >= NEARLY),
            has_steps=has_steps,
            reaches_forward=most(reaches_forward, line),
            reaches_step=most(reaches_step, line),
            frees_weights=bool(is_among(line_of[rows], freed_by).any()),
        )

    return find


def _lines_that_free_weights(decided: Decided) -> Int64Column:
    """Find the lines of Python that free weights of another line, and nothing else that is decided."""
    features = decided.features
    if not features.phases.free_sites_known:
        return np.zeros(0, np.int64)
    freeing = features.lines_of(features.allocations.free_stack_id)
    former = features.is_freed & (features.lines() != freeing) & (freeing >= 0)
    weights = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT)
    others = former & (decided.category > 0) & ~weights
    return np.setdiff1d(freeing[former & weights], freeing[others])


@dataclass(frozen=True, slots=True)
class SpareGradients:
    """The stage of weights that no module has: as large as gradients whose weight is not known."""

    name: str = "spare_gradients"

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Propose what lines made before the first backward, as often as there are such gradients."""
        features = decided.features
        spare = find_parameters(decided).sizes - counted(features.sizes[decided.has(Category.WEIGHT)])
        first = features.first(Phase.BACKWARD)
        made = features.outside | features.preexisting_outside
        rows = np.flatnonzero(made & features.is_live_at_dump & decided.is_open & (features.alloc < first))
        if not spare or not len(rows):
            return
        has_weights = bool(decided.has(Category.WEIGHT).any())
        found = [rows[:0]]
        for of_line in grouped(rows, features.lines() if has_weights else np.zeros(len(made), np.int64)):
            n_made = counted(features.sizes[of_line])
            fits = [
                size for size, n in n_made.items() if (n == spare[size] if has_weights else n <= spare[size])
            ]
            if not has_weights:
                found.append(of_line[is_among(features.sizes[of_line], fits)])
            elif len(fits) > 1 and sum(s * n_made[s] for s in fits) >= NEARLY * bytes_of(n_made):
                found.append(of_line)
        yield Proposal(features.mask(np.concatenate(found)), Category.WEIGHT, Evidence.SIZES, SPARE_GRADIENT)


@dataclass(frozen=True, slots=True)
class CachesOfLayers:
    """The stage of caches of keys and values that the program makes itself, where nothing is trained."""

    name: str = "caches_of_layers"

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Kept blocks of a size, filled by the program, once or twice for every layer of the weights."""
        features = decided.features
        if is_training(decided) or not (features.in_forward | features.preexisting_in_forward).any():
            return
        n_layers = layers_by_counts(counted(features.sizes[decided.has(Category.WEIGHT)]))
        filled = features.made_through(Role.FACTORY) | np.bool_(not features.has_cpp)
        filled &= ~(features.made_through(Role.COPY) | features.made_through(Role.CLONE))
        kept = features.is_live_at_dump & (features.outside | features.preexisting_outside) & filled
        rows = np.flatnonzero(kept & decided.is_open)
        n_of = counted(features.sizes[rows])
        weights = distinct(features.sizes[decided.has(Category.WEIGHT)])
        may_be = [s for s, n in n_of.items() if n >= _LEAST_CACHES and n in (n_layers, 2 * n_layers)]
        caches = np.setdiff1d(
            np.array(may_be, np.int64), np.concatenate((weights, 2 * weights, weights // 2))
        )
        where = features.mask(rows[is_among(features.sizes[rows], caches)])
        yield Proposal(where, Category.KV_CACHE, Evidence.SIZES, FOR_LAYERS)


SPARE_GRADIENT, FOR_LAYERS = "kept-and-has-a-gradient", "one-for-every-layer"
REASONS = {
    SPARE_GRADIENT: "made before the first backward, kept, and as large as a gradient that no module's weight"
    " has: "
    "in a program without modules, or by a line that makes several",
    FOR_LAYERS: "kept outside of modules where nothing is trained, once or twice for every layer: a cache",
    **{fact.slug: fact.reason for fact in LINES},
}
# Fewer layers may agree with any number.
_LEAST_CACHES = 4
