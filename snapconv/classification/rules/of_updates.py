"""Weights that a program computes from others, and what optimizers of two steps keep between them."""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.functional_updates import functional_updates
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.two_step_updates import kept_between_two_steps
from snapconv.columns import BoolColumn

COMPUTED = Reason(
    "one-for-every-gradient-and-in-a-graph",
    "computed between two backwards by a line that makes one for every gradient, and a later backward goes "
    "through it: fast weights",
    uses_phases=True,
)
DIFFERENTIATED = Reason(
    "gradient-that-is-differentiated",
    "made by a backward that a later one goes through, and not by it: used to compute fast weights",
    uses_phases=True,
)
BETWEEN_STEPS = Reason(
    "one-for-every-gradient-between-two-steps",
    "computed once between the two backwards of an iteration by a line that makes one for every gradient, "
    "and kept into the step after the second: how far the weights were moved",
    uses_phases=True,
)


@rule(COMPUTED, Category.ACTIVATION, Evidence.LIFETIME)
def fast_weights(features: Features, decided: Decided) -> BoolColumn:
    """Weights that a step of functions computes, and that the next forward is given."""
    return decided.shared(functional_updates, features).computed


@rule(DIFFERENTIATED, Category.ACTIVATION, Evidence.LIFETIME)
def differentiated_gradients(features: Features, decided: Decided) -> BoolColumn:
    """The results of the inner backward, however they are freed."""
    return decided.shared(functional_updates, features).differentiated


@rule(BETWEEN_STEPS, Category.OPTIMIZER_STATE, Evidence.LIFETIME)
def kept_between_steps(features: Features, decided: Decided) -> BoolColumn:
    """What is added to the weights before the second forward, and subtracted after its backward."""
    return decided.shared(kept_between_two_steps, features)


OF_UPDATES: tuple[PipelineRule, ...] = (fast_weights, differentiated_gradients, kept_between_steps)
