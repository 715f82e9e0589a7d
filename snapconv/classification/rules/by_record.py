"""User rules, and what a recorder wrote: the strongest evidence there is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, last_before
from snapconv.classification.rule import Decided, PipelineRule, Proposal, Reason, Rule, rule
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

PARAMETER = Reason("recorded-as-parameter", "it was the memory of a parameter of the model")
BUFFER = Reason("recorded-as-buffer", "it was the memory of a buffer of the model")
GRADIENT = Reason("recorded-as-gradient", "it was the memory of a gradient")
STATE = Reason("recorded-as-optimizer-state", "it was the memory of an optimizer state")
INPUT = Reason("recorded-as-input", "the model was called with it, and no module made it")
GIVEN = Reason(
    "recorded-as-saved-input",
    "autograd saved it, and it is an input: made by no module and by no operation that has a gradient",
)
SAVED = Reason("recorded-as-saved", "autograd saved it for backward, and forward did not free it again")
COPY = Reason("recorded-as-copy", "`deepcopy` made it from a weight or from a state")
LIKE_INPUTS = Reason(
    "made-by-code-of-inputs",
    "kept, and made by code that otherwise makes only inputs: the next batch",
)

# How torch names its integral types.
_INTEGRAL = ("int", "uint", "bool")


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


def _recorded(features: Features, rows_of: Callable[[RecordedMatches], Int64Column]) -> BoolColumn:
    """The allocations that a recorder named; none in a file without a recorder's metadata."""
    if features.recorded is None:
        return np.zeros(len(features.alloc), np.bool_)
    rows = rows_of(features.recorded)
    return features.mask(rows[rows >= 0])


def _was_buffer(recorded: RecordedMatches) -> BoolColumn:
    """Whether an earlier place of a parameter was that of a buffer."""
    is_buffer, owner = recorded.metadata.parameters.is_buffer, recorded.metadata.earlier.parameter
    return np.append(is_buffer, np.False_)[owner]


@rule(PARAMETER, Category.WEIGHT, Evidence.METADATA)
def recorded_parameter(features: Features, _: Decided) -> BoolColumn:
    """It was the memory of a parameter."""
    return _recorded(features, lambda found: found.parameters[~found.metadata.parameters.is_buffer])


@rule(BUFFER, Category.WEIGHT, Evidence.METADATA)
def recorded_buffer(features: Features, _: Decided) -> BoolColumn:
    """It was the memory of a buffer."""
    return _recorded(features, lambda found: found.parameters[found.metadata.parameters.is_buffer])


@rule(PARAMETER, Category.WEIGHT, Evidence.METADATA)
def recorded_earlier_parameter(features: Features, _: Decided) -> BoolColumn:
    """A parameter was there before it got other memory."""
    return _recorded(features, lambda found: found.earlier[~_was_buffer(found)])


@rule(BUFFER, Category.WEIGHT, Evidence.METADATA)
def recorded_earlier_buffer(features: Features, _: Decided) -> BoolColumn:
    """A buffer was there before it got other memory."""
    return _recorded(features, lambda found: found.earlier[_was_buffer(found)])


@rule(GRADIENT, Category.GRADIENT, Evidence.METADATA)
def recorded_gradient(features: Features, _: Decided) -> BoolColumn:
    """It was the memory of the gradient of a parameter."""
    return _recorded(features, lambda found: found.gradients)


@rule(STATE, Category.OPTIMIZER_STATE, Evidence.METADATA)
def recorded_state(features: Features, _: Decided) -> BoolColumn:
    """It was the memory of a state of an optimizer."""
    return _recorded(features, lambda found: found.states)


@rule(INPUT, Category.INPUT, Evidence.METADATA)
def recorded_input(features: Features, _: Decided) -> BoolColumn:
    """A model was called with it. What a module made is no input."""
    return _recorded(features, lambda found: found.inputs) & ~features.made_through(Role.MODULE_CALL)


def _without_history(found: RecordedMatches, *, is_integral: bool | None = None) -> Int64Column:
    """What was saved though nothing with a gradient computed it; of all types, or of integers alone."""
    saved = found.metadata.saved
    where = saved.without_history.copy()
    if is_integral is not None:
        where &= np.array([dtype.startswith(_INTEGRAL) == is_integral for dtype in saved.dtypes], np.bool_)
    rows: Int64Column = found.saved[where]
    return rows


@rule(GIVEN, Category.INPUT, Evidence.METADATA)
def recorded_target(features: Features, _: Decided) -> BoolColumn:
    """Autograd saved it, nothing with a gradient computed it, and it was there before forward: a target.

    What was computed after a forward of this iteration, such as a teacher's answer, is none.
    """
    saved = _recorded(features, _without_history)
    if not saved.any():
        return saved
    certain = features.phases.certain
    last_forward = last_before(np.flatnonzero(certain == Phase.FORWARD), features.alloc)
    comes_first = last_forward <= last_before(features.phases.events_of_training, features.alloc)
    from_outside = features.outside & (features.from_nothing | comes_first)
    return np.asarray(saved & from_outside & ~features.made_through(Role.MODULE_CALL))


@rule(GIVEN, Category.INPUT, Evidence.METADATA)
def recorded_labels(features: Features, _: Decided) -> BoolColumn:
    """The same of integers that were copied to the device between the model and its loss."""
    saved = _recorded(features, lambda found: _without_history(found, is_integral=True))
    in_forward = features.alloc_phase == Phase.FORWARD
    by_copy = features.made_through(Role.COPY) & ~features.made_through(Role.MODULE_CALL)
    return np.asarray(saved & in_forward & by_copy)


@rule(SAVED, Category.ACTIVATION, Evidence.METADATA)
def recorded_saved(features: Features, _: Decided) -> BoolColumn:
    """Autograd saved it, and its own forward did not free it again."""
    return _recorded(features, lambda found: found.saved) & ~features.is_freed_in_own_forward


def _copies_of(features: Features, decided: Decided, category: Category) -> BoolColumn:
    """What was copied from allocations of a category, and from such copies."""
    found = np.zeros(len(features.alloc), np.bool_)
    if features.recorded is None:
        return found
    copies, originals = features.recorded.copies, features.recorded.originals
    is_original = decided.has(category)
    order = np.argsort(features.recorded.metadata.copies.memory.recorded_us, kind="stable")
    for original, copy in np.column_stack((originals, copies))[order].tolist():
        if original >= 0 and copy >= 0:
            found[copy] |= bool(is_original[original] or found[original])
    return found


@rule(COPY, Category.WEIGHT, Evidence.METADATA)
def copied_weight(features: Features, decided: Decided) -> BoolColumn:
    """A copy of a weight: an averaged model, a target network, the best weights so far."""
    return _copies_of(features, decided, Category.WEIGHT)


@rule(COPY, Category.OPTIMIZER_STATE, Evidence.METADATA)
def copied_state(features: Features, decided: Decided) -> BoolColumn:
    """A copy of an optimizer's state."""
    return _copies_of(features, decided, Category.OPTIMIZER_STATE)


@rule(LIKE_INPUTS, Category.INPUT, Evidence.METADATA)
def next_batch(features: Features, decided: Decided) -> BoolColumn:
    """What stays and was made by the very code that made recorded inputs, and nothing else.

    A loop may fetch the next batch before backward: it is there, unused, when a recording ends.
    """
    if features.recorded is None:
        return np.zeros(len(features.alloc), np.bool_)
    stack = features.allocations.stack_id
    is_input = decided.has(Category.INPUT)
    of_inputs = distinct(stack[features.has_stack & is_input])
    of_others = distinct(stack[features.has_stack & ~is_input & ~decided.is_open])
    like_inputs = is_among(stack, np.setdiff1d(of_inputs, of_others))
    return np.asarray(like_inputs & features.is_traced & features.is_live_at_dump)


RECORDED: tuple[Rule, ...] = (
    recorded_parameter,
    recorded_buffer,
    recorded_earlier_parameter,
    recorded_earlier_buffer,
    recorded_gradient,
    recorded_state,
    recorded_input,
    recorded_target,
    recorded_labels,
    recorded_saved,
    copied_weight,
    copied_state,
    next_batch,
)
USER_RULES: tuple[PipelineRule, ...] = (UserRulesFirst(),)
