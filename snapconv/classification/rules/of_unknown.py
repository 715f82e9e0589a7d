"""What is known of allocations whose purpose nothing shows: that the program kept them all the time."""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn

PERSISTENT = Reason(
    "persistent-since-before-the-recording",
    "there before the first event and at the dump; only its line, if it has one, may show what it is for",
)


@rule(PERSISTENT, Category.UNKNOWN, Evidence.NONE)
def persistent(features: Features, decided: Decided) -> BoolColumn:
    """Weights, states and data alike: a purpose would be a guess."""
    return decided.is_open & features.lasts_throughout


OF_UNKNOWN: tuple[PipelineRule, ...] = (persistent,)
