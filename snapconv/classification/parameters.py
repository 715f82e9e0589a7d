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
    """What the parameters are known by."""

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
    unique_sizes, counts = np.unique(sizes, return_counts=True)
    return Counter(dict(plain_rows(unique_sizes, counts)))


def most_at_once(sizes: Int64Column, alloc: EventColumn, end: EventColumn) -> Sizes:
    """Count, for every size, the most that are in use at once.

    They are in use from the event ``alloc`` to ``end``.
    """
    counts: Sizes = Counter()
    for rows in grouped(np.arange(len(sizes)), sizes):
        n_begun = np.arange(1, len(rows) + 1)
        n_ended = np.searchsorted(np.sort(end[rows]), np.sort(alloc[rows]), side="right")
        counts[int(sizes[rows[0]])] = int((n_begun - n_ended).max())
    return counts


def bytes_of(sizes: Sizes) -> int:
    """Return the bytes of all that was counted."""
    return sum(size * n for size, n in sizes.items())


def is_training(decided: Decided) -> bool:
    """Whether the job trains.

    The trace has a backward or a step, or gradients or states are known.
    """
    if len(decided.features.phases.events_of_training):
        return True
    return bool(decided.has(Category.OPTIMIZER_STATE, Category.GRADIENT).any())


def layers_by_counts(counts: Sizes) -> int:
    """Return what divides how often nearly all repeated sizes of a model occur; 0 for none."""
    repeated = Counter(
        {
            size: n
            for size, n in counts.items()
            if n >= LEAST_REPEATED and size >= SMALL_BYTES
        }
    )
    least_bytes = _OF_LAYERS * bytes_of(repeated)
    max_layers = min(max(repeated.values(), default=1), _MOST_LAYERS)
    for n_layers in range(max_layers, 1, -1):
        n_bytes = sum(size * n for size, n in repeated.items() if n % n_layers == 0)
        if n_bytes >= least_bytes:
            return n_layers
    return 0


def find_parameters(decided: Decided) -> Parameters:
    """Find the parameters: as recorded, else by gradients.

    What one stack of a step made completes the gradients.
    """
    recorded = decided.features.recorded
    if recorded is not None and len(recorded.metadata.parameters.is_buffer):
        parameters = recorded.metadata.parameters
        n_bytes = parameters.n_bytes[~parameters.is_buffer]
        return Parameters(counted(n_bytes), Source.RECORDED)
    best = _gradient_parameters(decided)
    if not best.sizes or decided.features.phases.optimizers.may_be_several:
        return best
    least_bytes = _NEARLY * bytes_of(best.sizes)
    for line_sizes in decided.shared(_step_lines):
        has_all = bytes_of(line_sizes & best.sizes) >= least_bytes
        if has_all and line_sizes.total() > best.sizes.total():
            return Parameters(best.sizes + _without(line_sizes, best.sizes), best.source)
    return best


def candidates(decided: Decided, rows: Int64Column) -> list[Parameters]:
    """Find the parameters, the best first: then by lines of steps.

    The open rows have as many blocks of each size as such a line makes.
    """
    best = find_parameters(decided)
    source = best.source if best.sizes else Source.STATES
    counts = counted(decided.features.sizes[rows])
    max_dropped = _MOST_DROPPED * bytes_of(best.sizes)
    options = {frozenset(best.sizes.items()): best}
    for line_sizes in _lines_and_union(decided.shared(_step_lines)):
        n_matching = sum(size * n for size, n in line_sizes.items() if counts[size] >= n)
        if n_matching < _NEARLY * bytes_of(line_sizes):
            continue
        choices = [best.sizes + _without(line_sizes, best.sizes)]
        if bytes_of(_without(best.sizes, line_sizes)) <= max_dropped:
            choices.append(line_sizes)
        for sizes in choices:
            options.setdefault(frozenset(sizes.items()), Parameters(sizes, source))
    return list(options.values())[:_MOST_CANDIDATES]


def _lines_and_union(lines: list[Sizes]) -> list[Sizes]:
    """Return what lines make and what they make together, the largest first."""
    union: Sizes = Counter()
    for line_sizes in lines:
        union |= line_sizes
    return sorted([*lines, union], key=bytes_of, reverse=True)


def _without(sizes: Sizes, excluded: Sizes) -> Sizes:
    return Counter({size: n for size, n in sizes.items() if size not in excluded})


def _gradient_parameters(decided: Decided) -> Parameters:
    """Count gradients: for every size the most of one run of backward, or in use at once."""
    features = decided.features
    is_gradient = decided.has(Category.GRADIENT)
    is_added = decided.has(Category.TEMPORARY) & features.by_engine
    is_added &= features.freed_through(Role.ACCUMULATION)
    gradient_rows = rows_of(is_gradient & features.by_engine)
    run_sizes = _fullest_run(features, gradient_rows)
    added_sizes = _fullest_run(features, rows_of(is_added))
    live_sizes = most_at_once(
        features.sizes[is_gradient], features.alloc[is_gradient], features.end[is_gradient]
    )
    if bytes_of(added_sizes) > bytes_of(run_sizes):
        return Parameters(added_sizes | live_sizes, Source.ADDED)
    sizes = run_sizes | live_sizes
    return Parameters(sizes, _gradient_source(decided, sizes, gradient_rows))


def _gradient_source(decided: Decided, sizes: Sizes, gradient_rows: Int64Column) -> Source:
    features = decided.features
    if not sizes:
        return Source.NONE
    if not len(gradient_rows):
        return Source.BEFORE
    if features.phases.optimizers.may_be_several:
        return Source.SEVERAL
    iterations = features.iteration[gradient_rows]
    is_whole = is_among(iterations, decided.shared(_whole_iterations)).any()
    return Source.WHOLE if is_whole else Source.PART


def _fullest_run(features: Features, rows: Int64Column) -> Sizes:
    """Count, for every size, the most of one run of backward."""
    if not len(rows):
        return Counter()
    sizes, size_id = np.unique(features.sizes[rows], return_inverse=True)
    n_events = features.n_events + 1
    runs = size_id * n_events + features.alloc_run_last[rows]
    run_ids, counts = np.unique(runs, return_counts=True)
    max_counts = np.maximum.reduceat(counts, run_starts(run_ids // n_events))
    return Counter(dict(plain_rows(sizes, max_counts)))


def _whole_iterations(decided: Decided) -> Int32Column:
    """Find the iterations whose backward the trace has from its beginning.

    A forward comes before it.
    """
    shown = decided.features.phases.certain
    iteration = decided.features.phases.iteration
    backward = rows_of(has_code(shown, Phase.BACKWARD))
    first = backward[run_starts(iteration[backward])]
    forward = last_before(rows_of(has_code(shown, Phase.FORWARD)), first)
    is_whole = (forward >= 0) & (iteration[forward] == iteration[first])
    return np.asarray(iteration[first[is_whole]])


def _step_lines(decided: Decided) -> list[Sizes]:
    """Count what every stack of a step makes, the largest first.

    In the iteration in which it makes most.
    """
    features = decided.features
    is_step = has_code(features.alloc_phase, Phase.OPTIMIZER)
    rows = rows_of(features.is_traced & is_step & features.has_stack)
    lines = []
    for line_rows in grouped(rows, features.allocations.stack_id):
        fullest_rows = fullest_part(line_rows, features.iteration, features.sizes)
        lines.append(counted(features.sizes[fullest_rows]))
    return sorted(lines, key=bytes_of, reverse=True)[:_MOST_LINES]


def halves_of_every_parameter(decided: Decided) -> Int8Column:
    """Find what a line outside of modules makes in an iteration for every parameter.

    Returns the halves of a parameter's size; 0 for all else, where not nearly all bytes agree, and
    where the parameters are of one size, as any two may be equal.
    """
    features = decided.features
    parameters = find_parameters(decided).sizes
    column = np.zeros(len(features.alloc), np.int8)
    if len(parameters) < 2:
        return column
    expected = [(halves, _scaled(parameters, halves)) for halves in (1, 2, 4)]
    expected_bytes = [bytes_of(sizes) for _, sizes in expected]
    rows = rows_of((features.outside | features.preexisting_outside) & features.has_stack)
    stack = features.allocations.stack_id.astype(np.int64)
    line_id = stack * (features.phases.n_iterations + 2) + features.iteration + 1
    for line_rows in grouped(rows, line_id, least=2):
        line_bytes = features.sizes[line_rows]
        for (halves, sizes), n_bytes in zip(expected, expected_bytes, strict=True):
            if _nearly_agree(line_bytes, sizes, expected_bytes=n_bytes):
                column[line_rows] = halves
    return column


def _scaled(sizes: Sizes, halves: int) -> Sizes:
    return Counter({size * halves // 2: n for size, n in sizes.items()})


def _nearly_agree(n_bytes: Int64Column, sizes: Sizes, *, expected_bytes: int) -> bool:
    """Return whether nearly all bytes of blocks and of counted sizes are the same.

    ``expected_bytes`` is the sum of the counted sizes, computed once for many lines.
    """
    if not _NEARLY * expected_bytes <= int(n_bytes.sum()) <= expected_bytes / _NEARLY:
        return False
    return bytes_of(counted(n_bytes) & sizes) >= _NEARLY * expected_bytes
