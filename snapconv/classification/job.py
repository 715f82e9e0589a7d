"""A job as the recording shows it: open blocks, blocks that facts have named, parameters."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.conditions import saves
from snapconv.classification.decisions import Decided
from snapconv.classification.parameters import (
    LEAST_REPEATED,
    Parameters,
    Sizes,
    bytes_of,
    candidates,
    counted,
    is_training,
)
from snapconv.columns import Int64Column, number_groups, rows_of
from snapconv.phases.trace_phases import Optimizers, Phase

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
    optimizers: Optimizers
    is_training: bool
    saves: int
    has_step: bool
    infers: bool
    reserves_more: bool | None

    @property
    def sizes(self) -> Sizes:
        """Parameters by size."""
        return self.parameters.sizes

    @cached_property
    def has_gradients(self) -> bool:
        """Whether facts have named most gradients, and so all: what is open is none."""
        gradients = self.fact_counts[Category.GRADIENT]
        return 2 * bytes_of(gradients & self.sizes) > bytes_of(self.sizes)

    def n_from_facts(self, size: int) -> int:
        """Weights, gradients and states of a size that facts have named."""
        return sum(sizes[size] for sizes in self.fact_counts.values())

    def open_counts(self, size: int, counts: Iterable[int]) -> Counts:
        """Subtract what facts have named from the blocks of a size."""
        kinds_and_counts = zip(KINDS, counts, strict=True)
        weights, states, gradients = (
            max(0, n - self.fact_counts[kind][size]) for kind, n in kinds_and_counts
        )
        return weights, states, gradients

    def n_of_half(self, size: int) -> int:
        """Parameters of half a size."""
        return self.sizes[size // 2] if size % 2 == 0 else 0


def jobs(decided: Decided, rows: Int64Column) -> list[Job]:
    """Gather the evidence, once for each candidate for the parameters."""
    features = decided.features
    best, *alternatives = candidates(decided, rows)
    trains = is_training(decided)
    is_forward = features.in_forward | features.preexisting_in_forward
    job = Job(
        parameters=best,
        counts=counted(features.sizes[rows]),
        fact_counts=_fact_counts(decided),
        n_layers=layers_that_ran(decided),
        optimizers=features.phases.optimizers,
        is_training=trains,
        saves=decided.shared(saves),
        has_step=bool(np.any(features.phases.certain == Phase.OPTIMIZER)),
        infers=not trains and bool(is_forward.any()),
        reserves_more=features.reserves_more,
    )
    return [job, *(replace(job, parameters=parameters) for parameters in alternatives)]


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
    features = decided.features
    rows = rows_of(features.by_module)
    if not len(rows):
        return 0
    outside = np.sort(features.alloc[features.outside])
    forward = np.searchsorted(outside, features.alloc[rows])
    rows = rows[forward == np.bincount(forward).argmax()]
    _, group = number_groups(features.allocations.stack_id[rows], features.sizes[rows])
    counts = np.bincount(group)
    return int(np.gcd.reduce(counts[counts >= LEAST_REPEATED], initial=0))
