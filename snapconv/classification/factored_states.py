"""Which blocks from before the trace an optimizer keeps for each dimension of a weight.

Shampoo and SOAP keep a square matrix for every dimension, Adafactor a vector, GaLore moments of fewer rows.
None has a gradient's size. But every step computes what is added to them, on one line for all parameters: of
the same sizes, and as often, or once for a whole number of them.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features, of_fullest
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import SMALL_BYTES, by_size, counted
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped
from snapconv.phases.trace_phases import Phase

# Of one size, the step's temporaries may agree with frozen weights by chance.
_LEAST_SIZES = 2
_NEARLY = 0.9

_Counts = Counter[int]


def kept_for_dimensions(features: Features, decided: Decided) -> BoolColumn:
    """As many blocks of a size as fit the line of the step that explains most bytes."""
    sizes, is_state = features.sizes, decided.has(Category.OPTIMIZER_STATE)
    rows = np.flatnonzero(features.unrecorded & (decided.is_open | is_state))
    found = np.zeros(len(sizes), np.bool_)
    gradients = _gradients(features, decided)
    if not len(rows) or not gradients:
        return found
    n_kept = counted(sizes[rows])
    fitting = (_explained(made, n_kept, gradients) for made in made_in_step(features))
    most = max(fitting, key=_total, default=_Counts())
    for size, members in by_size(rows, sizes):
        # Models are built before the first step, and so their weights come first.
        is_open = members[~is_state[members]]
        n_of_size = most[size] - (len(members) - len(is_open))
        found[is_open[len(is_open) - n_of_size :]] = True  # none where fewer are left than are decided
    return found


def sizes_made_in_steps(features: Features) -> Int64Column:
    """The sizes of what the steps of the trace allocate."""
    return distinct(features.sizes[_in_step(features)])


def made_in_step(features: Features) -> Iterator[_Counts]:
    """For every line of a step, how often it makes each size, in the iteration in which it makes most."""
    rows = np.flatnonzero(_in_step(features) & features.has_stack)
    for of_line in grouped(rows, features.allocations.stack_id):
        yield counted(features.sizes[of_fullest(of_line, features.iteration, features.sizes)])


def _in_step(features: Features) -> BoolColumn:
    return np.asarray(features.is_traced & (features.alloc_phase == Phase.OPTIMIZER))


def _gradients(features: Features, decided: Decided) -> _Counts:
    """How often each size is one of a gradient: where gradients stay from step to step, any number of times.

    Backward then makes temporaries of their sizes, which it adds to them.
    """
    rows = np.flatnonzero(decided.has(Category.GRADIENT))
    if not len(rows):
        summed = features.by_engine & decided.has(Category.TEMPORARY)
        return _Counts(dict.fromkeys(distinct(features.sizes[summed]).tolist(), len(features.sizes)))
    return counted(features.sizes[of_fullest(rows, features.iteration, features.sizes)])


def _explained(made: _Counts, n_kept: _Counts, gradients: _Counts) -> _Counts:
    """How many blocks of each size the line explains: as often as of the sizes with fewest for each.

    Beside those of another size may be frozen weights. A line that makes gradients in full precision explains
    nothing: weights are kept in it too.
    """
    own = {size: n for size, n in made.items() if size not in gradients}
    if not own or _is_in_full_precision(made, gradients):
        return _Counts()
    each = min(n_kept[size] / n for size, n in own.items())
    if each % 1:
        return _Counts()
    explained = {size: int(each) * n for size, n in made.items()}
    fitting = [size for size in own if n_kept[size] == explained[size]]
    n_bytes, fitting_bytes = (sum(size * made[size] for size in sizes) for sizes in (own, fitting))
    if sum(size >= SMALL_BYTES for size in fitting) < _LEAST_SIZES or 2 * fitting_bytes < n_bytes:
        return _Counts()
    return _Counts({size: n for size, n in explained.items() if n_kept[size] >= n + gradients[size]})


def _is_in_full_precision(made: _Counts, gradients: _Counts) -> bool:
    both = Counter(made) & Counter({2 * size: n for size, n in gradients.items()})
    return _total(both) >= _NEARLY * _total(made)


def _total(sizes: _Counts) -> int:
    return sum(size * n for size, n in sizes.items())
