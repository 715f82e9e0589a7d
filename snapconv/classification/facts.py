"""The facts: tables, read from top to bottom. The first row whose condition holds decides.

Every row names direct evidence: who made an allocation, when, who freed it, and how long it lived.
What ``FACTS`` leave, the inventory of the job explains; then come the rows of ``LATER``, by weaker
evidence.
"""

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.conditions import (
    always,
    begins_in_backward,
    built_in_pairs,
    cast_of_weight,
    continued,
    dropped_with_graph,
    ends_before_next_phase,
    ends_once_backward_may_free,
    ends_out_of_memory,
    ends_within_backward,
    ends_within_run,
    feeds_module,
    filled_alike,
    follows_a_forward,
    freed_in_step,
    freed_in_zero_grad,
    freed_with_caches,
    has_cpp_frames,
    has_next_backward,
    has_no_frames,
    has_several_backwards,
    in_use_when_memory_ran_out,
    infers,
    is_copied_or_filled,
    is_freed,
    is_freed_by_engine,
    is_freed_in_own_forward,
    is_live_at_dump,
    is_older,
    is_undecided,
    joined_from_samples,
    kept_by_program,
    lasts_throughout,
    lengthened,
    lone_workspace_size,
    made_by_engine,
    made_for_every_parameter,
    made_in_annotated_step,
    made_in_backward,
    made_in_bulk,
    made_in_forward,
    made_in_last_run,
    made_in_nested_constructors,
    made_in_step,
    made_mid_forward,
    made_outside,
    made_without_python,
    may_be_gradient,
    may_be_input,
    may_be_parameter,
    may_copy_a_weight,
    maybe_saves,
    outlives_a_token,
    outlives_forward,
    outlives_iterations,
    precedes_any_forward,
    precedes_first_backward,
    precedes_the_graph,
    preexisting_in_forward,
    preexisting_outside,
    reaches_backward,
    replaces_weights,
    several_lines_keep,
    several_times_weights,
    shows_phases,
    size_of_new_state,
    size_of_weight,
    surely_saves,
    trains,
    twice_as_large,
    used_in_another_backward,
    used_in_backward,
    used_in_forward,
    workspace_size,
)
from snapconv.classification.data_sizes import has_rows_of_batches, has_rows_of_results
from snapconv.classification.decisions import (
    Fact,
    FrameFact,
    Reason,
    freed_through,
    made_through,
)
from snapconv.classification.optimized_data import is_equal_to_optimized, is_optimized
from snapconv.classification.repeated_call import COPY_OF_BEFORE, copies_in_old_graphs
from snapconv.torch_knowledge.frame_patterns import Role

WEIGHT, GRADIENT, STATE = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
ACTIVATION, INPUT, TEMPORARY = Category.ACTIVATION, Category.INPUT, Category.TEMPORARY
WORKSPACE = Category.WORKSPACE
CACHE = Category.KV_CACHE
ANNOTATED = Evidence.ANNOTATION
BY_FREE = Evidence.FREE_SITE
BY_FRAMES = Evidence.FRAMES
BY_SIZES = Evidence.SIZES

# Rows of one slug have one reason.
_BATCH = Reason(
    "made-outside-modules-used-in-forward",
    "copied or created outside of modules and in use in forward",
)
_ZERO_GRAD = Reason(
    "freed-in-zero-grad", "freed inside zero_grad, or where another gradient is assigned"
)
_KEPT_IN_STEP = Reason("made-in-step-and-kept", "made in a step, still in use after it")
_FREED_IN_STEP = Reason("made-in-step-and-freed", "made in a step, freed in it")
_INTO_BACKWARD = Reason(
    "kept-into-backward", "made in forward, still in use when backward begins"
)
_BY_BACKWARD = Reason(
    "freed-by-backward",
    "made in forward, outside of modules before backward, or before the trace; freed by the engine",
)
_LEAF = Reason(
    "dropped-with-its-accumulation",
    "dropped by the node that accumulates the gradient of a leaf, which has the leaf: data whose "
    "gradient is wanted, or that gradient",
)
_BEFORE_BACKWARD = Reason("freed-before-backward", "made in forward, freed before backward")

_FILLED_CACHE = Reason(
    "zeros-for-every-layer",
    "filled with zeros by one line, in pairs of one size, and kept while nothing is trained: keys "
    "and values of layers, written in place",
)

# Of a graph from before the trace that a gradient has held, forward or backward made it.
_dropped_with_gradient = (
    is_older & freed_through(Role.ZERO_GRAD) & freed_through(Role.RELEASE)
)
# A forward makes leaves of its results too, whose gradients are wanted.
_is_leaf = freed_through(Role.LEAF) & ~made_in_forward
_made_by_backward = made_by_engine & made_in_backward
_built = made_outside & precedes_first_backward
_made_between_modules = made_mid_forward & (~feeds_module | has_cpp_frames)
_may_be_batch = may_be_input & is_freed & ~(outlives_iterations & ~is_copied_or_filled)
_batch_still_there = (
    (may_be_input | preexisting_outside) & is_live_at_dump & ~made_in_bulk & shows_phases
)
_batch_still_there &= ~(made_for_every_parameter | may_copy_a_weight)
# In a forward whose backward is yet to come, only the loss uses it: it may be a cast of the result.
_follows_the_model = ~(feeds_module | has_next_backward | precedes_any_forward)
# In an unfinished forward, what was computed between modules is no data.
_like_batch = (is_copied_or_filled & feeds_module) | (
    (is_copied_or_filled | feeds_module) & (has_next_backward | precedes_any_forward)
)

# Reasons of copies of weights, which have no gradient, in forwards alone.
CAST_OF_WEIGHT = "cast-of-a-weight"
COPIES_OF_WEIGHTS = ("autocast-exit", CAST_OF_WEIGHT, COPY_OF_BEFORE)
# Two are the same rule: a recorder's note that autograd saved such a copy is no reason against it.
AUTOCAST_COPY = Fact(
    WEIGHT,
    Reason(
        CAST_OF_WEIGHT,
        "cast by autocast, half as large as a weight, not freed in its own forward: a "
        "copy of the weight, kept by the cache or by the graph",
    ),
    cast_of_weight & ~is_freed_in_own_forward,
    BY_FRAMES,
    follows_phases=False,
)

FACTS = (
    # --- what its stack names
    FrameFact(WORKSPACE, Role.WORKSPACE, always),
    FrameFact(Category.COMMUNICATION, Role.COMMUNICATION, always),
    FrameFact(WEIGHT, Role.REPLICA, always),
    FrameFact(INPUT, Role.SCATTERED, always),
    FrameFact(CACHE, Role.CACHE, always),
    Fact(
        WORKSPACE,
        Reason(
            "cublas-workspace-size",
            "as large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it",
        ),
        workspace_size,
        BY_SIZES,
    ),
    Fact(
        WORKSPACE,
        Reason(
            "lone-workspace-size",
            "as large as cuBLAS's workspace, the only block of that size but for results of "
            "forward, and no multiple of the model's width: no matrix of it",
        ),
        lone_workspace_size,
        BY_SIZES,
        probability=0.9,
    ),
    # --- who freed it
    FrameFact(WEIGHT, Role.UNCACHED, always, is_free_site=True),
    AUTOCAST_COPY,
    copies_in_old_graphs,
    Fact(
        INPUT,
        _BATCH,
        precedes_the_graph
        & feeds_module
        & may_be_input
        & is_freed_by_engine
        & ~made_in_bulk,
    ),
    Fact(
        Category.UNKNOWN,
        Reason(
            "graph-of-a-gradient",
            "from before the trace, and dropped in zero_grad with the graph of a gradient, which "
            "has results of forward and of backward",
        ),
        _dropped_with_gradient,
        Evidence.NONE,
    ),
    Fact(
        GRADIENT,
        Reason(
            "kept-by-a-gradient",
            "made in backward, and dropped in zero_grad with the graph of a gradient",
        ),
        made_by_engine & freed_through(Role.ZERO_GRAD) & freed_through(Role.RELEASE),
        BY_FREE,
        follows_phases=False,
    ),
    Fact(
        GRADIENT,
        _LEAF,
        _is_leaf & made_by_engine,
        BY_FREE,
        follows_phases=False,
    ),
    Fact(
        INPUT,
        _LEAF,
        _is_leaf & may_be_input,
        BY_FREE,
        follows_phases=False,
    ),
    FrameFact(
        ACTIVATION,
        Role.RELEASE,
        ~made_through(Role.OPTIMIZER)
        & ~made_in_step
        & ~is_freed_in_own_forward
        & ~_dropped_with_gradient
        & ~_is_leaf,
        is_free_site=True,
    ),
    Fact(
        GRADIENT,
        _ZERO_GRAD,
        may_be_gradient & freed_in_zero_grad,
        ANNOTATED,
        follows_phases=False,
    ),
    Fact(
        GRADIENT,
        _ZERO_GRAD,
        may_be_gradient
        & (freed_through(Role.ZERO_GRAD) | freed_through(Role.SET_GRAD))
        & ~freed_through(Role.RELEASE),
        BY_FREE,
        follows_phases=False,
    ),
    # --- steps, optimizers and models that are built
    FrameFact(
        WEIGHT,
        Role.PLACEMENT,
        ~made_by_engine & ~made_in_step & (is_live_at_dump | used_in_forward),
    ),
    Fact(
        WEIGHT,
        Reason(
            "made-where-layers-are-built",
            "made before any forward by an `__init__` that another one calls, and in "
            "use in forward: a layer's weight",
        ),
        made_in_nested_constructors
        & may_be_parameter
        & made_outside
        & precedes_any_forward
        & (is_live_at_dump | used_in_forward),
        BY_FRAMES,
        follows_phases=False,
    ),
    Fact(
        WEIGHT,
        Reason(
            "new-value-of-a-weight",
            "made in a step by a line whose results are freed as the weights before "
            "them were: a weight's new value",
        ),
        replaces_weights & ~ends_within_run,
        BY_FREE,
        follows_phases=False,
    ),
    Fact(
        STATE,
        _KEPT_IN_STEP,
        made_in_step & made_in_annotated_step & ~ends_within_run,
        ANNOTATED,
    ),
    Fact(
        TEMPORARY,
        _FREED_IN_STEP,
        made_in_step & made_in_annotated_step & ends_within_run,
        ANNOTATED,
    ),
    Fact(STATE, _KEPT_IN_STEP, made_in_step & ~ends_within_run, BY_FRAMES),
    Fact(TEMPORARY, _FREED_IN_STEP, made_in_step & ends_within_run, BY_FRAMES),
    FrameFact(STATE, Role.OPTIMIZER, is_older),
    FrameFact(STATE, Role.STATES, is_live_at_dump | used_in_backward),
    Fact(
        STATE,
        Reason(
            "replaced-in-step",
            "freed in a step; from before the trace and as large as a state of it, or "
            "made before any backward",
        ),
        freed_in_step
        & (
            (is_older & size_of_new_state)
            | (_built & ~made_mid_forward & ~made_in_nested_constructors)
        ),
    ),
    FrameFact(WEIGHT, Role.NAMED_WEIGHTS, kept_by_program),
    FrameFact(CACHE, Role.NAMED_CACHE, kept_by_program & ~trains),
    # --- made by backward
    FrameFact(
        ACTIVATION,
        Role.RECOMPUTE,
        ~made_through(Role.REENTERED)
        & is_freed_by_engine
        & (~freed_through(Role.RECOMPUTE) | freed_through(Role.REENTERED)),
    ),
    Fact(
        ACTIVATION,
        Reason(
            "kept-for-a-backward-within",
            "computed again inside of backward, and freed by the backward that was called for it "
            "there",
        ),
        _made_by_backward
        & ~made_through(Role.REENTERED)
        & is_freed_by_engine
        & freed_through(Role.REENTERED),
        BY_FREE,
    ),
    Fact(
        TEMPORARY,
        Reason(
            "freed-within-backward",
            "allocated by autograd's engine, freed in the same backward pass or before "
            "the step that follows",
        ),
        _made_by_backward & ends_within_backward,
    ),
    Fact(
        GRADIENT,
        Reason(
            "made-by-accumulation",
            "allocated where autograd gives a parameter its gradient, and kept after the backward "
            "pass: the indices and rows of a sparse one too",
        ),
        _made_by_backward
        & made_through(Role.ACCUMULATION)
        & made_without_python
        & ~ends_within_backward,
        BY_FRAMES,
    ),
    Fact(
        GRADIENT,
        Reason(
            "kept-after-backward",
            "allocated by autograd's engine, kept after the backward pass, as large as a weight",
        ),
        (
            _made_by_backward
            | (lasts_throughout & made_through(Role.ENGINE) & ~has_no_frames)
        )
        & size_of_weight,
    ),
    Fact(
        TEMPORARY,
        Reason(
            "live-in-failed-backward",
            "allocated by autograd's engine, as large as no weight, in a backward pass "
            "that ran out of memory",
        ),
        _made_by_backward & is_live_at_dump & ends_out_of_memory & made_in_last_run,
    ),
    Fact(
        GRADIENT,
        Reason(
            "joined-from-samples",
            "made outside of modules after a backward, and as many times as large as weights of "
            "most sizes: gradients of every sample, joined or scaled",
        ),
        joined_from_samples,
        BY_SIZES,
        probability=0.9,
    ),
    # --- data that is trained
    Fact(
        WEIGHT,
        Reason(
            "optimized-data",
            "made outside of modules, as large as a gradient and the states of a parameter that no "
            "weight is, and there as long as these: what the optimizer changes",
        ),
        is_optimized,
        BY_SIZES,
        probability=0.9,
    ),
    Fact(
        Category.UNKNOWN,
        Reason(
            "equal-to-optimized-data",
            "made outside of modules, and as large as others of which an optimizer changes some: "
            "nothing shows which",
        ),
        is_equal_to_optimized,
        Evidence.NONE,
    ),
    # --- made in forward
    Fact(
        INPUT,
        _BATCH,
        _may_be_batch & is_copied_or_filled & ~_follows_the_model,
        BY_FRAMES,
    ),
    Fact(
        ACTIVATION,
        _BY_BACKWARD,
        is_freed_by_engine
        & (
            made_in_forward
            | (made_outside & reaches_backward)
            | (is_older & ends_once_backward_may_free)
        ),
        BY_FREE,
    ),
    Fact(
        ACTIVATION,
        _INTO_BACKWARD,
        (made_in_forward | _made_between_modules) & reaches_backward & ~outlives_iterations,
    ),
    Fact(
        CACHE,
        Reason(
            "cache-that-grew",
            "made anew by a cache of keys and values without a backward, and kept there",
        ),
        made_through(Role.CACHE_UPDATE)
        & ~has_next_backward
        & (
            (outlives_forward & ~surely_saves)
            | continued
            | outlives_a_token
            | (
                infers
                & (
                    (made_in_forward & is_live_at_dump)
                    | made_outside
                    | preexisting_in_forward
                )
            )
        ),
        BY_FRAMES,
    ),
    Fact(
        CACHE,
        Reason(
            "cache-that-lengthened",
            "made anew by one line in forwards of an inference, each time longer by "
            "the same, and kept",
        ),
        infers & lengthened & ~maybe_saves,
    ),
    Fact(
        CACHE,
        Reason(
            "freed-with-caches",
            "all that a line keeps, in blocks of one size, freed with caches once these had grown: "
            "keys and values of the first tokens",
        ),
        infers & freed_with_caches,
        BY_FREE,
        probability=0.9,
    ),
    Fact(
        CACHE,
        _FILLED_CACHE,
        infers & filled_alike & made_in_forward & outlives_forward,
        BY_SIZES,
        probability=0.9,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "made-in-forward-and-live-at-dump",
            "made in forward, never freed, and no backward follows, where several lines keep "
            "results or its forward is over",
        ),
        made_in_forward
        & ~is_freed
        & is_live_at_dump
        & ~has_next_backward
        & (
            trains
            | several_lines_keep
            | made_through(Role.CHECKPOINTED)
            | outlives_forward
            | follows_a_forward
        ),
    ),
    Fact(
        ACTIVATION,
        Reason(
            "live-in-failed-forward",
            "made in a forward in which memory ran out, in use then, as most of what it had made",
        ),
        in_use_when_memory_ran_out,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "dropped-with-its-graph",
            "made in forward, and freed at once with what many other lines of it made, by a line "
            "outside of modules: a graph without a backward",
        ),
        dropped_with_graph & ~reaches_backward,
        BY_FREE,
    ),
    Fact(
        TEMPORARY,
        _BEFORE_BACKWARD,
        made_in_forward & is_freed & ~is_freed_by_engine & ~reaches_backward,
    ),
    # --- made outside of modules
    Fact(TEMPORARY, _BEFORE_BACKWARD, _made_between_modules & is_freed & ~reaches_backward),
    Fact(
        INPUT,
        _BATCH,
        _may_be_batch
        & feeds_module
        & ~made_mid_forward
        & ~made_for_every_parameter
        & (made_through(Role.COLLECTED) | ~made_in_bulk),
    ),
    Fact(
        TEMPORARY,
        Reason(
            "freed-soon-outside-modules",
            "made outside of modules, freed before the next forward or backward",
        ),
        made_outside & is_freed & ends_before_next_phase,
    ),
    # --- data that stays
    Fact(
        INPUT,
        Reason(
            "rows-of-batches",
            "there throughout, as large as nothing that is trained, and as many times as large as "
            "a batch as other data is: batches are rows of it",
        ),
        has_rows_of_batches,
        BY_SIZES,
        probability=0.98,
    ),
    Fact(
        INPUT,
        Reason(
            "rows-of-results",
            "there throughout, as large as nothing that is trained, and a multiple of the rows "
            "that results of forward have: data that is used as a whole",
        ),
        has_rows_of_results,
        BY_SIZES,
        probability=0.9,
    ),
)

# Evaluated after the inventory of the job.
LATER = (
    Fact(
        GRADIENT,
        Reason(
            "gradient-of-every-sample",
            "made in backward, left behind, and freed before the next forward; as many "
            "times as large as weights of most sizes: gradients of every sample, or of more "
            "precision than weights",
        ),
        _made_by_backward
        & several_times_weights
        & is_freed
        & ~used_in_forward
        & ~used_in_another_backward,
        BY_SIZES,
    ),
    Fact(
        STATE,
        Reason(
            "zeros-for-every-parameter",
            "kept, and filled with zeros by a line that makes one for every parameter: moments",
        ),
        made_for_every_parameter & made_through(Role.ZEROS) & is_live_at_dump,
        BY_SIZES,
    ),
    Fact(
        ACTIVATION,
        _INTO_BACKWARD,
        preexisting_in_forward & ~(is_live_at_dump & has_several_backwards),
    ),
    Fact(
        CACHE,
        _FILLED_CACHE,
        infers & filled_alike & kept_by_program,
        BY_SIZES,
        probability=0.9,
    ),
    Fact(
        CACHE,
        Reason(
            "built-for-every-layer",
            "put on the device by constructors of layers, in pairs of one size, while the model is "
            "moved there later and nothing is trained: keys and values, written in place",
        ),
        infers & built_in_pairs & ~may_be_parameter,
        BY_SIZES,
        probability=0.85,
    ),
    Fact(
        WEIGHT,
        Reason(
            "full-precision-of-every-parameter",
            "one for every parameter in full precision, made before the first backward and kept, "
            "and states are as large: the weights that the optimizer works on",
        ),
        twice_as_large & precedes_first_backward & is_live_at_dump & size_of_new_state,
        BY_SIZES,
        probability=0.9,
    ),
    Fact(
        WEIGHT,
        Reason(
            "copy-of-a-weight",
            "computed on the device before any forward, as large as a weight, and kept for "
            "iterations: weights as they were",
        ),
        may_copy_a_weight & has_cpp_frames,
        BY_SIZES,
        probability=0.8,
    ),
    Fact(
        INPUT, _BATCH, _batch_still_there & (_like_batch | (is_older & ~begins_in_backward))
    ),
)

# Evaluated last: likely, as often right as stated (measured on 60 programs of the benchmark, in all
# cuts).
LIKELY = (
    Fact(
        GRADIENT,
        Reason(
            "likely-left-by-backward",
            "made in backward and left behind, and as large as several gradients of one weight",
        ),
        _made_by_backward & several_times_weights & ~used_in_another_backward,
        probability=0.85,
    ),
    Fact(
        TEMPORARY,
        Reason(
            "likely-freed-by-the-program",
            "made outside of modules after a forward began, and freed, with no backward after it",
        ),
        made_outside & is_freed & ~has_next_backward & ~precedes_any_forward,
        probability=0.95,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "likely-kept-for-a-backward",
            "made outside of modules after a forward began, and still there, with no "
            "backward after it",
        ),
        made_outside
        & is_live_at_dump
        & ~has_next_backward
        & ~precedes_any_forward
        & ~is_copied_or_filled,
        probability=0.85,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "likely-saved-before-the-trace",
            "pre-existing, and freed, where a forward keeps results for a backward",
        ),
        is_older & is_freed & surely_saves,
        probability=0.8,
    ),
    # It may be weights, states or data: any purpose would be a guess.
    Fact(
        Category.UNKNOWN,
        Reason(
            "persistent-since-before-the-recording",
            "there before the first event and at the dump; only its line, if it has "
            "one, may show what it is for",
        ),
        is_undecided & lasts_throughout,
        Evidence.NONE,
    ),
)

# Pinned host memory may be pinned on any thread at any time: lifetimes and phases are no evidence
# there.
HOST_FACTS = (
    FrameFact(INPUT, Role.PINNED_BATCH, always),
    FrameFact(ACTIVATION, Role.OFFLOADED, always),
)
