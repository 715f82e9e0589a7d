"""The job's parameters: how many there are of every size, by gradients and by the lines of a step.

Sizes are counted here, and nowhere else. A ``Sizes`` counts blocks or parameters by their bytes.
"""

from collections import Counter
from collections.abc import Iterator, Set
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
    distinct,
    grouped,
    has_code,
    is_among,
    last_before,
    number_groups,
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
# Sizes of vectors, from which those of matrices between layers follow; hostile files have more of
# them.
LEAST_WIDTH, _MOST_WIDTH, MOST_WIDTHS = 64, 32768, 60
# A line of the step has all parameters if so much of its bytes agree: a few are tied, or not
# trained.
_NEARLY = 0.95
# A step has a few lines, hostile files millions.
_MOST_LINES = 64
# Models have fewer layers than this; the sizes of a model that has them make up this much of it.
_MOST_LAYERS, _OF_LAYERS = 512, 0.8


# Indices of sparse gradients are integers of so many bytes. Rows of fewer are narrow: most sizes
# are multiples of them. Hostile files have any number of sizes.
_INDEX_BYTES, _LEAST_ROW_BYTES = 8, 16
_MOST_SPARSE, _MOST_TABLES = 20, 600


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
    # Sizes whose gradients are not as large: sparse ones.
    tables: frozenset[int] = frozenset()


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


def vector_sizes(counts: Sizes) -> list[int]:
    """Return the sizes, of those that repeat, of vectors from which matrices' sizes follow."""
    repeated = [size for size, n in counts.items() if n >= LEAST_REPEATED]
    widths = sorted(size for size in repeated if LEAST_WIDTH <= size <= _MOST_WIDTH)
    return widths[-MOST_WIDTHS:]


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
    """Find the parameters: as recorded, else by gradients."""
    recorded = decided.features.recorded
    if recorded is not None and len(recorded.metadata.parameters.is_buffer):
        parameters = recorded.metadata.parameters
        n_bytes = parameters.n_bytes[~parameters.is_buffer]
        return Parameters(counted(n_bytes), Source.RECORDED)
    return _gradient_parameters(decided)


def parameters_beside(decided: Decided, rows: Int64Column) -> Parameters:
    """Find the parameters beside open rows.

    A line of a step that makes something of all sizes shows how many there are, if the open rows
    have as many blocks: two gradients of one may be in use at once. Without gradients, the fullest
    line does, or all lines together.
    """
    counts = counted(decided.features.sizes[rows])
    best = decided.shared(find_parameters)
    source = best.source if best.sizes else Source.STATES
    may_be_several = decided.features.phases.optimizers.may_be_several

    def may_show(line_sizes: Sizes) -> bool:
        """Whether a line may have all parameters, and no other ones."""
        has_all = line_sizes.keys() == best.sizes.keys() and line_sizes <= best.sizes
        return not best.sizes or (has_all and not may_be_several)

    for line_sizes in _lines_and_union(decided):
        n_bytes = sum(size * n for size, n in line_sizes.items() if counts[size] >= n)
        if may_show(line_sizes) and n_bytes >= _NEARLY * bytes_of(line_sizes):
            best = Parameters(line_sizes, source)
            break
    return _including_tables(decided, best, counts)


def _including_tables(decided: Decided, best: Parameters, counts: Sizes) -> Parameters:
    """Count tables with sparse gradients, whose sizes no gradient has, among the parameters.

    A sparse gradient is its indices, of eight bytes each, and as many rows of its table. There are
    as many blocks of tables as tables, times what the optimizer keeps of each.
    """
    if best.source is Source.RECORDED:
        return best
    pairs = _sparse_gradients(decided, counts)
    tables = _tables(pairs, counts.keys() - best.sizes.keys())
    n_blocks = sum(counts[size] for size in tables)
    times, remainder = divmod(n_blocks, max(1, len(pairs)))
    if not tables or remainder or any(counts[size] % times for size in tables):
        return best
    sparse_sizes = {size for pair in pairs for size in pair}
    dense = Counter(
        {
            size: n
            for size, n in best.sizes.items()
            if counts[size] or size not in sparse_sizes
        }
    )
    table_counts = Counter({size: counts[size] // times for size in tables})
    return Parameters(dense | table_counts, best.source, frozenset(tables))


def _sparse_gradients(decided: Decided, counts: Sizes) -> list[tuple[int, int]]:
    """Return the bytes of indices and of rows of each sparse gradient of an iteration.

    Backward makes rows right after their indices. Of gradients from before the trace no order is
    known, but indices are as many as those that forward is given.
    """
    features = decided.features
    is_left = features.by_engine & features.outlives_run
    rows = fullest_part(rows_of(is_left), features.iteration, features.sizes)
    if len(rows):
        rows = rows[np.argsort(features.alloc[rows], kind="stable")]
        n_bytes = features.sizes[rows].tolist()
        return list(_pairs_in_order([size for size in n_bytes if not counts[size]]))
    return _older_sparse_gradients(decided, counts)


def _older_sparse_gradients(decided: Decided, counts: Sizes) -> list[tuple[int, int]]:
    features = decided.features
    is_old = decided.has(Category.GRADIENT) & ~features.is_traced
    old_sizes = [size for size in features.sizes[is_old].tolist() if not counts[size]]
    is_input = decided.has(Category.INPUT) | features.outside
    shared_sizes = set(features.sizes[is_input].tolist()).intersection(old_sizes)
    indices = sorted(shared_sizes)[-_MOST_SPARSE:]
    pairs = []
    for size in old_sizes:
        fitting = [n for n in indices if n != size and _row_bytes(n, size)]
        if fitting:
            pairs.append((fitting[0], size))
    # Each has indices of its own.
    n_pairs = Counter(size for size, _ in pairs)
    return pairs if n_pairs <= Counter(old_sizes) else []


def _pairs_in_order(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield indices and the rows that follow them."""
    before = 0
    for size in sizes:
        if before and _row_bytes(before, size):
            yield before, size
            before = 0
        else:
            before = size


def _row_bytes(indices: int, values: int) -> int:
    """Return the bytes of a row of a sparse gradient; 0 where it can be none."""
    n_rows, remainder = divmod(indices, _INDEX_BYTES)
    return 0 if remainder or not n_rows or values % n_rows else values // n_rows


def _tables(pairs: list[tuple[int, int]], open_sizes: Set[int]) -> list[int]:
    """Return the sizes that may be tables: of so many rows, wide or as many as a wide one."""
    row_bytes = sorted({_row_bytes(*pair) for pair in pairs})[-_MOST_SPARSE:]
    sizes = sorted(size for size in open_sizes if size >= SMALL_BYTES)[-_MOST_TABLES:]
    tables, n_rows = set(), set()
    for n_bytes in reversed(row_bytes):
        for size in sizes:
            number, remainder = divmod(size, n_bytes)
            if not remainder and (n_bytes >= _LEAST_ROW_BYTES or number in n_rows):
                tables.add(size)
                n_rows.add(number)
    return sorted(tables)


def _gradient_parameters(decided: Decided) -> Parameters:
    """Count gradients: for every size the most of one run of backward, or in use at once."""
    features = decided.features
    is_gradient = decided.has(Category.GRADIENT)
    is_added = decided.has(Category.TEMPORARY) & features.by_engine
    is_added &= features.freed_through(Role.ACCUMULATION)
    # A gradient that it may not take over is copied.
    copied_sizes = distinct(features.sizes[features.made_through(Role.ACCUMULATION)])
    is_added &= ~is_among(features.sizes, copied_sizes)
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
    """Count, for every size, the most of one run of backward.

    Of several losses, one after the other, each has a run: a gradient is added to that before.
    """
    roots = np.sort(features.alloc[features.is_traced & features.made_through(Role.ROOT)])
    root = last_before(roots, features.alloc[rows])
    sizes = features.sizes[rows]
    first, run_id = number_groups(sizes, features.alloc_run_last[rows], root)
    counts: Sizes = Counter()
    for size, n in plain_rows(sizes[first], np.bincount(run_id)):
        counts[size] = max(counts[size], n)
    return counts


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


def _lines_and_union(decided: Decided) -> list[Sizes]:
    """Count what every stack of a step makes, and all together, the largest first.

    In the iteration in which it makes most.
    """
    features = decided.features
    rows = rows_of(features.made_in_step & features.has_stack)
    lines = []
    for line_rows in grouped(rows, features.allocations.stack_id):
        fullest_rows = fullest_part(line_rows, features.iteration, features.sizes)
        lines.append(counted(features.sizes[fullest_rows]))
    lines = sorted(lines, key=bytes_of, reverse=True)[:_MOST_LINES]
    union: Sizes = Counter()
    for line_sizes in lines:
        union |= line_sizes
    return [union, *lines] if lines else []


def halves_of_every_parameter(decided: Decided) -> Int8Column:
    """Find what a line outside of modules makes in an iteration for every parameter.

    Returns the halves of a parameter's size, 1, 2 or 4; 0 for all else, where not nearly all bytes
    agree, and where the parameters are of one size, as any two may be equal.
    """
    features = decided.features
    parameters = decided.shared(find_parameters).sizes
    column = np.zeros(len(features.alloc), np.int8)
    if len(parameters) < 2:
        return column
    scaled = [(halves, _scaled(parameters, halves)) for halves in (1, 2, 4)]
    expected = [(halves, sizes, bytes_of(sizes)) for halves, sizes in scaled]
    rows = rows_of((features.outside | features.preexisting_outside) & features.has_stack)
    stack = features.allocations.stack_id.astype(np.int64)
    line_id = stack * (features.phases.n_iterations + 2) + features.iteration + 1
    for line_rows in grouped(rows, line_id, min_rows=2):
        line_bytes = features.sizes[line_rows]
        for halves, sizes, n_bytes in expected:
            if _nearly_agree(line_bytes, sizes, n_bytes):
                column[line_rows] = halves
    return column


def _scaled(sizes: Sizes, halves: int) -> Sizes:
    return Counter({size * halves // 2: n for size, n in sizes.items()})


def _nearly_agree(n_bytes: Int64Column, sizes: Sizes, expected_bytes: int) -> bool:
    """Return whether nearly all bytes of blocks and of counted sizes are the same.

    ``expected_bytes`` is the sum of the counted sizes, computed once for many lines.
    """
    if not _NEARLY * expected_bytes <= int(n_bytes.sum()) <= expected_bytes / _NEARLY:
        return False
    return bytes_of(counted(n_bytes) & sizes) >= _NEARLY * expected_bytes
