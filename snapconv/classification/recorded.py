"""The strongest evidence: the user's own rules, and what a recorder wrote into the file."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.conditions import (
    is_copied_or_filled,
    is_freed_in_own_forward,
    kept_by_program,
    made_outside,
    trains,
)
from snapconv.classification.decisions import (
    Condition,
    Decided,
    Fact,
    FrameFact,
    Proposal,
    Reason,
    feature_condition,
    made_through,
)
from snapconv.classification.facts import (
    ACTIVATION,
    AUTOCAST_COPY,
    CACHE,
    GRADIENT,
    INPUT,
    STATE,
    WEIGHT,
)
from snapconv.classification.features import Features
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    distinct,
    has_code,
    is_among,
    last_before,
    plain_rows,
    rows_of,
)
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.recorded.metadata import Metadata
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.profiler_categories import CATEGORIES

# How torch names its integral types.
_INTEGRAL = ("int", "uint", "bool")


def user_rules(decided: Decided) -> Iterator[Proposal]:
    """Propose what each of the user's rules fits."""
    features = decided.features
    rules = features.user_rules
    for rule, is_fitting in zip(rules.rules, rules.has, strict=True):
        marked = np.append(is_fitting, np.False_)[features.allocations.stack_id]
        yield Proposal(marked, rule.category, Evidence.USER_RULE, rule.slug)


def _categorized_by_profiler(*names: str) -> Condition:
    """Find what torch.profiler gave one of these categories."""
    category_ids = [CATEGORIES.index(name) for name in names]

    def find(decided: Decided) -> BoolColumn | bool:
        profiled = decided.features.profiled
        return False if profiled is None else np.isin(profiled, category_ids)

    return Condition(find)


# --- the records of a recorder


def _record_condition(find_rows: Callable[[RecordedMatches], Int64Column]) -> Condition:
    """Make a condition of a function that returns the allocations of some records."""

    def find(decided: Decided) -> BoolColumn | bool:
        recorded = decided.features.recorded
        if recorded is None:
            return False
        rows = find_rows(recorded)
        return decided.features.mask(rows[rows >= 0])

    return Condition(find)


_gathered = _record_condition(lambda recorded: recorded.gathered)
_unreduced = _record_condition(lambda recorded: recorded.unreduced)
_buffers = _record_condition(lambda recorded: recorded.buffers)
_gradients = _record_condition(lambda recorded: recorded.gradients)
_states = _record_condition(lambda recorded: recorded.states)
_inputs = _record_condition(lambda recorded: recorded.inputs)
_saved = _record_condition(lambda recorded: recorded.saved)


def _parameters(*, is_buffer: bool) -> Condition:
    """Find the memory of parameters or of buffers, or their memory before they got other memory."""

    @_record_condition
    def has_parameter_now(recorded: RecordedMatches) -> Int64Column:
        is_kind = recorded.metadata.parameters.is_buffer == is_buffer
        return np.asarray(recorded.parameters[is_kind])

    @_record_condition
    def had_parameter(recorded: RecordedMatches) -> Int64Column:
        metadata = recorded.metadata
        is_buffer_of_model = np.append(metadata.parameters.is_buffer, np.False_)
        is_kind = is_buffer_of_model[metadata.earlier.parameter] == is_buffer
        return np.asarray(recorded.earlier[is_kind])

    return has_parameter_now | had_parameter


# The samples, the heads or the tokens, and the features.
_LEAST_CACHE_SIDES = 3


@Condition
def _written_caches(decided: Decided) -> BoolColumn | bool:
    """Find buffers, of equal sizes, that the program writes to again and again.

    A job that does not train writes keys, values and states of the tokens so far. Statistics and
    counters of layers, which have fewer sides, are written as well.
    """
    features = decided.features
    if features.recorded is None or trains.find(decided):
        return False
    buffers = features.recorded.metadata.parameters
    has_sides = [len(shape) >= _LEAST_CACHE_SIDES for shape in buffers.shapes]
    rows = features.recorded.parameters[buffers.is_written & np.array(has_sides, np.bool_)]
    rows = distinct(rows[rows >= 0])
    _, size_ids, counts = np.unique(
        features.sizes[rows], return_inverse=True, return_counts=True
    )
    return features.mask(rows[counts[size_ids] > 1])


_named_cache = made_through(Role.CACHE) | made_through(Role.NAMED_CACHE)


@_record_condition
def _written_attributes(recorded: RecordedMatches) -> Int64Column:
    return recorded.attributes[recorded.metadata.attributes.is_written]


@_record_condition
def _unwritten_attributes(recorded: RecordedMatches) -> Int64Column:
    return recorded.attributes[~recorded.metadata.attributes.is_written]


@_record_condition
def _saved_leaves(recorded: RecordedMatches) -> Int64Column:
    """Find what autograd saved and no operation with a gradient has made."""
    return recorded.saved[recorded.metadata.saved.without_history]


@_record_condition
def _saved_integer_leaves(recorded: RecordedMatches) -> Int64Column:
    return recorded.saved[_is_integer_leaf(recorded.metadata)]


def _is_integer_leaf(metadata: Metadata) -> BoolColumn:
    is_integral = [dtype.startswith(_INTEGRAL) for dtype in metadata.saved.dtypes]
    return metadata.saved.without_history & np.array(is_integral, np.bool_)


@feature_condition
def _is_forward(features: Features) -> BoolColumn:
    """Made where an event shows forward."""
    return has_code(features.alloc_phase, Phase.FORWARD)


@feature_condition
def _precedes_this_forward(features: Features) -> BoolColumn:
    """Made where no forward has run yet since the last backward or step."""
    forward_events = rows_of(has_code(features.phases.certain, Phase.FORWARD))
    last_forward = last_before(forward_events, features.alloc)
    last_training = last_before(features.phases.events_of_training, features.alloc)
    return np.asarray(last_forward <= last_training)


# A target was there before forward: what was computed after one, such as a teacher's answer, is
# none. But integers may be copied to the device between the model and its loss.
_target = _saved_leaves & made_outside
_target &= is_copied_or_filled | _precedes_this_forward
_target |= _saved_integer_leaves & _is_forward & made_through(Role.COPY)
_target &= ~made_through(Role.MODULE_CALL)


def _copies_of(category: Category) -> Condition:
    """Find what was copied from allocations of a category, and from such copies."""

    def find(decided: Decided) -> BoolColumn | bool:
        recorded = decided.features.recorded
        if recorded is None:
            return False
        is_of_category = decided.has(category)
        is_copy = np.zeros(len(is_of_category), np.bool_)
        order = np.argsort(recorded.metadata.copies.recorded_us, kind="stable")
        for original, copy in plain_rows(recorded.originals[order], recorded.copies[order]):
            if original >= 0 and copy >= 0:
                is_copy[copy] |= bool(is_of_category[original] or is_copy[original])
        return is_copy

    return Condition(find)


@Condition
def _like_inputs(decided: Decided) -> BoolColumn | bool:
    """Find what stays and was made by the very code that made recorded inputs, and nothing else."""
    features = decided.features
    if features.recorded is None:
        return False
    stack = features.allocations.stack_id
    is_input = decided.has(INPUT)
    input_stacks = distinct(stack[features.has_stack & is_input])
    is_no_input = features.has_stack & ~is_input & ~decided.is_open
    other_stacks = distinct(stack[is_no_input])
    has_input_code = is_among(stack, np.setdiff1d(input_stacks, other_stacks))
    return has_input_code & features.is_traced & features.is_live_at_dump


@feature_condition
def _is_recorded(features: Features) -> bool:
    return features.recorded is not None


# --- the tables

_recorded = partial(Fact, evidence=Evidence.METADATA)
_PROFILED = Reason(
    "named-by-profiler",
    "the category that torch.profiler gave it; its `autograd_detail` is temporary",
)
# What the profiler calls unknown stays so: its sums by category are kept.
PROFILED = (
    _recorded(WEIGHT, _PROFILED, _categorized_by_profiler("parameter")),
    _recorded(STATE, _PROFILED, _categorized_by_profiler("optimizer_state")),
    _recorded(GRADIENT, _PROFILED, _categorized_by_profiler("gradient")),
    _recorded(INPUT, _PROFILED, _categorized_by_profiler("input")),
    _recorded(ACTIVATION, _PROFILED, _categorized_by_profiler("activation")),
    _recorded(
        Category.TEMPORARY,
        _PROFILED,
        _categorized_by_profiler("temporary", "autograd_detail"),
    ),
    Fact(
        Category.UNKNOWN,
        Reason("unknown-to-profiler", "torch.profiler gave it no category"),
        _categorized_by_profiler("unknown"),
        Evidence.NONE,
        follows_phases=False,
    ),
)
_COPY = Reason(
    "recorded-as-copy", "`deepcopy`, or autocast, made it from a weight or from a state"
)
_ATTRIBUTE = Reason(
    "recorded-as-attribute",
    "a plain attribute of a module: if written since it was made, a cache; else like a buffer",
)

RECORDED = (
    # First: what is gathered is the module's parameter for a while.
    _recorded(
        Category.GATHERED_WEIGHT,
        Reason("recorded-as-gathered", "a whole weight was gathered in it"),
        _gathered,
    ),
    _recorded(
        Category.UNREDUCED_GRADIENT,
        Reason("recorded-as-unreduced", "a whole gradient was in it, to be reduced"),
        _unreduced,
    ),
    _recorded(
        Category.COMMUNICATION,
        Reason(
            "recorded-as-buffer-of-fsdp",
            "whole weights were gathered from it, or gradients in it reduced",
        ),
        _buffers,
    ),
    _recorded(
        WEIGHT,
        Reason("recorded-as-parameter", "it was the memory of a parameter of the model"),
        _parameters(is_buffer=False),
    ),
    _recorded(
        CACHE,
        Reason(
            "recorded-as-written-buffer",
            "it was the memory of buffers of equal sizes, written to again and again without "
            "a backward",
        ),
        _written_caches & ~_named_cache,
        probability=0.95,
    ),
    _recorded(
        WEIGHT,
        Reason("recorded-as-buffer", "it was the memory of a buffer of the model"),
        _parameters(is_buffer=True) & ~(_named_cache & ~trains & kept_by_program),
    ),
    _recorded(
        GRADIENT,
        Reason("recorded-as-gradient", "it was the memory of a gradient"),
        _gradients,
    ),
    FrameFact(Category.UNREDUCED_GRADIENT, Role.BUCKET, _is_recorded),
    _recorded(
        STATE,
        Reason("recorded-as-optimizer-state", "it was the memory of an optimizer state"),
        _states,
    ),
    _recorded(
        INPUT,
        Reason("recorded-as-input", "the model was called with it, and no module made it"),
        _inputs & ~made_through(Role.MODULE_CALL),
    ),
    _recorded(
        INPUT,
        Reason(
            "recorded-as-saved-input",
            "autograd saved it, and it is an input: made by no module and by no "
            "operation that has a gradient",
        ),
        _target,
    ),
    _recorded(WEIGHT, _COPY, _copies_of(WEIGHT)),
    replace(
        AUTOCAST_COPY,
        condition=_is_recorded & AUTOCAST_COPY.condition,
        evidence=Evidence.METADATA,
    ),
    _recorded(
        ACTIVATION,
        Reason(
            "recorded-as-saved",
            "autograd saved it for backward, and forward did not free it again",
        ),
        _saved & ~is_freed_in_own_forward,
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
    _recorded(ACTIVATION, _ATTRIBUTE, _written_attributes & made_outside),
    _recorded(WEIGHT, _ATTRIBUTE, _unwritten_attributes & made_outside),
)
