"""A job as the recording shows it: open blocks, blocks that facts have named, parameters."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.classification.categories import Category
from snapconv.classification.conditions import saves
from snapconv.classification.decisions import Decided
from snapconv.classification.features import Features
from snapconv.classification.parameters import (
    LEAST_REPEATED,
    SMALL_BYTES,
    Parameters,
    Sizes,
    bytes_of,
    counted,
    is_training,
    parameters_beside,
)
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    distinct,
    has_code,
    is_among,
    number_groups,
    plain_rows,
    rows_by,
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Optimizers, Phase

# In models that were cast, states lie below all weights of another size in 16 to 27 % of the pairs
# of sizes, by bytes; in nearly all others in at most 5 %. The few that have more have no weight
# that touches an equal block.
_MOST_BELOW = 0.1
# What hostile files may cost: sizes are compared in pairs, those with the most bytes.
_MOST_COMPARED = 100
# So much of the open bytes may be a table that is not trained.
_OTHER_SHARE = 0.1
# Fewer blocks show nothing of how they lie: of each parameter, and runs of equal ones.
_LEAST_BLOCKS, _LEAST_RUNS = 3, 4
# Fewer layers, or lines of layers, show no frozen ones.
_LEAST_LAYERS, _LEAST_LINES = 2, 2

# Numbers of blocks: weights, optimizer states, gradients; KINDS is their order.
Counts = tuple[int, int, int]
KINDS = (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)


@dataclass(frozen=True)
class Job:
    """What the recording shows of the job.

    ``counts`` has the open blocks by size, ``fact_counts`` the blocks that facts have named.
    """

    parameters: Parameters
    counts: Sizes
    fact_counts: dict[Category, Sizes]
    n_layers: int
    # Layers that keep less for backward than others, as they are not trained; and those others.
    frozen_layers: int
    trained_layers: int
    optimizers: Optimizers
    is_training: bool
    saves: int
    has_step: bool
    infers: bool
    reserves_more: bool | None
    # From -1 to 1: blocks lie as copies of a model do, or as several states of each parameter.
    states_beside_each_other: float
    # Weights lie below states of their size.
    is_in_order: bool

    @property
    def sizes(self) -> Sizes:
        """Parameters by size."""
        return self.parameters.sizes

    @cached_property
    def frozen_weights(self) -> Sizes:
        """Weights of frozen layers, as many in each as in the layers that are trained."""
        return Counter(
            {
                size: n // self.trained_layers * self.frozen_layers
                for size, n in self.sizes.items()
                if n % self.trained_layers == 0
            }
        )

    @cached_property
    def sizes_of_gradients(self) -> Sizes:
        """Gradients by size, where all parameters have one: those of tables are sparse."""
        tables = self.parameters.tables
        return Counter({size: n for size, n in self.sizes.items() if size not in tables})

    @cached_property
    def has_known_states(self) -> bool:
        """Whether all states are of known optimizers, and as large as their weights."""
        return self.optimizers.states_range is not None

    @cached_property
    def keeps_other_sizes(self) -> bool:
        """Whether a known optimizer may keep states that are not as large as their weights."""
        variants = [variant for of_one in self.optimizers.variants for variant in of_one]
        return any(variant.squares or variant.has_others for variant in variants)

    @cached_property
    def has_other_blocks(self) -> bool:
        """Whether much is open whose sizes follow from no parameter's, nor from a part of one."""
        own_sizes = {
            scaled
            for size in self.sizes
            for scaled in (size // 4, size // 2, size, 2 * size)
        }
        other_counts = Counter(
            {size: n for size, n in self.counts.items() if size not in own_sizes}
        )
        return bytes_of(other_counts) > _OTHER_SHARE * bytes_of(self.counts)

    @cached_property
    def fact_total(self) -> Sizes:
        """Weights, gradients and states that facts have named, by size."""
        total: Sizes = Counter()
        for sizes in self.fact_counts.values():
            total.update(sizes)
        return total

    def open_counts(self, size: int, counts: Counts) -> Counts:
        """Subtract what facts have named from the blocks of a size."""
        if not self.fact_total[size]:
            return counts
        weights, states, gradients = (
            max(0, n - self.fact_counts[kind][size])
            for kind, n in zip(KINDS, counts, strict=True)
        )
        return weights, states, gradients


def find_job(decided: Decided, rows: Int64Column) -> Job:
    """Gather the evidence; ``rows`` are the open ones."""
    features = decided.features
    parameters = parameters_beside(decided, rows)
    trains = is_training(decided)
    is_forward = features.in_forward | features.preexisting_in_forward
    frozen_layers, trained_layers = frozen_and_trained_layers(decided)
    return Job(
        parameters=parameters,
        counts=counted(features.sizes[rows]),
        fact_counts=_fact_counts(decided),
        n_layers=layers_that_ran(decided),
        frozen_layers=frozen_layers,
        trained_layers=trained_layers,
        optimizers=features.phases.optimizers,
        is_training=trains,
        saves=decided.shared(saves),
        has_step=bool(np.any(features.phases.certain == Phase.OPTIMIZER)),
        infers=not trains and bool(is_forward.any()),
        reserves_more=features.reserves_more,
        states_beside_each_other=states_beside_each_other(features, rows, parameters.sizes),
        is_in_order=lies_in_order(features, rows, parameters.sizes),
    )


class _Blocks:
    """Rows in order of addresses, of sizes that have a whole number of blocks for each parameter.

    ``is_model``: the lowest of each size, as many as parameters; ``is_above``: the rest. Both of
    the usual number ``n_per_parameter`` alone.
    """

    def __init__(self, features: Features, rows: Int64Column, sizes: Sizes) -> None:
        is_large = features.sizes[rows] >= SMALL_BYTES
        self.rows = rows_by(features.allocations.addr, rows[is_large])
        self.n_bytes = features.sizes[self.rows]
        n_in_model, numbers = _numbers_of_blocks(self.n_bytes, sizes)
        self.n_per_parameter = _usual(numbers, self.n_bytes)
        is_whole = has_code(numbers, self.n_per_parameter)
        self.is_model = is_whole & (_ranks(self.n_bytes) < n_in_model)
        self.is_above = is_whole & ~self.is_model
        # For each row but the last: whether the next block begins at its end, and has its size.
        block_bytes = features.allocations.block_bytes[self.rows[:-1]]
        self.is_touched = np.diff(features.allocations.addr[self.rows]) == block_bytes
        self.is_equal = self.n_bytes[1:] == self.n_bytes[:-1]

    def equal_neighbours(self, lower: BoolColumn, upper: BoolColumn) -> int:
        """Count the touching pairs of one size, of these lower and upper blocks."""
        is_pair = self.is_touched & self.is_equal & lower[:-1] & upper[1:]
        return int(np.count_nonzero(is_pair))

    def unequal_neighbours(self, marked: BoolColumn) -> Int64Column:
        """Return a number for the two sizes of each other touching pair of marked blocks."""
        is_pair = self.is_touched & ~self.is_equal & marked[:-1] & marked[1:]
        factor = int(self.n_bytes.max(initial=0)) + 1
        return np.asarray((self.n_bytes[:-1] * factor + self.n_bytes[1:])[is_pair])


def states_beside_each_other(features: Features, rows: Int64Column, sizes: Sizes) -> float:
    """Return whether blocks lie as several states of each parameter do, or as a copy of the model.

    An optimizer makes the states of a parameter one after the other, so that more blocks have one
    of their size right above them than in the model. A copy has the model's sizes in their order.
    From -1, for a copy, to 1.
    """
    blocks = _Blocks(features, rows, sizes)
    n_model = np.count_nonzero(blocks.is_model)
    n_equal = blocks.equal_neighbours(blocks.is_model, blocks.is_model)
    n_runs = n_model - n_equal
    if n_runs < _LEAST_RUNS or blocks.n_per_parameter < _LEAST_BLOCKS:
        return 0.0
    # With a copy of the model, so many have an equal one above.
    n_with_copy = np.count_nonzero(blocks.is_above) - n_model - n_runs
    n_above = blocks.equal_neighbours(blocks.is_above, blocks.is_above)
    n_beside = n_above - n_equal - n_with_copy
    model_pairs = blocks.unequal_neighbours(blocks.is_model)
    pairs_above = blocks.unequal_neighbours(blocks.is_above)
    n_in_order = np.count_nonzero(is_among(pairs_above, distinct(model_pairs)))
    n_repeated = n_in_order / max(len(model_pairs), 1) - 1
    return float(min(max(n_beside / n_runs, 0.0), 1.0) - min(max(n_repeated, 0.0), 1.0))


def lies_in_order(features: Features, rows: Int64Column, sizes: Sizes) -> bool:
    """Return whether the lowest blocks of each size may be the weights.

    A model that was cast or replaced after states of it were made lies among these: then what would
    be states of one size lies below all that would be weights of another. Blocks from one pool are
    compared. States of one parameter lie beside each other, so that a weight seldom has an equal
    block beside it.
    """
    blocks = _Blocks(features, rows, sizes)
    if not blocks.equal_neighbours(blocks.is_model, blocks.is_above):
        return True
    return _share_below(blocks.n_bytes, blocks.is_model, blocks.is_above) <= _MOST_BELOW


def _share_below(
    n_bytes: Int64Column, is_weight: BoolColumn, is_state: BoolColumn
) -> float:
    """Return in which share of pairs of sizes a state of one lies below all weights of the other.

    The blocks are in order of addresses, those of each size are weights and states. Of a pair, the
    size whose weights have fewer bytes counts.
    """
    sizes, first_weights, counts = np.unique(
        n_bytes[is_weight], return_index=True, return_counts=True
    )
    _, first_states = np.unique(n_bytes[is_state], return_index=True)
    compared = np.argsort(-sizes * counts)[:_MOST_COMPARED]
    lowest_weights = rows_of(is_weight)[first_weights[compared]]
    lowest_states = rows_of(is_state)[first_states[compared]]
    weight_bytes = (sizes * counts)[compared]
    is_small = sizes[compared] <= SMALL_REQUEST_BYTES
    pair_bytes = np.minimum.outer(weight_bytes, weight_bytes) * np.equal.outer(
        is_small, is_small
    )
    np.fill_diagonal(pair_bytes, 0)
    bytes_below = pair_bytes[np.less.outer(lowest_states, lowest_weights)].sum()
    return float(bytes_below / max(pair_bytes.sum(), 1))


def is_beside_equal(features: Features, rows: Int64Column) -> BoolColumn:
    """Return whether a block has one of its size right above or below it, by address."""
    n_bytes = features.sizes[rows]
    steps = np.diff(features.allocations.addr[rows])
    is_pair = steps == features.allocations.block_bytes[rows[:-1]]
    is_pair &= n_bytes[1:] == n_bytes[:-1]
    return np.asarray(np.append(is_pair, False) | np.append(False, is_pair))


def _numbers_of_blocks(
    n_bytes: Int64Column, sizes: Sizes
) -> tuple[Int64Column, Int64Column]:
    """Return for each block the parameters of its size, and the blocks for each of them.

    0 where there are no whole number of these, or only the parameters.
    """
    unique_sizes, inverse, counts = np.unique(
        n_bytes, return_inverse=True, return_counts=True
    )
    parameters = np.array([sizes[size] for size in unique_sizes.tolist()], np.int64)
    number, remainder = np.divmod(counts, np.maximum(parameters, 1))
    number[(remainder > 0) | (parameters == 0) | (number == 1)] = 0
    return parameters[inverse], number[inverse]


def _usual(numbers: Int64Column, n_bytes: Int64Column) -> int:
    """Return the number of most bytes, if it is not 0; else -1."""
    unique_numbers, inverse = np.unique(numbers, return_inverse=True)
    total_bytes = np.bincount(inverse, n_bytes) * (unique_numbers > 0)
    return int(unique_numbers[total_bytes.argmax()]) if total_bytes.any() else -1


def _ranks(values: Int64Column) -> Int64Column:
    """Count for each entry the equal ones before it."""
    order = np.argsort(values, kind="stable")
    starts = run_starts(values[order])
    lengths = np.diff(np.append(starts, len(values)))
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return ranks


def _fact_counts(decided: Decided) -> dict[Category, Sizes]:
    """Count the blocks that facts have named, by size."""
    features = decided.features
    older = ~features.is_traced
    newer = features.is_traced & features.is_live_at_dump
    old_gradients = decided.has(Category.GRADIENT) & older
    counts = {Category.GRADIENT: counted(features.sizes[old_gradients])}
    for category in (Category.WEIGHT, Category.OPTIMIZER_STATE):
        is_category = decided.has(category)
        old_counts = counted(features.sizes[is_category & older])
        new_counts = counted(features.sizes[is_category & newer])
        # A step may replace its states: those before and those after are the same.
        counts[category] = old_counts | new_counts
    return counts


def layers_that_ran(decided: Decided) -> int:
    """Return what divides how often every line of modules allocates.

    Of the lines that do so repeatedly in a forward.
    """
    _, line_ids = _fullest_forward(decided.features)
    counts = np.bincount(line_ids)
    return int(np.gcd.reduce(counts[counts >= LEAST_REPEATED], initial=0))


def frozen_and_trained_layers(decided: Decided) -> tuple[int, int]:
    """Return how many layers, before or after the others, keep less for backward than these.

    The gradient of a weight needs the layer's input, which is not kept where it is not trained. Two
    lines show it at least. The first layer alone may have an input without a gradient.
    """
    features = decided.features
    rows, line_ids = _fullest_forward(features)
    order = np.lexsort((features.alloc[rows], line_ids))
    line_ids = line_ids[order]
    is_kept = features.reaches_backward[rows[order]]
    is_change = (line_ids[1:] == line_ids[:-1]) & (is_kept[1:] != is_kept[:-1])
    n_lines = int(line_ids.max(initial=-1)) + 1
    n_changes = np.bincount(line_ids[1:][is_change], minlength=n_lines)
    n_frozen = np.bincount(line_ids[~is_kept], minlength=n_lines)
    n_trained = np.bincount(line_ids[is_kept], minlength=n_lines)
    is_split = (n_changes == 1) & (np.minimum(n_frozen, n_trained) >= _LEAST_LAYERS)
    lines = Counter(plain_rows(n_frozen[is_split], n_trained[is_split]))
    layers, number = max(lines.items(), key=itemgetter(1), default=((0, 1), 0))
    return layers if number >= _LEAST_LINES else (0, 1)


def _fullest_forward(features: Features) -> tuple[Int64Column, Int64Column]:
    """Return what modules allocate in the forward with most of it; and a number for each line.

    A line allocates blocks of one size.
    """
    rows = rows_of(features.by_module)
    if not len(rows):
        return rows, rows
    outside = np.sort(features.alloc[features.outside])
    forward = np.searchsorted(outside, features.alloc[rows])
    rows = rows[forward == np.bincount(forward).argmax()]
    _, line_ids = number_groups(features.allocations.stack_id[rows], features.sizes[rows])
    return rows, line_ids
