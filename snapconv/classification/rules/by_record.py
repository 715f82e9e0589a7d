"""What a user's own rules and a recorder say: the strongest evidence there is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.analysis.metadata import Joined
from snapconv.analysis.rules import Role
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import BoolColumn, Features, Int64Column
from snapconv.classification.rule import Decided, PipelineRule, Proposal, Reason, Rule, rule

PARAMETER = Reason("noted-as-parameter", "a parameter of the model lay there")
BUFFER = Reason("noted-as-buffer", "a buffer of the model lay there")
GRADIENT = Reason("noted-as-gradient", "the gradient of a parameter lay there")
STATE = Reason("noted-as-optimizer-state", "a state of an optimizer lay there")
INPUT = Reason("noted-as-input", "the model was called with it, and no module made it")
SAVED = Reason("noted-as-saved", "autograd saved it for backward")


@dataclass(frozen=True, slots=True)
class UserRulesFirst:
    """The user's own rules, in the order in which they were given."""

    name: str = "user_rules"

    def proposals(self, features: Features, decided: Decided) -> Iterator[Proposal]:
        """What each of the user's rules that names a category matches."""
        user = features.user_rules
        for number, own in enumerate(user.rules):
            if own.category is not None:
                where = user.matches(
                    number, features.allocations, free_sites_known=features.phases.free_sites_known
                )
                yield Proposal(where, own.category, Evidence.USER_RULE, own.slug)


def _recorded(features: Features, rows_of: Callable[[Joined], Int64Column]) -> BoolColumn:
    """The allocations that a recorder named; none in a file without a recorder's metadata."""
    if features.recorded is None:
        return np.zeros(len(features.alloc), np.bool_)
    rows = rows_of(features.recorded)
    return features.mask(rows[rows >= 0])


def _was_buffer(recorded: Joined) -> BoolColumn:
    """Whether an earlier place of a parameter was that of a buffer."""
    is_buffer, owner = recorded.metadata.parameters.is_buffer, recorded.metadata.earlier.parameter
    if not len(is_buffer):
        return np.asarray(owner >= 0)
    return np.asarray(is_buffer[owner] & (owner >= 0))


@rule(PARAMETER, Category.WEIGHT, Evidence.METADATA)
def recorded_parameter(features: Features, _: Decided) -> BoolColumn:
    """A parameter lay there."""
    return _recorded(features, lambda found: found.parameters[~found.metadata.parameters.is_buffer])


@rule(BUFFER, Category.WEIGHT, Evidence.METADATA)
def recorded_buffer(features: Features, _: Decided) -> BoolColumn:
    """A buffer lay there."""
    return _recorded(features, lambda found: found.parameters[found.metadata.parameters.is_buffer])


@rule(PARAMETER, Category.WEIGHT, Evidence.METADATA)
def recorded_earlier_parameter(features: Features, _: Decided) -> BoolColumn:
    """A parameter lay there before it was given other memory."""
    return _recorded(features, lambda found: found.earlier[~_was_buffer(found)])


@rule(BUFFER, Category.WEIGHT, Evidence.METADATA)
def recorded_earlier_buffer(features: Features, _: Decided) -> BoolColumn:
    """A buffer lay there before it was given other memory."""
    return _recorded(features, lambda found: found.earlier[_was_buffer(found)])


@rule(GRADIENT, Category.GRADIENT, Evidence.METADATA)
def recorded_gradient(features: Features, _: Decided) -> BoolColumn:
    """The gradient of a parameter lay there."""
    return _recorded(features, lambda found: found.gradients)


@rule(STATE, Category.OPTIMIZER_STATE, Evidence.METADATA)
def recorded_state(features: Features, _: Decided) -> BoolColumn:
    """A state of an optimizer lay there."""
    return _recorded(features, lambda found: found.states)


@rule(INPUT, Category.INPUT, Evidence.METADATA)
def recorded_input(features: Features, _: Decided) -> BoolColumn:
    """A model was called with it. What a module made is no input."""
    return _recorded(features, lambda found: found.inputs) & ~features.made_through(Role.MODULE_CALL)


@rule(SAVED, Category.ACTIVATION, Evidence.METADATA)
def recorded_saved(features: Features, _: Decided) -> BoolColumn:
    """Autograd saved it for backward."""
    return _recorded(features, lambda found: found.saved)


RECORDED: tuple[Rule, ...] = (
    recorded_parameter,
    recorded_buffer,
    recorded_earlier_parameter,
    recorded_earlier_buffer,
    recorded_gradient,
    recorded_state,
    recorded_input,
    recorded_saved,
)
USER_RULES: tuple[PipelineRule, ...] = (UserRulesFirst(),)
