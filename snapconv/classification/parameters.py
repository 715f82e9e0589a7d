"""The job's parameters: how many there are of every size; and lines that make one block for each.

Sizes are counted here, and nowhere else. A ``Sizes`` counts blocks or parameters by their bytes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Decided
from snapconv.classification.features import Features, next_of
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

Sizes = Counter[int]

# Smaller blocks are scalars and counters, of which there are any number.
SMALL_BYTES = 1024
# A line is one for every parameter if so much of its bytes agree: a few are tied, or not trained.
NEARLY = 0.9
# One source has more than another only if it has more than rounding would give.
_MORE, _MUCH_MORE = 1.02, 1.1
# A line of the step that has less than all but this much of the parameters is of some of them only.
_MOST_DROPPED = 0.02
# Candidates for the parameters that the inventory weighs: a step has a few lines, hostile files millions.
_MOST_CANDIDATES, _MOST_LINES = 5, 64
# Models have fewer layers than this; the sizes of a model that has them make up this much of it.
_MOST_LAYERS, _OF_LAYERS = 512, 0.8
# Samples have their gradients times one number; fewer sizes, or a smaller number, may agree by chance.
_LEAST_SAMPLES, _MOST_SAMPLED_SIZES = 3, 200
_MOST_SAMPLED_ITERATIONS = 64


class Source(Enum):
    """How the parameters are known."""

    NONE = "not known"
    WHOLE = "the gradients of a whole iteration"
    PART = "the gradients of a part of an iteration"
    SEVERAL = "the gradients of several optimizers"
    ADDED = "the gradients that backward adds to"
    BEFORE = "the gradients from before the trace"
    STATES = "the states that a step makes"


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters there are of every size, and how that is known."""

    sizes: Sizes
    source: Source


def counted(sizes: Int64Column) -> Sizes:
    """Count a column of sizes."""
    found, counts = np.unique(sizes, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True)))


def bytes_of(sizes: Sizes) -> int:
    """Return the bytes of all that was counted."""
    return sum(size * n for size, n in sizes.items())


def is_training(decided: Decided) -> bool:
    """Whether the job trains: the trace has a backward or a step, or gradients or states are known."""
    shown = len(decided.features.phases.events_of_training) > 0
    return shown or bool(decided.has(Category.OPTIMIZER_STATE, Category.GRADIENT).any())


def most_live_at_once(features: Features, rows: Int64Column) -> Sizes:
    """Count, for every size, the most of the rows that are in use at once."""
    found: Sizes = Counter()
    for of_size in grouped(rows, features.sizes):
        alloc, end = np.sort(features.alloc[of_size]), np.sort(features.end[of_size])
        n_live = np.arange(1, len(of_size) + 1) - np.searchsorted(end, alloc, side="right")
        found[int(features.sizes[of_size[0]])] = int(n_live.max())
    return found


def step_lines(decided: Decided) -> list[Sizes]:
    """Count what every stack of a step makes, in the iteration in which it makes most; the largest first."""
    features = decided.features
    step = features.is_traced & (features.alloc_phase == Phase.OPTIMIZER) & features.has_stack
    found = []
    for of_line in grouped(np.flatnonzero(step), features.allocations.stack_id):
        found.append(counted(features.sizes[_fullest(features, of_line)]))
    return sorted(found, key=lambda made: -bytes_of(made))[:_MOST_LINES]


def _fullest(features: Features, rows: Int64Column) -> Int64Column:
    """Return those of the rows that are of the iteration with most bytes of them, the first of equals."""
    iterations, inverse = np.unique(features.iteration[rows], return_inverse=True)
    fullest = np.bincount(inverse, features.sizes[rows], len(iterations)).argmax()
    return np.asarray(rows[inverse == fullest])


def layers_by_counts(n_of: Sizes) -> int:
    """Return what divides how often nearly all repeated sizes of a model occur; 0 for none."""
    many = {size: n for size, n in n_of.items() if n >= 3 and size >= SMALL_BYTES}
    total = bytes_of(Counter(many))
    for n_layers in range(min(max(many.values(), default=1), _MOST_LAYERS), 1, -1):
        if sum(size * n for size, n in many.items() if n % n_layers == 0) >= _OF_LAYERS * total:
            return n_layers
    return 0


# --- parameters by their gradients and states


def find_parameters(decided: Decided) -> Parameters:
    """Find the parameters by the best source, and those that a line of the step has beside them."""
    best = _by_gradients_and_states(decided)
    if best.source is not Source.NONE:  # of models that are trained in turn, gradients of all may be there
        gradients = np.flatnonzero(decided.has(Category.GRADIENT))
        there = most_live_at_once(decided.features, gradients)
        sizes = Counter({size: max(n, there[size]) for size, n in best.sizes.items()})
        best = Parameters(sizes, best.source)
    if best.source is not Source.NONE and not decided.features.phases.has_several_steps:
        total = bytes_of(best.sizes)
        for made in decided.shared(step_lines):
            has_all = bytes_of(made & best.sizes) >= (1 - 2.5 * _MOST_DROPPED) * total
            if has_all and made.total() > best.sizes.total():
                more = {size: n for size, n in made.items() if size not in best.sizes}
                return Parameters(best.sizes + Counter(more), best.source)
    return best


def candidates(decided: Decided, rows: Int64Column) -> list[Parameters]:
    """Find further parameters, after the best: those of lines of steps, if the open blocks may have them."""
    best = find_parameters(decided)
    found, sizes = [best], [best.sizes]
    total, n_of = bytes_of(best.sizes), counted(decided.features.sizes[rows])
    lines = list(decided.shared(step_lines))
    if len(lines) > 1:  # of several optimizers
        union: Sizes = Counter()
        for made in lines:
            union |= made
        lines.append(union)
    for made in sorted(lines, key=lambda made: -bytes_of(made)):
        fits = sum(size * n for size, n in made.items() if n_of[size] >= n)
        if fits < NEARLY * bytes_of(made):
            continue
        new = Counter({size: n for size, n in made.items() if size not in best.sizes})
        dropped = sum(size * n for size, n in best.sizes.items() if size not in made)
        source = Source.STATES if best.source is Source.NONE else best.source
        for more in ([best.sizes + new] if new else []) + (
            [made] if dropped <= _MOST_DROPPED * total else []
        ):
            if more not in sizes:
                sizes.append(more)
                found.append(Parameters(more, source))
        if len(found) >= _MOST_CANDIDATES:
            break
    return found


def _by_gradients_and_states(decided: Decided) -> Parameters:
    features = decided.features
    gradients = decided.has(Category.GRADIENT)
    rows = np.flatnonzero(gradients & features.by_engine)
    if (added := _added(decided, rows)) is not None:
        return added
    if features.phases.has_several_steps and len(rows):  # of several models that are trained in turn
        return Parameters(_of_runs(features, rows), Source.SEVERAL)
    best = Parameters(Counter(), Source.NONE)
    is_whole = np.isin(features.iteration[rows], decided.shared(_whole_iterations))
    for subset, source in ((rows[is_whole], Source.WHOLE), (rows, Source.PART)):
        if len(subset):
            made = _of_runs(features, _last_fullest(features, subset))
            if bytes_of(made) > _MORE * bytes_of(best.sizes):
                best = Parameters(made, source)
    if best.source is Source.WHOLE:
        return best
    before = counted(features.sizes[gradients & ~features.is_traced])
    if bytes_of(before) > _MUCH_MORE * bytes_of(best.sizes):
        best = Parameters(before, Source.BEFORE)
    states = _fullest_line_of_states(decided)
    if bytes_of(states) > _MUCH_MORE * bytes_of(best.sizes):
        return Parameters(states, Source.STATES)
    return best


def _added(decided: Decided, gradients: Int64Column) -> Parameters | None:
    """Find what backward adds to existing gradients, if that is more than the gradients that it makes."""
    features = decided.features
    freed = features.by_engine & decided.has(Category.TEMPORARY) & features.freed_through(Role.ACCUMULATION)
    rows = np.flatnonzero(freed)
    if not len(rows):
        return None
    runs, inverse = np.unique(features.alloc_run_last[rows], return_inverse=True)
    fullest = rows[inverse == np.bincount(inverse, features.sizes[rows], len(runs)).argmax()]
    added = counted(features.sizes[fullest])
    n_iterations = max(1, len(distinct(features.iteration[gradients])))
    if bytes_of(added) <= features.sizes[gradients].sum() / n_iterations:
        return None
    return Parameters(added, Source.ADDED)


def _whole_iterations(decided: Decided) -> list[int]:
    """Find the iterations whose backward the trace has from its beginning: a forward comes before it."""
    shown, iteration = decided.features.phases.certain, decided.features.phases.iteration
    first: dict[Phase, dict[int, int]] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        events = np.flatnonzero(shown == phase)
        found, place = np.unique(iteration[events], return_index=True)
        first[phase] = dict(zip(found.tolist(), events[place].tolist(), strict=True))
    forward = first[Phase.FORWARD]
    return [number for number, event in first[Phase.BACKWARD].items() if forward.get(number, event) < event]


def _last_fullest(features: Features, rows: Int64Column) -> Int64Column:
    """Return those of the rows that are of the iteration with most bytes, the last of equals."""
    iterations, inverse = np.unique(features.iteration[rows], return_inverse=True)
    totals = np.bincount(inverse, features.sizes[rows], len(iterations))
    return np.asarray(rows[inverse == np.flatnonzero(totals == totals.max())[-1]])


def _of_runs(features: Features, rows: Int64Column) -> Sizes:
    """Count gradients: for every size the most of one run of backward, or of what is in use at once."""
    found: Sizes = Counter()
    for of_run in grouped(rows, features.alloc_run_last):
        found |= counted(features.sizes[of_run])
    return found | most_live_at_once(features, rows)


def _fullest_line_of_states(decided: Decided) -> Sizes:
    """Count what one stack makes of states in one iteration, where it makes most."""
    features = decided.features
    states = decided.has(Category.OPTIMIZER_STATE) & ~features.has_no_frames
    rows = np.flatnonzero(states)
    if not len(rows):
        return Counter()
    stack = features.allocations.stack_id[rows].astype(np.int64)
    key = stack * (features.phases.n_iterations + 1) + features.iteration[rows]
    keys, inverse = np.unique(key, return_inverse=True)
    fullest = np.bincount(inverse, features.sizes[rows], len(keys)).argmax()
    return counted(features.sizes[rows[inverse == fullest]])


# --- lines that make one block for every parameter


def is_nearly(made: Sizes, wanted: Sizes) -> bool:
    """Whether nearly all bytes are of the sizes that are wanted, as often; of one size any two may agree."""
    n_made, n_wanted = bytes_of(made), bytes_of(wanted)
    if len(wanted) < 2 or not n_made or not NEARLY * n_wanted <= n_made <= n_wanted / NEARLY:
        return False
    return bytes_of(made & wanted) >= NEARLY * max(n_made, n_wanted)


@dataclass(frozen=True, slots=True)
class ParameterLine:
    """One block for nearly every parameter, ``factor`` times as large, of one stack and iteration."""

    rows: Int64Column
    factor: float


def parameter_lines(decided: Decided, rows: Int64Column, wanted: Sizes) -> Iterator[ParameterLine]:
    """Find the lines among the rows that make one block for nearly every parameter."""
    features = decided.features
    n_wanted = bytes_of(wanted)
    if not n_wanted or not len(rows):
        return
    stack = features.allocations.stack_id.astype(np.int64)
    for of_line in grouped(rows, stack * (features.phases.n_iterations + 2) + features.iteration + 1):
        if len(of_line) < NEARLY * min(len(wanted), 2):
            continue
        n_made = int(features.sizes[of_line].sum())
        if n_made < NEARLY * 0.5 * n_wanted:
            continue
        made = counted(features.sizes[of_line])
        times = round(n_made / n_wanted)
        for factor in dict.fromkeys((1, 2, 0.5, times)):
            if factor and is_nearly(made, Counter({int(size * factor): n for size, n in wanted.items()})):
                yield ParameterLine(of_line, factor)
                break
        else:  # several of each
            if times > 1 and is_nearly(made, Counter({size: n * times for size, n in wanted.items()})):
                yield ParameterLine(of_line, 1)


def lines_per_parameter(decided: Decided) -> BoolColumn:
    """Mark what is made outside of modules by a line that makes one for nearly every parameter."""
    features = decided.features
    wanted = find_parameters(decided).sizes
    found = np.zeros(len(features.alloc), np.bool_)
    for line in parameter_lines(decided, np.flatnonzero(features.outside & features.has_stack), wanted):
        found[line.rows] = True
    return found | gradients_of_samples(decided, wanted)


def gradients_of_samples(decided: Decided, wanted: Sizes) -> BoolColumn:
    """Mark, in an iteration, nearly all parameters' sizes times one whole number: gradients of samples."""
    features = decided.features
    found = np.zeros(len(features.alloc), np.bool_)
    after = (
        features.outside & (features.phases.phase[np.maximum(features.alloc, 0)] == Phase.BACKWARD)
        if features.n_events
        else found
    )
    by_program = features.alloc[decided.has(Category.GRADIENT) & features.outside]
    step = features.phases.next_after(Phase.OPTIMIZER, features.alloc)
    begins = np.minimum(step, next_of(by_program, features.alloc, features.n_events))
    used = after & (begins < features.n_events) & (begins < features.next_forward) & (features.end > begins)
    in_run = features.by_engine | (after & (features.alloc < features.alloc_run_end))
    used |= in_run & (features.end > features.alloc_run_last)
    rows = np.flatnonzero(used & ~features.made_through(Role.RECOMPUTE))
    weights = decided.has(Category.WEIGHT) | (features.lasts_throughout & ~features.by_engine)
    models = [np.array(sorted(wanted), np.int64), distinct(features.sizes[weights & (features.sizes > 0)])]
    models = [sizes for sizes in models if _LEAST_SAMPLES <= len(sizes) <= _MOST_SAMPLED_SIZES]
    if not models:
        return found
    for of_iteration in grouped(rows, features.iteration)[-_MOST_SAMPLED_ITERATIONS:]:
        made = distinct(features.sizes[of_iteration])
        if _LEAST_SAMPLES <= len(made) <= _MOST_SAMPLED_SIZES:
            for sizes in models:
                many = _times_as_large(made, sizes)
                found[of_iteration[is_among(features.sizes[of_iteration], many)]] = True
    return found


def _times_as_large(made: Int64Column, sizes: Int64Column) -> Int64Column:
    """Find the sizes that are one whole number times nearly all of the model's."""
    times, rest = np.divmod(made[:, None], sizes[None, :])
    row, column = np.nonzero((rest == 0) & (times >= _LEAST_SAMPLES))
    _, inverse, counts = np.unique(times[row, column], return_inverse=True, return_counts=True)
    fits = counts >= max(_LEAST_SAMPLES, NEARLY * len(sizes))
    return np.asarray(made[row[fits[inverse]]])
