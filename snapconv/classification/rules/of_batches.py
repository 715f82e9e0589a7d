"""Data that lies on the device before the first batch: what batches are drawn from.

A buffer of what an agent saw, a rollout, a set of pictures: several tensors with a row for each sample.
"""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.data_on_device import drawn_from, only_source_of_batches
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn

DRAWN_FROM = Reason(
    "as-many-times-as-large-as-batches",
    "kept since before the first forward or backward, of several sizes, each as many times as large as rows "
    "that are chosen by number outside of modules: the data that batches are drawn from",
)
ONLY_SOURCE = Reason(
    "all-that-a-batch-can-be-drawn-from",
    "pre-existing, and of the only size on the device that is larger than rows which are chosen by number "
    "outside of modules: the data that these are drawn from",
)


@rule(DRAWN_FROM, Category.INPUT, Evidence.SIZES)
def drawn_from_in_batches(features: Features, decided: Decided) -> BoolColumn:
    """Replay memories, rollouts, and data sets that fit into memory."""
    return drawn_from(features, decided)


@rule(ONLY_SOURCE, Category.INPUT, Evidence.SIZES)
def only_source(features: Features, decided: Decided) -> BoolColumn:
    """One table of samples, or several of one size, where everything else is known to be of the model."""
    return only_source_of_batches(features, decided)


OF_BATCHES: tuple[PipelineRule, ...] = (drawn_from_in_batches, only_source)
