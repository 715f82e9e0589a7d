"""What an optimizer keeps for each dimension of a weight: it has another size than any gradient."""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.factored_states import kept_for_dimensions
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn

FOR_DIMENSIONS = Reason(
    "as-often-as-the-step-makes-it",
    "pre-existing, of sizes that no gradient has and a line of the optimizer's step makes, as often or a "
    "whole number of times as often: kept for each dimension of a weight",
)


@rule(FOR_DIMENSIONS, Category.OPTIMIZER_STATE, Evidence.SIZES)
def kept_for_each_dimension(features: Features, decided: Decided) -> BoolColumn:
    """Preconditioners, and factors of what other optimizers keep whole."""
    return decided.shared(kept_for_dimensions, features)


BY_DIMENSIONS: tuple[PipelineRule, ...] = (kept_for_each_dimension,)
