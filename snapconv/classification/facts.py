"""The facts: two tables, read from top to bottom. The first row whose condition holds decides.

Every row names direct evidence: who made an allocation, when, who freed it, and how long it lived. What it
leaves, the inventory of the job explains; then come the rows of ``LATER``, by weaker evidence.
"""

from snapconv.classification import atoms as a
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Fact, FrameFact, freed, made
from snapconv.torch_knowledge.frame_roles import Role

WEIGHT, GRADIENT, STATE = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
ACTIVATION, INPUT, TEMPORARY, CACHE = (
    Category.ACTIVATION,
    Category.INPUT,
    Category.TEMPORARY,
    Category.KV_CACHE,
)
BY_FRAMES, BY_LIFETIME, BY_FREE, BY_SIZES = (
    Evidence.FRAMES,
    Evidence.LIFETIME,
    Evidence.FREE_SITE,
    Evidence.SIZES,
)

_by_backward = a.by_engine & a.in_backward
_engine_frees_older = a.older & a.freed_by_engine & ~freed(Role.COMPILED)
_saved_by_older_forward = a.ends_after_first_forward | (~a.names_release & a.freed_after_own)
_batch = (a.may_be_input | a.older_outside) & ~a.for_each_parameter
_batch_still_there = _batch & a.is_live & ~a.in_bulk & a.shows_phases

_USED_IN_FORWARD = (
    "made-outside-modules-used-in-forward",
    "copied or created outside of modules and in use in forward",
)
_KEPT_IN_STEP = "made-in-step-and-kept", "made in a step, still in use after it"
_FREED_IN_STEP = "made-in-step-and-freed", "made in a step, freed in it"
_ZERO_GRAD = "freed-in-zero-grad", "freed inside zero_grad, or where another gradient is assigned"
_KEPT_AFTER_BACKWARD = "kept-after-backward", "made by the engine, kept, as large as a weight"
_FREED_BY_BACKWARD = (
    "freed-by-backward",
    "made in forward, or just before backward outside of modules; freed by the engine",
)
_WITHIN = (
    "freed-within-backward",
    "made by the engine, freed in the same run of backward or before the step that follows it",
)
_INTO_BACKWARD = "kept-into-backward", "made in forward, still in use when backward begins"
_BEFORE_BACKWARD = "freed-before-backward", "made in forward, freed before backward"
_LIVE_AT_DUMP = (
    "made-in-forward-and-live-at-dump",
    "made in forward, never freed, and no backward follows",
)
_CACHE_GREW = (
    "cache-that-grew",
    "made anew by a cache of keys and values without a backward, and kept there",
)

FACTS: tuple[Fact | FrameFact, ...] = (
    # --- what its stack names
    FrameFact(Category.WORKSPACE, Role.WORKSPACE, a.everything),
    FrameFact(Category.COMMUNICATION, Role.COMMUNICATION, a.everything),
    FrameFact(WEIGHT, Role.REPLICA, a.everything),
    FrameFact(INPUT, Role.SCATTERED, a.everything),
    FrameFact(CACHE, Role.CACHE, a.everything),
    Fact(
        Category.WORKSPACE,
        "cublas-workspace-size",
        "as large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it",
        BY_SIZES,
        a.workspace_size,
    ),
    # --- who freed it
    Fact(
        INPUT,
        *_USED_IN_FORWARD,
        BY_LIFETIME,
        a.before_the_graph & a.feeds_module & a.may_be_input & a.freed_by_engine & ~a.in_bulk,
        uses_phases=True,
    ),
    FrameFact(
        ACTIVATION,
        Role.RELEASE,
        ~made(Role.OPTIMIZER) & ~a.in_step & ~a.freed_in_own_forward,
        is_free_site=True,
    ),
    Fact(GRADIENT, *_ZERO_GRAD, Evidence.ANNOTATION, a.may_be_gradient & a.freed_in_zero_grad),
    Fact(
        GRADIENT,
        *_ZERO_GRAD,
        BY_FREE,
        a.may_be_gradient & (freed(Role.ZERO_GRAD) | freed(Role.SET_GRAD)),
    ),
    # --- steps, optimizers and models that are built
    FrameFact(WEIGHT, Role.PLACEMENT, ~a.by_engine & ~a.in_step & (a.is_live | a.in_use_in_forward)),
    Fact(
        WEIGHT,
        "made-where-layers-are-built",
        "made before any forward by an `__init__` that another one calls, and in use in forward: a layer's "
        "weight",
        BY_FRAMES,
        a.in_nested_constructors & a.outside & a.before_any_forward & (a.is_live | a.in_use_in_forward),
    ),
    Fact(
        WEIGHT,
        "new-value-of-a-weight",
        "made in a step by a line whose results are freed as the weights before them were: a weight's new "
        "value",
        BY_FREE,
        a.replaces_weights & ~a.ends_within_run,
    ),
    Fact(
        STATE,
        "replaced-in-step",
        "made before a step that frees it, and no weight: a state that the step makes anew",
        BY_LIFETIME,
        a.outside & a.before_first_backward & a.freed_in_step & ~a.mid_forward & ~a.in_nested_constructors,
        uses_phases=True,
    ),
    Fact(
        STATE,
        *_KEPT_IN_STEP,
        Evidence.ANNOTATION,
        a.in_step & a.in_annotated_step & ~a.ends_within_run,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        *_FREED_IN_STEP,
        Evidence.ANNOTATION,
        a.in_step & a.in_annotated_step & a.ends_within_run,
        uses_phases=True,
    ),
    Fact(STATE, *_KEPT_IN_STEP, BY_FRAMES, a.in_step & ~a.ends_within_run, uses_phases=True),
    Fact(TEMPORARY, *_FREED_IN_STEP, BY_FRAMES, a.in_step & a.ends_within_run, uses_phases=True),
    FrameFact(STATE, Role.OPTIMIZER, a.older),
    FrameFact(STATE, Role.STATES, a.is_live | a.in_use_in_backward),
    Fact(
        STATE,
        "replaced-in-step",
        "pre-existing, freed in a step, as large as a state made in one",
        BY_LIFETIME,
        a.older & a.freed_in_step & a.size_of_made_state,
        uses_phases=True,
    ),
    FrameFact(WEIGHT, Role.NAMED_WEIGHTS, a.kept_by_program),
    FrameFact(CACHE, Role.NAMED_CACHE, a.kept_by_program & ~a.trains),
    # --- made by backward
    FrameFact(
        ACTIVATION,
        Role.RECOMPUTE,
        ~made(Role.REENTERED) & a.freed_by_engine & (~freed(Role.RECOMPUTE) | freed(Role.REENTERED)),
    ),
    Fact(
        GRADIENT,
        "freed-by-hook-of-gradient",
        "made by the engine, as large as a weight, and freed by Python code that it called: a hook",
        BY_FREE,
        a.freed_in_hook & _by_backward & ~a.in_hook & a.size_of_weight,
    ),
    Fact(
        TEMPORARY,
        *_WITHIN,
        BY_LIFETIME,
        _by_backward & (a.ends_within_backward | a.ends_before_step),
        uses_phases=True,
    ),
    Fact(
        GRADIENT,
        *_KEPT_AFTER_BACKWARD,
        BY_LIFETIME,
        _by_backward & a.size_of_weight,
        uses_phases=True,
    ),
    Fact(
        GRADIENT,
        *_KEPT_AFTER_BACKWARD,
        BY_LIFETIME,
        a.older & a.is_live & made(Role.ENGINE) & ~a.without_frames & a.size_of_weight,
        uses_phases=True,
    ),
    Fact(
        GRADIENT,
        *_KEPT_AFTER_BACKWARD,
        BY_LIFETIME,
        a.older & a.is_live & a.without_frames & a.as_many_as_named_weights,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        "live-in-failed-backward",
        "made by the engine, as large as no weight, in a backward that ran out of memory at the trace's end",
        BY_LIFETIME,
        _by_backward & a.is_live & a.ends_out_of_memory & a.in_last_run,
        uses_phases=True,
    ),
    # --- made in forward
    Fact(
        GRADIENT,
        "gradients-of-samples",
        "kept for the step, of nearly all parameters' sizes times one number: gradients of every sample",
        BY_SIZES,
        a.of_samples,
    ),
    Fact(
        INPUT,
        *_USED_IN_FORWARD,
        BY_FRAMES,
        a.may_be_input & a.from_nothing & a.is_freed,
        uses_phases=True,
    ),
    Fact(ACTIVATION, *_FREED_BY_BACKWARD, BY_FREE, a.in_forward & a.freed_by_engine, uses_phases=True),
    Fact(
        ACTIVATION,
        *_INTO_BACKWARD,
        BY_LIFETIME,
        a.in_forward & a.reaches_backward & ~a.held_by_attribute,
        uses_phases=True,
    ),
    Fact(
        CACHE,
        *_CACHE_GREW,
        BY_FRAMES,
        made(Role.CACHE_UPDATE)
        & ~a.has_backward
        & (a.outlives_forward | (a.infers & ((a.in_forward & a.is_live) | a.outside | a.older_in_forward))),
        uses_phases=True,
    ),
    Fact(
        CACHE,
        "cache-that-lengthened",
        "made anew by one line in forwards of an inference, each time longer by the same, and kept",
        BY_LIFETIME,
        a.lengthened & a.infers & ~a.maybe_saves,
    ),
    Fact(
        ACTIVATION,
        *_LIVE_AT_DUMP,
        BY_LIFETIME,
        a.in_forward & ~a.is_freed & a.is_live & ~a.has_backward,
        uses_phases=True,
    ),
    Fact(
        ACTIVATION,
        "live-in-failed-forward",
        "made in a forward in which memory ran out, in use then, as most of what it had made",
        BY_LIFETIME,
        a.in_use_when_memory_ran_out,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        *_BEFORE_BACKWARD,
        BY_LIFETIME,
        a.in_forward & a.is_freed & ~a.freed_by_engine & ~a.reaches_backward,
        uses_phases=True,
    ),
    # --- made outside of modules
    Fact(
        ACTIVATION,
        *_FREED_BY_BACKWARD,
        BY_FREE,
        a.outside & a.freed_by_engine & a.reaches_backward,
        uses_phases=True,
    ),
    Fact(
        ACTIVATION,
        *_INTO_BACKWARD,
        BY_LIFETIME,
        a.mid_forward & (~a.feeds_module | a.has_cpp) & a.reaches_backward,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        *_BEFORE_BACKWARD,
        BY_LIFETIME,
        a.mid_forward & (~a.feeds_module | a.has_cpp) & a.is_freed & ~a.reaches_backward,
        uses_phases=True,
    ),
    Fact(
        INPUT,
        *_USED_IN_FORWARD,
        BY_LIFETIME,
        a.may_be_input
        & a.feeds_module
        & a.is_freed
        & ~a.mid_forward
        & ~a.for_each_parameter
        & (made(Role.COLLECTED) | ~a.in_bulk),
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        "freed-soon-outside-modules",
        "made outside of modules, freed before the next forward or backward",
        BY_LIFETIME,
        a.outside & a.is_freed & a.ends_before_next_phase & ~a.for_each_parameter,
        uses_phases=True,
    ),
    # --- there before the trace, and freed in it
    Fact(
        TEMPORARY,
        *_BEFORE_BACKWARD,
        BY_LIFETIME,
        a.older & a.ends_in_forward & a.ends_in_first_run & a.trains,
        uses_phases=True,
    ),
    Fact(
        ACTIVATION,
        *_FREED_BY_BACKWARD,
        BY_FREE,
        _engine_frees_older & _saved_by_older_forward,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        *_WITHIN,
        BY_LIFETIME,
        _engine_frees_older & a.names_release & ~a.has_recompute & a.free_was_requested,
        uses_phases=True,
    ),
)

# Evaluated after the inventory of the job.
LATER: tuple[Fact, ...] = (
    Fact(
        ACTIVATION,
        *_INTO_BACKWARD,
        BY_LIFETIME,
        a.of_functions & a.in_use_in_backward,
        uses_phases=True,
    ),
    Fact(
        TEMPORARY,
        *_BEFORE_BACKWARD,
        BY_LIFETIME,
        a.of_functions & a.is_freed,
        uses_phases=True,
    ),
    Fact(
        INPUT,
        *_USED_IN_FORWARD,
        BY_LIFETIME,
        a.without_modules & a.before_functions & a.in_use_in_backward & ~a.in_bulk,
        uses_phases=True,
    ),
    Fact(ACTIVATION, *_LIVE_AT_DUMP, BY_LIFETIME, a.older_in_forward & ~a.has_backward, uses_phases=True),
    Fact(INPUT, *_USED_IN_FORWARD, BY_FRAMES, _batch_still_there & a.from_nothing, uses_phases=True),
    Fact(
        INPUT,
        *_USED_IN_FORWARD,
        BY_LIFETIME,
        _batch_still_there
        & (a.renewed | a.of_last_iteration | a.before_any_forward)
        & (a.feeds_module | (a.older & ~a.begins_in_backward)),
        uses_phases=True,
    ),
    Fact(ACTIVATION, *_INTO_BACKWARD, BY_LIFETIME, a.older_in_forward, uses_phases=True),
    Fact(
        ACTIVATION,
        *_FREED_BY_BACKWARD,
        BY_FREE,
        a.older & freed(Role.COMPILED) & a.freed_by_engine & a.freed_after_own,
        uses_phases=True,
    ),
)

# Evaluated last: likely, as often right as stated (measured on 60 programs of the benchmark, in all cuts).
LIKELY: tuple[Fact, ...] = (
    Fact(
        TEMPORARY,
        "likely-freed-by-the-program",
        "made outside of modules after a forward began, and freed, with no backward after it",
        BY_LIFETIME,
        a.outside & a.is_freed & ~a.has_backward & ~a.before_any_forward,
        probability=0.95,
    ),
    Fact(
        ACTIVATION,
        "likely-kept-for-a-backward",
        "made outside of modules after a forward began, and still there, with no backward after it",
        BY_LIFETIME,
        a.outside & a.is_live & ~a.has_backward & ~a.before_any_forward & ~a.from_nothing,
        probability=0.85,
    ),
    Fact(
        ACTIVATION,
        "likely-saved-before-the-trace",
        "pre-existing, and freed, where a forward keeps results for a backward",
        BY_LIFETIME,
        a.older & a.is_freed & a.surely_saves,
        probability=0.8,
    ),
)

# Pinned host memory may be pinned on any thread at any time: lifetimes and phases are no evidence there.
HOST_FACTS: tuple[FrameFact, ...] = (
    FrameFact(INPUT, Role.PINNED_BATCH, a.everything),
    FrameFact(ACTIVATION, Role.OFFLOADED, a.everything),
)
