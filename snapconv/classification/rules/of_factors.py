"""What preconditioners keep for the layers of a model."""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.layer_factors import factors_of_layers
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn

SQUARES = Reason(
    "squares-of-the-sides-of-layers",
    "kept through a backward or the whole trace, and square matrices whose sides are, in pairs, those of "
    "most weights: the factors of a preconditioner, or their inverses",
)


@rule(SQUARES, Category.OPTIMIZER_STATE, Evidence.SIZES)
def squares_of_layers(features: Features, decided: Decided) -> BoolColumn:
    """The factors of K-FAC and of Shampoo, of whatever made them: hooks, or a step of the program's own."""
    return factors_of_layers(features, decided)


OF_FACTORS: tuple[PipelineRule, ...] = (squares_of_layers,)
