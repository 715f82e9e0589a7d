"""The strongest evidence: the user's own rules, and what a recorder wrote into the file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import (
    Condition,
    Decided,
    Fact,
    Proposal,
    Reason,
    feature,
    made,
)
from snapconv.classification.facts import ACTIVATION, AUTOCAST_COPY, GRADIENT, INPUT, STATE, WEIGHT
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    distinct,
    has_code,
    is_among,
    last_before,
    rows_of,
)
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.recorded.metadata import Metadata
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.profiler_categories import CATEGORIES

# How torch names its integral types.
_INTEGRAL = ("int", "uint", "bool")


def user_rules(decided: Decided) -> Iterator[Proposal]:
    """Propose what each of the user's rules fits."""
    features = decided.features
    for rule, has in zip(features.user_rules.rules, features.user_rules.has, strict=True):
        where = np.append(has, np.False_)[features.allocations.stack_id]
        yield Proposal(where, rule.category, Evidence.USER_RULE, rule.slug)


def _by_profiler(*names: str) -> Condition:
    """Find what torch.profiler gave one of these categories."""
    wanted = [CATEGORIES.index(name) for name in names]

    def find(decided: Decided) -> BoolColumn | bool:
        positions = decided.features.profiled
        return False if positions is None else np.isin(positions, wanted)

    return Condition(find)


def _named(kind: str, chosen: Callable[[Metadata], BoolColumn] | None = None) -> Condition:
    """Find the allocations of a recorder's records of one kind, or of those chosen among them."""

    def find(decided: Decided) -> BoolColumn | bool:
        recorded = decided.features.recorded
        if recorded is None:
            return False
        rows: Int64Column = getattr(recorded, kind)
        rows = rows if chosen is None else rows[chosen(recorded.metadata)]
        return decided.features.mask(rows[rows >= 0])

    return Condition(find)


def _parameters(*, is_buffer: bool) -> Condition:
    """Find the memory of parameters or of buffers, or their memory before they got other memory."""

    def were(metadata: Metadata) -> BoolColumn:
        of_model = np.append(metadata.parameters.is_buffer, np.False_)
        return np.asarray(of_model[metadata.earlier.parameter] == is_buffer)

    now = _named("parameters", lambda metadata: metadata.parameters.is_buffer == is_buffer)
    return now | _named("earlier", were)


def _without_history(metadata: Metadata) -> BoolColumn:
    return metadata.saved.without_history


def _integers(metadata: Metadata) -> BoolColumn:
    is_integral = np.array(
        [dtype.startswith(_INTEGRAL) for dtype in metadata.saved.dtypes], np.bool_
    )
    return _without_history(metadata) & is_integral


_in_forward = Condition(lambda decided: has_code(decided.features.alloc_phase, Phase.FORWARD))


@Condition
def _before_this_forward(decided: Decided) -> BoolColumn:
    """No forward has run yet since the last backward or step."""
    features = decided.features
    forward = last_before(rows_of(has_code(features.phases.certain, Phase.FORWARD)), features.alloc)
    return np.asarray(forward <= last_before(features.phases.events_of_training, features.alloc))


# A target was there before forward: what was computed after one, such as a teacher's answer, is
# none. But integers may be copied to the device between the model and its loss.
_target = _named("saved", _without_history) & feature.outside
_target &= feature.from_nothing | _before_this_forward
_target |= _named("saved", _integers) & _in_forward & made(Role.COPY)
_target &= ~made(Role.MODULE_CALL)


def _copies_of(category: Category) -> Condition:
    """Find what was copied from allocations of a category, and from such copies."""

    def find(decided: Decided) -> BoolColumn | bool:
        recorded = decided.features.recorded
        if recorded is None:
            return False
        is_of_category = decided.has(category)
        found = np.zeros(len(is_of_category), np.bool_)
        order = np.argsort(recorded.metadata.copies.recorded_us, kind="stable")
        for original, copy in np.column_stack((recorded.originals, recorded.copies))[
            order
        ].tolist():
            if original >= 0 and copy >= 0:
                found[copy] |= bool(is_of_category[original] or found[original])
        return found

    return Condition(find)


@Condition
def _like_inputs(decided: Decided) -> BoolColumn | bool:
    """Find what stays and was made by the very code that made recorded inputs, and nothing else."""
    features = decided.features
    if features.recorded is None:
        return False
    stack = features.allocations.stack_id
    is_input = decided.has(INPUT)
    of_inputs = distinct(stack[features.has_stack & is_input])
    of_others = distinct(stack[features.has_stack & ~is_input & ~decided.is_open])
    by_same_code = is_among(stack, np.setdiff1d(of_inputs, of_others))
    return by_same_code & features.is_traced & features.is_live_at_dump


def _written(metadata: Metadata) -> BoolColumn:
    return metadata.attributes.is_written


_is_recorded = Condition(lambda decided: decided.features.recorded is not None)
_recorded = partial(Fact, evidence=Evidence.METADATA)
_PROFILED = Reason(
    "named-by-profiler",
    "the category that torch.profiler gave it; its `autograd_detail` is temporary",
)
_BY_PROFILER = (
    (WEIGHT, "parameter"),
    (STATE, "optimizer_state"),
    (GRADIENT, "gradient"),
    (INPUT, "input"),
    (ACTIVATION, "activation"),
    (Category.TEMPORARY, "temporary", "autograd_detail"),
)
# What the profiler calls unknown stays so: its sums by category are kept.
PROFILED = (
    *(_recorded(category, _PROFILED, _by_profiler(*names)) for category, *names in _BY_PROFILER),
    Fact(
        Category.UNKNOWN,
        Reason("unknown-to-profiler", "torch.profiler gave it no category"),
        _by_profiler("unknown"),
        Evidence.NONE,
        by_phases=False,
    ),
)
_COPY = Reason("recorded-as-copy", "`deepcopy`, or autocast, made it from a weight or from a state")
_ATTRIBUTE = Reason(
    "recorded-as-attribute",
    "a plain attribute of a module: if written since it was made, a cache; else like a buffer",
)

RECORDED = (
    _recorded(
        WEIGHT,
        Reason("recorded-as-parameter", "it was the memory of a parameter of the model"),
        _parameters(is_buffer=False),
    ),
    _recorded(
        WEIGHT,
        Reason("recorded-as-buffer", "it was the memory of a buffer of the model"),
        _parameters(is_buffer=True),
    ),
    _recorded(
        GRADIENT,
        Reason("recorded-as-gradient", "it was the memory of a gradient"),
        _named("gradients"),
    ),
    _recorded(
        STATE,
        Reason("recorded-as-optimizer-state", "it was the memory of an optimizer state"),
        _named("states"),
    ),
    _recorded(
        INPUT,
        Reason("recorded-as-input", "the model was called with it, and no module made it"),
        _named("inputs") & ~made(Role.MODULE_CALL),
    ),
    _recorded(
        INPUT,
        Reason(
            "recorded-as-saved-input",
            "autograd saved it, and it is an input: made by no module and by no operation that "
            "has a "
            "gradient",
        ),
        _target,
    ),
    _recorded(WEIGHT, _COPY, _copies_of(WEIGHT)),
    replace(AUTOCAST_COPY, where=_is_recorded & AUTOCAST_COPY.where, evidence=Evidence.METADATA),
    _recorded(
        ACTIVATION,
        Reason(
            "recorded-as-saved", "autograd saved it for backward, and forward did not free it again"
        ),
        _named("saved") & ~feature.is_freed_in_own_forward,
    ),
    _recorded(STATE, _COPY, _copies_of(STATE)),
    _recorded(
        INPUT,
        Reason(
            "made-by-code-of-inputs",
            "kept, and made by code that otherwise makes only inputs: the next batch",
        ),
        _like_inputs,
    ),
)
# After the facts: the program may use an attribute for anything.
ATTRIBUTES = (
    _recorded(ACTIVATION, _ATTRIBUTE, _named("attributes", _written) & feature.outside),
    _recorded(
        WEIGHT,
        _ATTRIBUTE,
        _named("attributes", lambda metadata: ~_written(metadata)) & feature.outside,
    ),
)
