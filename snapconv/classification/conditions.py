"""The named conditions that facts are made of, each about an allocation or about the recording.

The role of code is a condition too: ``made_through(...)``, ``freed_through(...)``.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from snapconv.classification import parameters
from snapconv.classification.categories import Category
from snapconv.classification.decisions import (
    Condition,
    Decided,
    feature,
    feature_condition,
    made_through,
    shared_condition,
)
from snapconv.classification.features import Features, at, first_before
from snapconv.classification.parameters import is_training
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    distinct,
    grouped,
    has_code,
    is_among,
    next_of,
    number_groups,
    rows_by,
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.paths import is_of_operations, is_python
from snapconv.torch_knowledge.frame_patterns import CUBLAS_WORKSPACE_BYTES, Role

# cuBLAS has one workspace for every handle and stream, so a job has few: more blocks of the size
# are something else. The bound is for traced blocks, and for pre-existing ones.
_MOST_WORKSPACES, _MOST_OLD_WORKSPACES = 4, 2
# A cache grows by the same again and again; once could be any two sizes.
_LEAST_LENGTHENED = 2
# A batch, or what is kept for a backward, is freed before this many iterations have passed.
_MOST_ITERATIONS = 2
# Gradients of single samples are n times as large as their weights, for one n of all the weights:
# so many sizes, and half of all, must show the same n.
_LEAST_SIZES = 2
# What is twice as large as a parameter has so many halves of its size.
_HALVES_OF_TWICE = 4
# Models have some tens of sizes of weights; hostile files have any number.
_MOST_WEIGHT_SIZES = 600
# Where no frames show autocast, its casts have so many sizes at least: two sizes were seen that
# only looked like casts.
_LEAST_CAST = 3
# Where more than this share of a forward's memory is in use when memory runs out, the forward is
# trained. Inference keeps little.
_LEAST_IN_USE = 0.4

# --- features

is_traced = feature(Features.is_traced)
is_older = ~is_traced
is_freed = feature(Features.is_freed)
is_freed_by_engine = feature(Features.is_freed_by_engine)
is_freed_in_own_forward = feature(Features.is_freed_in_own_forward)
is_live_at_dump = feature(Features.is_live_at_dump)
lasts_throughout = feature(Features.lasts_throughout)
has_no_frames = feature(Features.has_no_frames)
made_by_engine = feature(Features.by_engine)
made_in_forward = feature(Features.in_forward)
made_in_step = feature(Features.made_in_step)
made_mid_forward = feature(Features.mid_forward)
made_outside = feature(Features.outside)
ends_within_run = ~feature(Features.outlives_run)
is_copied_or_filled = feature(Features.is_copied_or_filled)
preexisting_in_forward = feature(Features.preexisting_in_forward)
preexisting_outside = feature(Features.preexisting_outside)
feeds_module = feature(Features.feeds_module)
may_be_input = feature(Features.may_be_input)
has_next_backward = feature(Features.has_next_backward)
reaches_backward = feature(Features.reaches_backward)


@Condition
def always(decided: Decided) -> bool:
    """Hold for every allocation."""
    return True


@Condition
def is_undecided(decided: Decided) -> BoolColumn:
    """No stage has decided it yet."""
    return decided.is_open


# --- who made it, and when


@Condition
def made_for_every_parameter(decided: Decided) -> BoolColumn:
    """Made by a line that makes one block for every parameter.

    The parameters are of several sizes. The blocks are as large as they, half as large or twice.
    """
    return decided.shared(parameters.halves_of_every_parameter) > 0


@Condition
def twice_as_large(decided: Decided) -> BoolColumn:
    """Made by a line that makes one block for every parameter, twice as large as it."""
    halves = decided.shared(parameters.halves_of_every_parameter)
    return has_code(halves, _HALVES_OF_TWICE)


@feature_condition
def made_in_backward(features: Features) -> BoolColumn:
    """Made where an event shows backward."""
    return has_code(features.alloc_phase, Phase.BACKWARD)


@feature_condition
def made_without_python(features: Features) -> BoolColumn:
    """Made by C++ alone: no hook of the program ran."""
    return features.lines_of(features.allocations.stack_id) < 0


@feature_condition
def made_in_annotated_step(features: Features) -> BoolColumn:
    """Made in a range that torch wrote around a step."""
    return np.asarray(at(features.phases.in_step, features.alloc))


kept_by_program = is_live_at_dump & (made_outside | preexisting_outside)


@feature_condition
def precedes_first_backward(features: Features) -> BoolColumn:
    """Made before the first event that shows backward."""
    return features.alloc < features.phases.first(Phase.BACKWARD)


@feature_condition
def precedes_any_forward(features: Features) -> BoolColumn:
    """Made before anything was made in forward."""
    first_forward = features.alloc[features.in_forward].min(initial=features.n_events)
    return np.asarray(features.alloc < first_forward)


@feature_condition
def follows_a_forward(features: Features) -> BoolColumn:
    """Made when a forward was over: something had been made outside of modules since."""
    first_forward = features.alloc[features.in_forward].min(initial=features.n_events)
    outside = features.alloc[features.outside]
    end = outside[outside > first_forward].min(initial=features.n_events)
    return np.asarray(features.alloc > end)


@feature_condition
def made_in_last_run(features: Features) -> BoolColumn:
    """Made in the run of a phase with which the trace ends."""
    return has_code(features.alloc_run_last, features.n_events - 1)


# --- who freed it, and when


@feature_condition
def freed_in_step(features: Features) -> BoolColumn:
    """Freed where an event shows an optimizer's step."""
    return has_code(features.end_phase, Phase.OPTIMIZER)


@feature_condition
def freed_in_zero_grad(features: Features) -> BoolColumn:
    """Freed in a range that torch wrote around zero_grad."""
    return np.asarray(at(features.phases.in_zero_grad, features.end))


@feature_condition
def ends_within_backward(features: Features) -> BoolColumn:
    """Freed before the run of the phase that made it ends, by all that the events show.

    Between the last event that shows a phase and the first of the next, either may have freed it:
    that counts where the next is a step.
    """
    next_phase = at(features.phases.phase, features.alloc_run_last + 1)
    is_shown = features.end <= features.alloc_run_end
    return ~features.outlives_run & (is_shown | has_code(next_phase, Phase.OPTIMIZER))


@feature_condition
def used_in_another_backward(features: Features) -> BoolColumn:
    """In use when a backward after its own begins."""
    begins = run_starts(features.phases.phase)
    begins = begins[has_code(features.phases.phase[begins], Phase.BACKWARD)]
    next_run = next_of(begins, features.alloc_run_last, features.n_events + 1)
    return np.asarray(features.end >= next_run)


@feature_condition
def outlives_iterations(features: Features) -> BoolColumn:
    """In use in the second iteration after its own, and not freed by the engine."""
    last_event = np.minimum(features.end, max(0, features.n_events - 1))
    end_iteration = at(features.phases.iteration, last_event, -1)
    is_old = end_iteration >= features.iteration + _MOST_ITERATIONS
    return features.is_traced & ~features.is_freed_by_engine & is_old


@feature_condition
def used_in_backward(features: Features) -> BoolColumn:
    """In use when the next backward begins."""
    return features.end >= features.next_backward


@feature_condition
def used_in_forward(features: Features) -> BoolColumn:
    """In use when the next forward begins."""
    return features.end >= features.next_forward


ends_before_next_phase = ~(used_in_forward | used_in_backward)


@feature_condition
def ends_after_first_forward(features: Features) -> BoolColumn:
    """Freed after the first event that shows forward."""
    return features.end > features.phases.first(Phase.FORWARD)


# --- the recording


@Condition
def trains(decided: Decided) -> bool:
    """Tell whether the job trains."""
    return is_training(decided)


@feature_condition
def has_cpp_frames(features: Features) -> bool:
    """Tell whether stacks have C++ frames."""
    return features.has_cpp


@feature_condition
def begins_in_backward(features: Features) -> bool:
    """Tell whether the first event that shows a phase is of a backward, by C++ stacks."""
    phases = features.phases.certain
    first_phase = np.append(phases[phases > 0], 0)[0]
    return features.has_cpp and bool(first_phase == Phase.BACKWARD)


@feature_condition
def has_several_backwards(features: Features) -> bool:
    """Tell whether a backward follows another: what forward kept for the first is gone then."""
    phase = features.phases.phase
    return bool(np.count_nonzero(has_code(phase[run_starts(phase)], Phase.BACKWARD)) > 1)


@feature_condition
def ends_out_of_memory(features: Features) -> bool:
    """Tell whether nothing follows a failed allocation."""
    return features.phases.ends_in_oom


@feature_condition
def shows_phases(features: Features) -> bool:
    """Tell whether there is a forward or a backward."""
    return bool(features.in_forward.any() or features.has_next_backward.any())


# --- what takes several steps to find


@shared_condition
def made_in_nested_constructors(decided: Decided) -> BoolColumn:
    """Made by an ``__init__`` of the program's code that another one calls.

    It is a layer that a model builds.
    """
    features = decided.features
    stack_id = features.allocations.stack_id
    stacks = features.roles.stacks
    is_init = np.array([name == "__init__" for name in stacks.frames.names], bool)
    innermost = features.lines_of(stack_id)
    is_constructor: BoolColumn = (innermost >= 0) & np.append(is_init, np.False_)[innermost]
    if not is_constructor.any():
        return is_constructor
    init_stacks = stacks.owners[stacks.mark_entries(is_init)]
    n_inits = np.bincount(init_stacks, minlength=len(stacks))
    is_nested: BoolColumn = np.append(n_inits > 1, np.False_)[stack_id]
    return is_constructor & is_nested


@feature_condition
def may_be_parameter(features: Features) -> BoolColumn | bool:
    """As large as something that backward or a step makes, where they make anything.

    A weight that is trained has a gradient, a state or a new value; a data set has none. Where
    nothing is trained, a model that is moved to the device later has its parameters moved. Where a
    recorder has noted parameters, all others are none.
    """
    if features.recorded is not None and len(features.recorded.parameters):
        return False
    training_rows = features.by_engine | features.made_in_step
    if not training_rows.any():
        return not features.made_through(Role.PLACEMENT).any()
    return is_among(features.sizes, features.sizes[training_rows])


@shared_condition
def workspace_size(decided: Decided) -> BoolColumn:
    """As large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it.

    A product makes its result first, by the same code.
    """
    features = decided.features
    stack_id = features.allocations.stack_id
    follows_result = np.append(False, stack_id[1:] == stack_id[:-1])
    fits = is_among(features.sizes, CUBLAS_WORKSPACE_BYTES) & features.is_live_at_dump
    lacks_cpp = np.bool_(not features.has_cpp)
    is_computed = has_code(features.alloc_phase, Phase.FORWARD) | features.by_engine
    traced = fits & is_computed & lacks_cpp
    older = fits & ~features.is_traced & (features.has_no_frames | lacks_cpp)
    all_rows = np.ones(len(fits), bool)
    workspaces = _rare(
        features, traced & follows_result, traced, max_count=_MOST_WORKSPACES
    )
    return workspaces | _rare(features, older, all_rows, max_count=_MOST_OLD_WORKSPACES)


@Condition
def lone_workspace_size(decided: Decided) -> BoolColumn:
    """As large as cuBLAS's workspace, the only one kept, and no matrix of the model.

    Results of forward may be as large by chance. Gradients and states show that weights are; a
    matrix is a multiple of the model's width; and one job has workspaces of one size.
    """
    features = decided.features
    sizes = features.sizes
    fits = is_among(sizes, CUBLAS_WORKSPACE_BYTES)
    has_known = (fits & decided.has(Category.WORKSPACE)).any()
    lasting = features.lasts_throughout & features.has_no_frames
    widths = parameters.vector_sizes(parameters.counted(sizes[lasting]))
    if has_known or not widths:
        return np.zeros(len(sizes), bool)
    workspace_sizes = np.array(CUBLAS_WORKSPACE_BYTES)
    is_matrix = (workspace_sizes[:, None] % np.array(widths) == 0).any(1)
    is_result = features.in_forward | features.freed_through(Role.RELEASE)
    older = lasting & is_among(sizes, workspace_sizes[~is_matrix])
    return _rare(features, older, ~is_result, max_count=1)


def _rare(
    features: Features, rows: BoolColumn, compared: BoolColumn, *, max_count: int
) -> BoolColumn:
    """Leave those of the rows whose size occurs at most so often among the compared rows."""
    if not rows.any():
        return rows
    sizes, counts = np.unique(features.sizes[compared], return_counts=True)
    return rows & is_among(features.sizes, sizes[counts <= max_count])


@Condition
def made_in_bulk(decided: Decided) -> BoolColumn:
    """As large as weights, or twice so, of a line that makes several in an iteration.

    They are noise, or moments.
    """
    features = decided.features
    is_model = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT)
    model_sizes = distinct(features.sizes[is_model | features.unrecorded])
    rows = rows_of(features.outside | features.preexisting_outside)
    bulk_sizes = np.concatenate((model_sizes, 2 * model_sizes))
    rows = rows[is_among(features.sizes[rows], bulk_sizes)]
    # One number for stack and iteration, either of which may be -1.
    stack = features.allocations.stack_id[rows].astype(np.int64)
    group = stack * (features.phases.n_iterations + 1) + features.iteration[rows]
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    return features.mask(rows[counts[inverse] > 1])


@shared_condition
def precedes_the_graph(decided: Decided) -> BoolColumn:
    """Made before the first module that keeps anything for the next backward."""
    features = decided.features
    saved = rows_of(features.by_module & features.is_freed_by_engine)
    first = first_before(features.next_backward, features.alloc, saved, features.n_events)
    return np.asarray(features.alloc < first)


@shared_condition
def may_be_gradient(decided: Decided) -> BoolColumn:
    """Made by the engine, by the program after a backward, or pre-existing.

    Not by a module, unless it is compiled.
    """
    features = decided.features
    is_compiled = features.by_engine & features.made_through(Role.COMPILED)
    is_of_module = features.made_through(Role.MODULE_CALL) & ~is_compiled
    follows_backward = features.alloc > features.phases.first(Phase.BACKWARD)
    is_of_program = features.outside & follows_backward
    return (features.by_engine | is_of_program | ~features.is_traced) & ~is_of_module


@Condition
def like_weight(decided: Decided) -> BoolColumn:
    """Known as a weight; or there throughout, no workspace, and not made by the engine."""
    features = decided.features
    may_be_weight = features.lasts_throughout & ~features.made_through(Role.ENGINE)
    may_be_weight &= ~decided.has(Category.WORKSPACE)
    return decided.has(Category.WEIGHT) | may_be_weight


@Condition
def size_of_weight(decided: Decided) -> BoolColumn:
    """As large as what is a weight, or like one."""
    sizes = decided.features.sizes
    return is_among(sizes, distinct(sizes[like_weight.column(decided)]))


@Condition
def several_times_weights(decided: Decided) -> BoolColumn:
    """Left behind by backward, and as large as weights of most sizes, each as many times."""
    features = decided.features
    is_left = features.by_engine & ~ends_within_backward.column(decided)
    return _as_many_times_as_weights(decided, is_left)


@Condition
def joined_from_samples(decided: Decided) -> BoolColumn:
    """Made by the program after a backward, and as many times as large as weights of most sizes."""
    features = decided.features
    follows_backward = features.alloc > features.phases.first(Phase.BACKWARD)
    is_made = features.outside & follows_backward & ~features.is_copied_or_filled
    return _as_many_times_as_weights(decided, is_made)


def _as_many_times_as_weights(decided: Decided, rows: BoolColumn) -> BoolColumn:
    """Find those of the rows that are n times as large as a weight, for an n of a whole batch.

    An n counts if sizes of the rows are n times as large as half of the sizes of weights, and more
    of them than are as large as weights, as copies are: any two sizes may be multiples by chance,
    most of all those of powers of two.
    """
    features = decided.features
    sizes = distinct(features.sizes[rows])
    weight_sizes = distinct(features.sizes[like_weight.column(decided)])
    weight_sizes = weight_sizes[weight_sizes > 0][-_MOST_WEIGHT_SIZES:]
    n_sizes: Counter[int] = Counter()
    for weight_bytes in weight_sizes:
        n_sizes.update(_times(sizes, weight_bytes)[1].tolist())
    n_equal = int(is_among(sizes, weight_sizes).sum())
    least_sizes = max(_LEAST_SIZES, len(weight_sizes) / 2, n_equal + 1)
    common = [n for n, count in n_sizes.items() if count >= least_sizes]
    has_common = np.zeros(len(sizes), np.bool_)
    for weight_bytes in weight_sizes:
        multiples, n_samples = _times(sizes, weight_bytes)
        has_common[multiples[is_among(n_samples, common)]] = True
    return np.asarray(rows & is_among(features.sizes, sizes[has_common]))


def _times(sizes: Int64Column, weight_bytes: int) -> tuple[Int64Column, Int64Column]:
    """Return the positions of sizes that are several times as large, and how many times."""
    n_samples, remainders = np.divmod(sizes, weight_bytes)
    positions = rows_of((remainders == 0) & (n_samples > 1))
    return positions, n_samples[positions]


@Condition
def may_copy_a_weight(decided: Decided) -> BoolColumn:
    """Made before any forward, as large as a weight, and kept for iterations.

    Data comes from elsewhere, and anew for each iteration.
    """
    features = decided.features
    may_copy = features.outside & outlives_iterations.column(decided)
    may_copy &= precedes_any_forward.column(decided) & ~features.is_copied_or_filled
    return may_copy & size_of_weight.column(decided)


_weight_of_layers = like_weight | made_through(Role.PLACEMENT) | made_in_nested_constructors


@Condition
def cast_of_weight(decided: Decided) -> BoolColumn:
    """Cast by autocast, half as large as a weight, and no input of the operation.

    Frames show a cast. Without C++ frames it is made right before another block of the same line:
    the operation's result, or its next cast.
    """
    features = decided.features
    sizes = features.sizes
    stack = features.allocations.stack_id
    is_repeated = features.in_forward & np.append(stack[1:] == stack[:-1], False)
    may_be_cast = features.made_through(Role.CAST) if features.has_cpp else is_repeated
    weight_sizes = sizes[_weight_of_layers.column(decided)]
    may_be_cast = may_be_cast & features.in_forward
    is_half = is_among(2 * sizes, distinct(weight_sizes))
    is_input = _inputs_among(may_be_cast, is_repeated, features)
    casts = may_be_cast & is_half & ~is_input
    equal_casts = is_half & _casts_by_place(casts, may_be_cast, is_half, features)
    casts |= equal_casts & ~_more_than(weight_sizes, casts | equal_casts, features)
    if features.has_cpp or features.freed_through(Role.UNCACHED).any():
        return np.asarray(casts)
    n_sizes = len(distinct(sizes[casts]))
    return np.asarray(casts & np.bool_(n_sizes >= _LEAST_CAST))


def _inputs_among(
    may_be_cast: BoolColumn, is_repeated: BoolColumn, features: Features
) -> BoolColumn:
    """Find the casts of an operation's input, which are no casts of weights.

    A layer casts its arguments from the last to the first: bias, weight, input. So the input is the
    third cast of a line, or a second one that is no larger than the first: a weight is larger than
    its bias. `einsum` may cast its input first, and products of two results cast no weight: outside
    of torch's layers, what is half as large as a result of forward may be cast from it.
    """
    sizes = features.sizes
    is_result = features.in_forward & ~may_be_cast
    may_be_of_result = is_among(2 * sizes, distinct(sizes[is_result]))
    may_be_of_result &= ~features.made_through(Role.LAYER)
    is_after_first = np.append(False, may_be_cast[1:] & (may_be_cast & is_repeated)[:-1])
    is_third = np.append(False, is_after_first[:-1])
    is_no_larger = np.append(False, sizes[1:] <= sizes[:-1])
    follows_input = np.append(False, may_be_of_result[:-1])
    is_last = is_after_first & (is_third | is_no_larger) & ~follows_input
    return np.asarray(may_be_of_result | is_last)


# So many casts show in which place a line of the program passes its weight.
_LEAST_IN_PLACE = 3


def _casts_by_place(
    casts: BoolColumn, may_be_cast: BoolColumn, is_half: BoolColumn, features: Features
) -> BoolColumn:
    """Find casts that stand where their line passes a weight every other time.

    Where input and weight are equally large, neither is known; but a line passes its weight in the
    same place each time, and where its inputs have autocast's precision it casts weights alone.
    ``casts``: known casts of weights. ``is_half``: half as large as a weight.
    """
    stack = features.allocations.stack_id
    is_before = np.append(
        may_be_cast[:-1] & may_be_cast[1:] & (stack[:-1] == stack[1:]), False
    )
    is_behind = np.append(False, is_before[:-1])
    is_first = is_before & ~is_behind & np.append(~is_before[1:], True)
    line = _lines_of_layers(features)
    marked = _weights_of_pairs(casts, is_half, grouped(rows_of(is_first), line), features)
    is_of_weights = is_among(line, distinct(line[marked]))
    for alone in grouped(rows_of(may_be_cast & ~is_before & ~is_behind), line):
        has_weights = is_of_weights[alone[0]] or casts[alone].sum() >= _LEAST_IN_PLACE
        marked[alone] = has_weights and is_half[alone].all()
    return marked


def _weights_of_pairs(
    casts: BoolColumn,
    is_half: BoolColumn,
    first_of_lines: Sequence[Int64Column],
    features: Features,
) -> BoolColumn:
    """Mark of each two casts the weight's, where the pairs of their line show its place."""
    marked = np.zeros(len(casts), bool)
    for first in first_of_lines:
        position = _place_of_weight(casts[first], casts[first + 1])
        if position is None and features.has_cpp:
            position = _place_of_halves(features.sizes, is_half, first)
        if position is not None:
            rows = first + position
            other_rows = first + (1 - position)
            marked[rows[is_half[rows] & ~casts[other_rows]]] = True
    return marked


def _place_of_halves(
    sizes: Int64Column, is_half: BoolColumn, first: Int64Column
) -> int | None:
    """Return which of two casts alone is half as large as a weight, in pairs of several sizes."""
    second = first + 1
    n_first = len(distinct(sizes[first[is_half[first] & ~is_half[second]]]))
    n_second = len(distinct(sizes[second[is_half[second] & ~is_half[first]]]))
    if max(n_first, n_second) < _LEAST_SIZES or min(n_first, n_second):
        return None
    return int(n_second > 0)


def _lines_of_layers(features: Features) -> Int32Column:
    """Return the innermost Python frame outside of operations that made each allocation, or -1."""
    stacks = features.roles.stacks
    is_layer = stacks.frames.mark_files(_is_of_layer)
    innermost = np.append(stacks.only(is_layer).innermost, np.int32(-1))
    return np.asarray(innermost[features.allocations.stack_id])


def _place_of_weight(is_first: BoolColumn, is_second: BoolColumn) -> int | None:
    """Return which of two casts of a line is its weight's: 0 or 1; None where pairs differ.

    ``is_first``, ``is_second``: the casts of each pair that are known to be of weights.
    """
    n_first, n_second = (is_first & ~is_second).sum(), (is_second & ~is_first).sum()
    if max(n_first, n_second) < _LEAST_IN_PLACE or min(n_first, n_second):
        return None
    return int(n_second > 0)


def _more_than(
    weight_sizes: Int64Column, casts: BoolColumn, features: Features
) -> BoolColumn:
    """Mark sizes of which a forward has more casts than there are weights of twice the size."""
    n_forwards = max(1, len(features.phases.begins_of(Phase.FORWARD)))
    n_weights = Counter((weight_sizes // 2).tolist())
    n_casts = Counter(features.sizes[casts].tolist())
    excess = [size for size, n in n_casts.items() if n > n_weights[size] * n_forwards]
    return is_among(features.sizes, np.array(excess, np.int64))


def _is_of_layer(file: str) -> bool:
    return is_python(file) and not is_of_operations(file)


@Condition
def size_of_new_state(decided: Decided) -> BoolColumn:
    """As large as a state that a step of the trace has made."""
    features = decided.features
    states = decided.has(Category.OPTIMIZER_STATE) & features.is_traced
    return is_among(features.sizes, distinct(features.sizes[states]))


@Condition
def replaces_weights(decided: Decided) -> BoolColumn:
    """Made in a step by a line whose results are freed there as the weights before them were."""
    features = decided.features
    former = decided.has(Category.WEIGHT) & features.is_freed
    former &= has_code(features.end_phase, Phase.OPTIMIZER)
    if not (features.phases.free_sites_known and former.any()):
        return np.zeros(len(features.alloc), bool)
    table = features.allocations
    freeing_line = features.lines_of(table.free_stack_id)
    line = features.lines_of(table.stack_id)
    freeing_weights = distinct(freeing_line[former & (freeing_line >= 0)])
    new_values = features.made_in_step & features.outlives_run & (line >= 0)
    freed_likewise = (
        new_values & features.is_freed & is_among(freeing_line, freeing_weights)
    )
    new_values &= is_among(features.sizes, distinct(features.sizes[former]))
    return np.asarray(new_values & is_among(line, distinct(line[freed_likewise])))


@Condition
def infers(decided: Decided) -> bool:
    """Tell whether there are forwards, nothing of training, and nothing kept for a backward."""
    features = decided.features
    if is_training(decided) or decided.shared(saves) == SURELY:
        return False
    return bool((features.in_forward | features.preexisting_in_forward).any())


# How sure it is that forward keeps results for a backward that the trace does not have.
NOT, MAYBE, SURELY = 0, 1, 2
# Measured on forwards of 207 programs: what is trained keeps results of seven lines and more,
# inference of three at most. Where one line makes all, its result is no sign.
_SAVED_SHARE, _SAVED_LINES, _MAYBE_LINES = 0.4, 6, 4


def saves(decided: Decided) -> int:
    """Return how surely forward keeps results for a backward that the trace does not have.

    A checkpoint runs again in a backward.
    """
    n_lines, share = decided.shared(_kept_results)
    if n_lines >= _SAVED_LINES or (n_lines > 1 and share > _SAVED_SHARE):
        return SURELY
    if decided.features.made_through(Role.CHECKPOINTED).any():
        return SURELY
    return MAYBE if n_lines >= _MAYBE_LINES else NOT


def _kept_results(decided: Decided) -> tuple[int, float]:
    """Return how many lines of forward keep results, and which share of the bytes of all results.

    Caches are no such results, and what is filled with zeros is none.
    """
    features = decided.features
    is_cache = features.made_through(Role.CACHE_UPDATE) | lengthened.column(decided)
    results = features.in_forward & ~is_cache & ~features.made_through(Role.ZEROS)
    live = results & features.is_live_at_dump
    share = features.sizes[live].sum() / max(1, features.sizes[results].sum())
    return len(distinct(features.allocations.stack_id[live])), float(share)


@Condition
def several_lines_keep(decided: Decided) -> bool:
    """Tell whether several lines of forward keep results: one may hold what it returns."""
    n_lines, _ = decided.shared(_kept_results)
    return n_lines > 1


@Condition
def surely_saves(decided: Decided) -> bool:
    """Tell whether forward keeps results for a backward."""
    return decided.shared(saves) == SURELY


@Condition
def maybe_saves(decided: Decided) -> bool:
    """Tell whether forward may keep results for a backward."""
    return decided.shared(saves) != NOT


@shared_condition
def outlives_forward(decided: Decided) -> BoolColumn:
    """Made in forward, and there when something is made outside of modules."""
    features = decided.features
    next_outside = next_of(
        features.alloc[features.outside], features.alloc, features.n_events
    )
    return features.in_forward & (features.end > next_outside)


@shared_condition
def dropped_with_graph(decided: Decided) -> BoolColumn:
    """Made in forward by many lines, and freed at once by one of the program: with a graph.

    Without a graph, forward itself frees all but its results.
    """
    features = decided.features
    table = features.allocations
    is_dropped = features.in_forward & features.is_freed & ~features.is_freed_by_engine
    is_dropped &= (
        ~features.freed_through(Role.MODULE_CALL) & features.phases.free_sites_known
    )
    rows = rows_of(is_dropped)
    n_made_before = np.searchsorted(np.sort(features.alloc), features.end[rows])
    _, drop_id = number_groups(table.free_stack_id[rows], n_made_before)
    first_of_line, _ = number_groups(drop_id, table.stack_id[rows])
    n_lines = np.bincount(drop_id[first_of_line])
    return features.mask(rows[n_lines[drop_id] >= _SAVED_LINES])


@shared_condition
def continued(decided: Decided) -> BoolColumn:
    """Made in forward by a stack that makes longer ones again and again, while the last is in use.

    Such a stack makes several of every length: keys and values, or those of every layer. A block
    that joins its results to its input makes one of each, and is no cache.
    """
    features = decided.features
    stack = features.allocations.stack_id
    rows = rows_by(features.alloc, rows_of(features.in_forward & features.has_stack))
    continuing_stacks = []
    for line_rows in grouped(rows, stack):
        sizes = features.sizes[line_rows]
        starts = run_starts(sizes)
        n_equal = np.diff(starts, append=len(sizes))
        longer = starts[1:][np.diff(sizes[starts]) > 0]
        # The last of a length is in use when the first that is longer is made.
        is_in_use = features.end[line_rows[longer - 1]] > features.alloc[line_rows[longer]]
        if len(longer) >= _LEAST_LENGTHENED and n_equal.min() > 1 and is_in_use.all():
            continuing_stacks.append(stack[line_rows[0]])
    return features.in_forward & is_among(stack, continuing_stacks)


@shared_condition
def outlives_a_token(decided: Decided) -> BoolColumn:
    """Made in forward, and in use when a cache has grown twice since.

    The line whose cache grows first shows when: all caches grow once a token.
    """
    features = decided.features
    stack = features.allocations.stack_id
    rows = rows_by(features.alloc, rows_of(continued.column(decided)))
    line_rows = rows[stack[rows] == stack[rows[:1]]]
    grown = features.alloc[line_rows[run_starts(features.sizes[line_rows])]]
    n_before = np.searchsorted(grown, features.alloc, side="right")
    n_grown = np.searchsorted(grown, features.end) - n_before
    return np.asarray(features.in_forward & (n_grown > 1))


@shared_condition
def lengthened(decided: Decided) -> BoolColumn:
    """Made anew by one stack, kept until then, and each time longer by the same."""
    features = decided.features
    stack = features.allocations.stack_id
    is_unfinished = features.is_live_at_dump & ~features.has_next_backward
    may_lengthen = features.in_forward & features.has_stack
    may_lengthen &= (
        outlives_forward.column(decided) | is_unfinished | continued.column(decided)
    )
    rows = rows_by(features.alloc, rows_of(may_lengthen))
    lengthening_stacks = []
    for line_rows in grouped(rows, stack):
        sizes = features.sizes[line_rows]
        increases = np.diff(sizes[run_starts(sizes)])
        increases = increases[increases > 0]  # it begins anew with every text
        if len(increases) >= _LEAST_LENGTHENED and np.all(increases == increases[0]):
            lengthening_stacks.append(stack[line_rows[0]])
    return may_lengthen & is_among(stack, lengthening_stacks)


@Condition
def freed_with_caches(decided: Decided) -> BoolColumn:
    """Made in forward as all that its stack keeps, and freed by a line that frees grown caches.

    A cache has grown since. The keys and values of a prompt are parts of what is projected: each
    layer has a block of one size, and those of later tokens are copied into the cache. What comes
    out of an encoder is one block, and collected results are as many as forwards.
    """
    features = decided.features
    free_site = features.allocations.free_stack_id
    caches = decided.has(Category.KV_CACHE) & features.in_forward & features.is_freed
    next_cache = next_of(features.alloc[caches], features.alloc, features.n_events)
    is_left = outlives_forward.column(decided) & features.has_stack & ~caches
    fits = is_left & (next_cache < features.end) & is_among(free_site, free_site[caches])
    marked = np.zeros(len(fits), bool)
    if features.phases.free_sites_known:
        for rows in grouped(rows_of(is_left), features.allocations.stack_id, min_rows=2):
            marked[rows] = fits[rows].all() and np.ptp(features.sizes[rows]) == 0
    return marked


@shared_condition
def filled_alike(decided: Decided) -> BoolColumn:
    """Made of zeros by one stack that makes at least two pairs of the size, and kept.

    A pair is the keys and the values of a layer.
    """
    features = decided.features
    rows = rows_of(features.made_through(Role.ZEROS) & features.is_live_at_dump)
    return _paired(features, rows, features.allocations.stack_id, features.sizes)


@shared_condition
def built_in_pairs(decided: Decided) -> BoolColumn:
    """Put on the device by constructors of layers, at least two pairs of the size, and kept."""
    features = decided.features
    is_built = made_in_nested_constructors.column(decided) & kept_by_program.column(decided)
    rows = rows_of(is_built & (features.sizes >= parameters.SMALL_BYTES))
    return _paired(features, rows, features.sizes)


def _paired(
    features: Features, rows: Int64Column, *keys: Int64Column | Int32Column
) -> BoolColumn:
    """Find those of the rows of which an even number, four or more, have the same keys."""
    _, group = number_groups(*(key[rows] for key in keys))
    counts = np.bincount(group)
    is_of_layers = (counts > 2) & (counts % 2 == 0)
    return features.mask(rows[is_of_layers[group]])


@shared_condition
def in_use_when_memory_ran_out(decided: Decided) -> BoolColumn:
    """In use when memory ran out in its forward, as most of what that had made."""
    features = decided.features
    sizes = features.sizes
    if not len(features.phases.oom_events):
        return np.zeros(len(features.alloc), bool)
    oom_event = next_of(features.phases.oom_events, features.alloc, features.n_events)
    failed = features.in_forward & (oom_event <= features.alloc_run_last)
    in_use = failed & (features.end > oom_event)
    is_trained = sizes[in_use].sum() > _LEAST_IN_USE * sizes[failed].sum()
    return in_use & np.bool_(is_trained)


@shared_condition
def freed_after_first_of_backward(decided: Decided) -> BoolColumn:
    """Freed once backward has freed something that it was seen to make."""
    features = decided.features
    backward_memory = features.by_engine & features.is_freed_by_engine
    first_end = features.end[backward_memory].min(initial=features.n_events)
    return np.asarray(features.end > first_end)


@feature_condition
def lacks_release_frames(features: Features) -> bool:
    """Tell whether no stack shows a backward node that frees what it saved."""
    return not features.roles.has[Role.RELEASE].any()


ends_once_backward_may_free = ends_after_first_forward | (
    lacks_release_frames & freed_after_first_of_backward
)
