"""Growth of memory with the batch: which allocations do, and how large they are at another batch.

Categories decide, but for what forward computes from weights alone: their copies, weights that a
parametrization computes, and masks over positions have no side that is the batch.
"""

import math
from itertools import accumulate
from operator import mul

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.classification.features import at
from snapconv.columns import BoolColumn, Int64Column, distinct, has_code, is_among, rows_of
from snapconv.hypotheses.allocator_calls import MOST_BYTES
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import Role

# Allocations of these in the optimizer's step do not grow.
GROWING = categories_with(Trait.GROWS)
GROWS_WITH_BATCH = (
    "activations, inputs, caches of keys and values and temporaries grow with the "
    "batch; weights, what is computed from them alone, gradients and optimizer states do not"
)
# What autograd saves for a layer and has so many sides is no sum and no statistic.
_LEAST_SIDES = 2


def scaled_requests(analysis: DeviceAnalysis, scale: float) -> Int64Column:
    """Estimate the requests of all allocations at ``scale`` times the batch, of 1 byte or more."""
    sizes = analysis.features.sizes
    scaled = np.ceil(np.where(_grows(analysis), sizes * scale, sizes) - 1e-6)
    limited = np.clip(scaled, 1, MOST_BYTES)
    return np.where(sizes > 0, limited, 0).astype(np.int64)


def batch_of(analysis: DeviceAnalysis) -> int:
    """Return the first dimension of all recorded inputs; 0 where it is unknown, or not of all."""
    sizes = {shape[0] if shape else 0 for shape in _input_shapes(analysis.recorded)}
    return sizes.pop() if len(sizes) == 1 else 0


def _input_shapes(recorded: RecordedMatches | None) -> list[tuple[int, ...]]:
    """Return the shapes of the recorded inputs of one device."""
    if recorded is None:
        return []
    rows = rows_of(recorded.inputs >= 0).tolist()
    return [recorded.metadata.inputs.shapes[row] for row in rows]


def _grows(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the allocations that grow with the batch."""
    features = analysis.features
    category = analysis.classification.category
    phase = at(analysis.phases.phase, features.alloc)
    is_fixed = _saved_without_batch(analysis)
    is_fixed |= _is_like(analysis, is_fixed)
    is_fixed |= features.in_forward & features.made_through(Role.PARAMETRIZED)
    grows = is_among(category, GROWING) & ~has_code(phase, Phase.OPTIMIZER) & ~is_fixed
    # Backward makes the gradient of a copy or of a computed weight too, as large as it is.
    is_copy = is_fixed | (has_code(category, Category.WEIGHT) & features.in_forward)
    fixed_sizes = np.setdiff1d(
        distinct(features.sizes[is_copy & features.reaches_backward]),
        distinct(features.sizes[grows & ~features.by_engine]),
    )
    return grows & ~(features.by_engine & is_among(features.sizes, fixed_sizes))


def _is_like(analysis: DeviceAnalysis, is_fixed: BoolColumn) -> BoolColumn:
    """Mark what forward made besides the fixed allocations, by their lines and in their sizes.

    The first layer computes its weight by the same line, and saves none, as its input needs no
    gradient. A size that saved tensors which may grow have as well shows nothing.
    """
    features = analysis.features
    if features.recorded is None:
        return is_fixed
    saved = features.recorded.saved
    may_grow = features.mask(saved[saved >= 0]) & ~is_fixed
    sizes = np.setdiff1d(features.sizes[is_fixed], features.sizes[may_grow])
    line = features.lines_of(analysis.allocations.stack_id)
    is_of_line = is_among(line, distinct(line[is_fixed])) & (line >= 0)
    return features.in_forward & is_of_line & is_among(features.sizes, sizes)


def _saved_without_batch(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark recorded saved tensors whose shapes show that no side is the batch.

    A side as long as the batch, or as the batch times further sides of an input, shows nothing.
    """
    recorded = analysis.recorded
    marked = np.zeros(len(analysis.allocations), np.bool_)
    input_shapes = _input_shapes(recorded)
    batch = batch_of(analysis)
    if recorded is None or batch <= 1:
        return marked
    batch_sides = {side for shape in input_shapes for side in accumulate(shape, mul)}
    weight_shapes = WeightShapes(recorded)
    saved = recorded.metadata.saved
    rows = rows_of(recorded.saved >= 0)
    n_held = analysis.features.sizes[recorded.saved[rows]]
    for row, n_bytes in zip(rows.tolist(), n_held.tolist(), strict=True):
        shape = saved.shapes[row]
        # Fewer bytes in memory than in the tensor: it is expanded, as masks are over the batch.
        is_fixed = n_bytes * batch <= saved.n_bytes[row]
        if len(shape) >= _LEAST_SIDES and not batch_sides.intersection(shape):
            is_fixed |= weight_shapes.has(saved.modules[row], shape)
            is_fixed |= bool(saved.without_history[row]) and _is_square(shape)
        marked[recorded.saved[row]] |= is_fixed
    return marked


class WeightShapes:
    """The shapes of weights, also transposed, by the module that holds them, or their holder.

    A parametrized layer has its weight in modules inside it.
    """

    def __init__(self, recorded: RecordedMatches) -> None:
        parameters = recorded.metadata.parameters
        self._sides: set[tuple[str, tuple[int, ...]]] = set()
        for name, shape in zip(parameters.names, parameters.shapes, strict=True):
            if len(shape) >= _LEAST_SIDES:
                holder = name.rpartition(".")[0]
                outer = holder.partition(".parametrizations.")[0]
                sides = tuple(sorted(shape))
                self._sides |= {(holder, sides), (outer, sides)}

    def has(self, module: str, shape: tuple[int, ...]) -> bool:
        """Return whether a module has a weight with these sides, in any order."""
        return (module, tuple(sorted(shape))) in self._sides


def _is_square(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is that of one mask over pairs of positions."""
    return shape[-1] == shape[-2] and math.prod(shape[:-2]) == 1
