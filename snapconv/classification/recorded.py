"""The strongest evidence: the user's own rules, and what a recorder wrote into the file."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.classification.atoms import before_this_forward
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Condition, Decided, Fact, Proposal, judged
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

# How torch names its integral types.
_INTEGRAL = ("int", "uint", "bool")
# Fewer tensors, or of one size, may agree with those of parameters by chance.
_LEAST_PARAMETERS, _LEAST_SIZES = 4, 2


@dataclass(frozen=True, slots=True)
class UserRulesFirst:
    """The stage of the user's own rules, in the order in which they were given."""

    name: str = "user_rules"

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Yield what each of the user's rules that names a category matches."""
        features = decided.features
        user = features.user_rules
        stack = features.allocations.stack_id
        for own, has in zip(user.rules, user.has, strict=True):
            yield Proposal(np.append(has, np.False_)[stack], own.category, Evidence.USER_RULE, own.slug)


def _matches(decided: Decided, rows_of: Callable[[RecordedMatches], Int64Column]) -> BoolColumn:
    """Return the allocations that a recorder named; none in a file without a recorder's metadata."""
    recorded = decided.features.recorded
    if recorded is None:
        return np.zeros(len(decided.category), np.bool_)
    rows = rows_of(recorded)
    return decided.features.mask(rows[rows >= 0])


def _parameters(*, is_buffer: bool) -> Condition:
    """Find the memory of parameters or of buffers, or their memory before they got other memory."""

    def find(decided: Decided) -> BoolColumn:
        def rows_of(found: RecordedMatches) -> Int64Column:
            of_model = found.metadata.parameters.is_buffer
            earlier = np.append(of_model, np.False_)[found.metadata.earlier.parameter]
            now, before = found.parameters[of_model == is_buffer], found.earlier[earlier == is_buffer]
            return np.concatenate((now, before))

        return _matches(decided, rows_of)

    return Condition("recorded_buffer" if is_buffer else "recorded_parameter", find)


@judged
def recorded_gradient(decided: Decided) -> BoolColumn:
    """Find the memory of the gradient of a parameter."""
    return _matches(decided, lambda found: found.gradients)


@judged
def recorded_state(decided: Decided) -> BoolColumn:
    """Find the memory of a state of an optimizer."""
    return _matches(decided, lambda found: found.states)


@judged
def recorded_input(decided: Decided) -> BoolColumn:
    """Find what a model was called with; what a module made is no input."""
    made = decided.features.made_through(Role.MODULE_CALL)
    return _matches(decided, lambda found: found.inputs) & ~made


@judged
def recorded_target(decided: Decided) -> BoolColumn:
    """Autograd saved it, nothing with a gradient computed it, and it was there before forward: a target.

    What was computed after a forward of this iteration, such as a teacher's answer, is none. But integers may
    be copied to the device between the model and its loss.
    """
    features = decided.features
    saved = _matches(decided, _without_history)
    if not saved.any():
        return saved
    from_outside = features.outside & (features.from_nothing | before_this_forward.of(decided))
    labels = _matches(decided, lambda found: _without_history(found, is_integral=True))
    labels &= (features.alloc_phase == Phase.FORWARD) & features.made_through(Role.COPY)
    return ((saved & from_outside) | labels) & ~features.made_through(Role.MODULE_CALL)


def _without_history(found: RecordedMatches, *, is_integral: bool = False) -> Int64Column:
    """Find what was saved though nothing with a gradient computed it; of integers alone, if so."""
    saved = found.metadata.saved
    where = saved.without_history.copy()
    if is_integral:
        where &= np.array([dtype.startswith(_INTEGRAL) for dtype in saved.dtypes], np.bool_)
    rows: Int64Column = found.saved[where]
    return rows


@judged
def recorded_saved(decided: Decided) -> BoolColumn:
    """Autograd saved it, and its own forward did not free it again."""
    return _matches(decided, lambda found: found.saved) & ~decided.features.is_freed_in_own_forward


def _copies_of(category: Category) -> Condition:
    """Find what was copied from allocations of a category, and from such copies."""

    def find(decided: Decided) -> BoolColumn:
        found, recorded = np.zeros(len(decided.category), np.bool_), decided.features.recorded
        if recorded is None:
            return found
        is_original = decided.has(category)
        order = np.argsort(recorded.metadata.copies.recorded_us, kind="stable")
        for original, copy in np.column_stack((recorded.originals, recorded.copies))[order].tolist():
            if original >= 0 and copy >= 0:
                found[copy] |= bool(is_original[original] or found[original])
        return found

    return Condition(f"copy_of_{category.label}", find)


@judged
def like_inputs(decided: Decided) -> BoolColumn:
    """Find what stays and was made by the very code that made recorded inputs, and nothing else."""
    features = decided.features
    if features.recorded is None:
        return np.zeros(len(features.alloc), np.bool_)
    stack, is_input = features.allocations.stack_id, decided.has(Category.INPUT)
    of_inputs = distinct(stack[features.has_stack & is_input])
    of_others = distinct(stack[features.has_stack & ~is_input & ~decided.is_open])
    alike = is_among(stack, np.setdiff1d(of_inputs, of_others))
    return alike & features.is_traced & features.is_live_at_dump


def _attribute(*, is_written: bool) -> Condition:
    def find(decided: Decided) -> BoolColumn:
        def rows_of(found: RecordedMatches) -> Int64Column:
            rows: Int64Column = found.attributes[found.metadata.attributes.is_written == is_written]
            return rows

        return _matches(decided, rows_of) & decided.features.outside

    return Condition("written_attribute" if is_written else "constant_attribute", find)


@judged
def zeros_for_parameters(decided: Decided) -> BoolColumn:
    """Find what a line fills with zeros for every parameter of a list, and keeps: an optimizer's moments.

    Or twice as large, where the model is in half precision. For optimizers that are none of torch's.
    """
    features = decided.features
    found = np.zeros(len(features.alloc), np.bool_)
    if features.recorded is None:
        return found
    parameters = features.recorded.metadata.parameters
    of_model = Counter(parameters.n_bytes[~parameters.is_buffer].tolist())
    wanted = of_model, Counter({2 * size: n for size, n in of_model.items()})
    kept = features.outside & features.is_live_at_dump & decided.is_open & features.made_through(Role.ZEROS)
    for made in grouped(np.flatnonzero(kept), features.allocations.stack_id):
        sizes = Counter(features.sizes[made].tolist())
        is_list = len(made) >= _LEAST_PARAMETERS and len(sizes) >= _LEAST_SIZES
        found[made] = is_list and any(sizes <= of_list for of_list in wanted)
    return found


_COPY = "recorded-as-copy", "`deepcopy` made it from a weight or from a state"
_ATTRIBUTE = (
    "recorded-as-attribute",
    "a plain attribute of a module: if written since it was made, a cache; else like a buffer",
)
_BY_RECORD = Evidence.METADATA

RECORDED: tuple[Fact, ...] = (
    Fact(
        Category.WEIGHT,
        "recorded-as-parameter",
        "it was the memory of a parameter of the model",
        _BY_RECORD,
        _parameters(is_buffer=False),
    ),
    Fact(
        Category.WEIGHT,
        "recorded-as-buffer",
        "it was the memory of a buffer of the model",
        _BY_RECORD,
        _parameters(is_buffer=True),
    ),
    Fact(
        Category.GRADIENT,
        "recorded-as-gradient",
        "it was the memory of a gradient",
        _BY_RECORD,
        recorded_gradient,
    ),
    Fact(
        Category.OPTIMIZER_STATE,
        "recorded-as-optimizer-state",
        "it was the memory of an optimizer state",
        _BY_RECORD,
        recorded_state,
    ),
    Fact(
        Category.INPUT,
        "recorded-as-input",
        "the model was called with it, and no module made it",
        _BY_RECORD,
        recorded_input,
    ),
    Fact(
        Category.INPUT,
        "recorded-as-saved-input",
        "autograd saved it, and it is an input: made by no module and by no operation that has a gradient",
        _BY_RECORD,
        recorded_target,
    ),
    Fact(
        Category.ACTIVATION,
        "recorded-as-saved",
        "autograd saved it for backward, and forward did not free it again",
        _BY_RECORD,
        recorded_saved,
    ),
    Fact(Category.WEIGHT, *_COPY, _BY_RECORD, _copies_of(Category.WEIGHT)),
    Fact(Category.OPTIMIZER_STATE, *_COPY, _BY_RECORD, _copies_of(Category.OPTIMIZER_STATE)),
    Fact(
        Category.INPUT,
        "made-by-code-of-inputs",
        "kept, and made by code that otherwise makes only inputs: the next batch",
        _BY_RECORD,
        like_inputs,
    ),
)
# After the facts: the program may use an attribute for anything.
RECORDED_LATER: tuple[Fact, ...] = (
    Fact(Category.ACTIVATION, *_ATTRIBUTE, _BY_RECORD, _attribute(is_written=True)),
    Fact(Category.WEIGHT, *_ATTRIBUTE, _BY_RECORD, _attribute(is_written=False)),
    Fact(
        Category.OPTIMIZER_STATE,
        "made-for-recorded-parameters",
        "a line filled it with zeros, with others of the sizes of recorded parameters; all are kept",
        Evidence.SIZES,
        zeros_for_parameters,
    ),
)
