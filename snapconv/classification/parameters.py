"""The job's parameters: how many there are of every size, by gradients and by the lines of a step.

Sizes are counted here, and nowhere else. A ``Sizes`` counts blocks or parameters by their bytes.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Decided
from snapconv.classification.features import Features, fullest_part
from snapconv.columns import (
    EventColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    grouped,
    has_code,
    is_among,
    last_before,
    plain_rows,
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import Role

Sizes = Counter[int]

# Smaller blocks are scalars and counters, of which there are any number.
SMALL_BYTES = 1024
# Fewer blocks of a size say nothing of layers.
LEAST_REPEATED = 3
# A line of the step has all parameters if so much of its bytes agree: a few are tied, or not
# trained.
_NEARLY = 0.95
# What lacks more than this of the parameters is of some of them only.
_MOST_DROPPED = 0.02
# Candidates for the parameters that the inventory weighs: a step has a few lines, hostile files
# millions.
_MOST_CANDIDATES, _MOST_LINES = 5, 64
# Models have fewer layers than this; the sizes of a model that has them make up this much of it.
_MOST_LAYERS, _OF_LAYERS = 512, 0.8


class Source(Enum):
    """How the parameters are known."""

    NONE = "not known"
    RECORDED = "as recorded"
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
    return Counter(dict(plain_rows(found, counts)))


def most_at_once(sizes: Int64Column, alloc: EventColumn, end: EventColumn) -> Sizes:
    """Count, for every size, the most that are in use at once, from the event ``alloc`` to ``end``."""
    found: Sizes = Counter()
    for rows in grouped(np.arange(len(sizes)), sizes):
        n_ended = np.searchsorted(np.sort(end[rows]), np.sort(alloc[rows]), side="right")
        found[int(sizes[rows[0]])] = int((np.arange(1, len(rows) + 1) - n_ended).max())
    return found


def bytes_of(sizes: Sizes) -> int:
    """Return the bytes of all that was counted."""
    return sum(size * n for size, n in sizes.items())


def is_training(decided: Decided) -> bool:
    """Whether the job trains: the trace has a backward or a step, or gradients or states are known."""
    shown = len(decided.features.phases.events_of_training) > 0
    return shown or bool(decided.has(Category.OPTIMIZER_STATE, Category.GRADIENT).any())


def layers_by_counts(n_of: Sizes) -> int:
    """Return what divides how often nearly all repeated sizes of a model occur; 0 for none."""
    many = {size: n for size, n in n_of.items() if n >= LEAST_REPEATED and size >= SMALL_BYTES}
    total = bytes_of(Counter(many))
    for n_layers in range(min(max(many.values(), default=1), _MOST_LAYERS), 1, -1):
        if sum(size * n for size, n in many.items() if n % n_layers == 0) >= _OF_LAYERS * total:
            return n_layers
    return 0


def find_parameters(decided: Decided) -> Parameters:
    """Find the parameters: as recorded, else by gradients, completed by what one stack of a step made."""
    recorded = decided.features.recorded
    if recorded is not None and len(recorded.metadata.parameters.is_buffer):
        parameters = recorded.metadata.parameters
        return Parameters(counted(parameters.n_bytes[~parameters.is_buffer]), Source.RECORDED)
    best = _by_gradients(decided)
    if best.sizes and not decided.features.phases.optimizers.may_be_several:
        for made in decided.shared(_step_lines):
            has_all = bytes_of(made & best.sizes) >= _NEARLY * bytes_of(best.sizes)
            if has_all and made.total() > best.sizes.total():
                return Parameters(best.sizes + _without(made, best.sizes), best.source)
    return best


def candidates(decided: Decided, rows: Int64Column) -> list[Parameters]:
    """Find further parameters, after the best: of lines of steps of which the open rows have as many."""
    best = find_parameters(decided)
    lines = decided.shared(_step_lines)
    n_of = counted(decided.features.sizes[rows])
    total = bytes_of(best.sizes)
    found = {frozenset(best.sizes.items()): best}
    union: Sizes = Counter()
    for made in lines:
        union |= made
    for made in sorted([*lines, union], key=lambda made: -bytes_of(made)):
        if sum(size * n for size, n in made.items() if n_of[size] >= n) < _NEARLY * bytes_of(made):
            continue
        source = best.source if best.sizes else Source.STATES
        is_whole = bytes_of(_without(best.sizes, made)) <= _MOST_DROPPED * total
        for sizes in (best.sizes + _without(made, best.sizes), *([made] if is_whole else [])):
            found.setdefault(frozenset(sizes.items()), Parameters(sizes, source))
    return list(found.values())[:_MOST_CANDIDATES]


def _without(sizes: Sizes, others: Sizes) -> Sizes:
    return Counter({size: n for size, n in sizes.items() if size not in others})


def _by_gradients(decided: Decided) -> Parameters:
    """Count gradients: for every size the most of one run of backward, or of what is in use at once."""
    features = decided.features
    gradients = decided.has(Category.GRADIENT)
    made = rows_of(gradients & features.by_engine)
    added = (
        decided.has(Category.TEMPORARY)
        & features.by_engine
        & features.freed_through(Role.ACCUMULATION)
    )
    by_run = [_fullest_run(features, rows) for rows in (made, rows_of(added))]
    there = most_at_once(
        features.sizes[gradients], features.alloc[gradients], features.end[gradients]
    )
    if bytes_of(by_run[1]) > bytes_of(by_run[0]):
        return Parameters(by_run[1] | there, Source.ADDED)
    sizes = by_run[0] | there
    if not sizes:
        return Parameters(sizes, Source.NONE)
    if not len(made):
        return Parameters(sizes, Source.BEFORE)
    if features.phases.optimizers.may_be_several:
        return Parameters(sizes, Source.SEVERAL)
    is_whole = is_among(features.iteration[made], decided.shared(_whole_iterations)).any()
    return Parameters(sizes, Source.WHOLE if is_whole else Source.PART)


def _fullest_run(features: Features, rows: Int64Column) -> Sizes:
    """Count, for every size, the most of one run of backward."""
    if not len(rows):
        return Counter()
    sizes, of_size = np.unique(features.sizes[rows], return_inverse=True)
    n_events = features.n_events + 1
    keys, counts = np.unique(of_size * n_events + features.alloc_run_last[rows], return_counts=True)
    most = np.maximum.reduceat(counts, run_starts(keys // n_events))
    return Counter(dict(plain_rows(sizes, most)))


def _whole_iterations(decided: Decided) -> Int32Column:
    """Find the iterations whose backward the trace has from its beginning: a forward comes before it."""
    shown = decided.features.phases.certain
    iteration = decided.features.phases.iteration
    backward = rows_of(has_code(shown, Phase.BACKWARD))
    first = backward[run_starts(iteration[backward])]
    forward = last_before(rows_of(has_code(shown, Phase.FORWARD)), first)
    return np.asarray(iteration[first[(forward >= 0) & (iteration[forward] == iteration[first])]])


def _step_lines(decided: Decided) -> list[Sizes]:
    """Count what every stack of a step makes, in the iteration in which it makes most; the largest first."""
    features = decided.features
    step = features.is_traced & has_code(features.alloc_phase, Phase.OPTIMIZER) & features.has_stack
    found = []
    for of_line in grouped(rows_of(step), features.allocations.stack_id):
        found.append(
            counted(features.sizes[fullest_part(of_line, features.iteration, features.sizes)])
        )
    return sorted(found, key=lambda made: -bytes_of(made))[:_MOST_LINES]


def halves_of_every_parameter(decided: Decided) -> Int8Column:
    """Find what a line outside of modules makes in an iteration for every parameter: the halves of its size.

    0 for all else, where not nearly all bytes agree, and where they are of one size, as any two may
    be equal.
    """
    features = decided.features
    wanted = find_parameters(decided).sizes
    found = np.zeros(len(features.alloc), np.int8)
    if len(wanted) < 2:
        return found
    scaled = {
        halves: Counter({size * halves // 2: n for size, n in wanted.items()})
        for halves in (1, 2, 4)
    }
    known = [(halves, sizes, bytes_of(sizes)) for halves, sizes in scaled.items()]
    rows = rows_of((features.outside | features.preexisting_outside) & features.has_stack)
    stack = features.allocations.stack_id.astype(np.int64)
    for of_line in grouped(
        rows, stack * (features.phases.n_iterations + 2) + features.iteration + 1
    ):
        n_made = int(features.sizes[of_line].sum())
        for halves, sizes, n_wanted in known if len(of_line) > 1 else ():
            if _NEARLY * n_wanted <= n_made <= n_wanted / _NEARLY:
                agreeing = bytes_of(counted(features.sizes[of_line]) & sizes)
                if agreeing >= _NEARLY * n_wanted:
                    found[of_line] = halves
    return found
