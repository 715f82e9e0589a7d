"""Lines of a program that make blocks of the sizes that the layers of a model have.

In one pass they make many, of several sizes, some of which more often than others. A batch has fewer tensors,
and a list of batches has each of them equally often.
"""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.columns import BoolColumn, distinct, is_among, run_starts

# The tensors of a batch that share a line: ids, masks and labels of two sequences, and some more.
_MOST_IN_BATCH = 8
# Of sizes that are repeated: one may be chance.
_LEAST_SIZES = 2


def made_as_layers(features: Features, _: Decided) -> BoolColumn:
    """What one stack outside of modules makes in one iteration, or had made before the trace.

    All that it makes there, if what is in use when it makes the last of it has such sizes.
    """
    rows = np.flatnonzero((features.outside | features.preexisting_outside) & ~features.has_no_frames)
    # One number for stack and iteration, which may be -1.
    where = features.allocations.stack_id[rows].astype(np.int64) * (features.phases.n_iterations + 1)
    _, group = np.unique(where + features.iteration[rows], return_inverse=True)
    last = np.full(len(rows), -1, np.int64)
    np.maximum.at(last, group, features.alloc[rows])
    in_use = np.flatnonzero(features.end[rows] > last[group])
    in_use = in_use[np.lexsort((features.sizes[rows[in_use]], group[in_use]))]
    sizes, groups = features.sizes[rows[in_use]], group[in_use]
    # Where a group begins, or another size of it.
    begins = distinct(np.concatenate((run_starts(sizes), run_starts(groups))))
    of_pair, n_times = groups[begins], np.diff(begins, append=len(in_use))
    n_made = np.bincount(of_pair, n_times, minlength=len(rows))
    n_repeated = np.bincount(of_pair, n_times > 1, minlength=len(rows))
    most, least = np.zeros(len(rows), np.int64), np.full(len(rows), len(rows))
    np.maximum.at(most, of_pair, n_times)
    np.minimum.at(least, of_pair, n_times)
    fits = (n_made > _MOST_IN_BATCH) & (n_repeated >= _LEAST_SIZES) & (most > least)
    return features.mask(rows[fits[group]])


def surely_as_layers(features: Features, decided: Decided) -> BoolColumn:
    """Of that, without C++ frames, only what is as large as weights.

    A batch may have many columns, or many boxes of each picture, which one line copies to the device.
    """
    made = decided.shared(made_as_layers, features)
    if features.has_cpp:
        return made
    of_model = decided.has(Category.WEIGHT) | features.unrecorded
    return made & is_among(features.sizes, distinct(features.sizes[of_model]))
