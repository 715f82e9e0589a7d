"""The facts: tables, read from top to bottom. The first row whose condition holds decides.

Every row names direct evidence: who made an allocation, when, who freed it, and how long it lived.
What ``FACTS`` leave, the inventory of the job explains; then come the rows of ``LATER``, by weaker
evidence.
"""

from snapconv.classification import atoms as a
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Fact, FrameFact, Reason, freed, made
from snapconv.classification.decisions import feature as f
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
_INTO_BACKWARD = Reason("kept-into-backward", "made in forward, still in use when backward begins")
_BY_BACKWARD = Reason(
    "freed-by-backward",
    "made in forward, outside of modules before backward, or before the trace; freed by the engine",
)
_BEFORE_BACKWARD = Reason("freed-before-backward", "made in forward, freed before backward")

_by_backward = f.by_engine & a.in_backward
_built = f.outside & a.before_first_backward
_between_modules = f.mid_forward & (~f.feeds_module | f.has_cpp)
_may_be_batch = f.may_be_input & f.is_freed
_batch_still_there = (
    (f.may_be_input | f.preexisting_outside) & f.is_live_at_dump & ~a.in_bulk & a.shows_phases
)
_batch_still_there &= ~a.for_every_parameter
# Of an unfinished forward, what was computed between modules is no data.
_like_batch = (f.from_nothing & f.feeds_module) | (
    (f.from_nothing | f.feeds_module) & (f.has_next_backward | a.before_any_forward)
)

# Reasons of copies of weights, which have no gradient, in forwards alone.
CAST_OF_WEIGHT = "cast-of-a-weight"
COPIES_OF_WEIGHTS = ("autocast-exit", CAST_OF_WEIGHT)
# Two are the same rule: a recorder's note that autograd saved such a copy is no reason against it.
AUTOCAST_COPY = Fact(
    WEIGHT,
    Reason(
        CAST_OF_WEIGHT,
        "cast by autocast, half as large as a weight, not freed in its own forward: a copy of the "
        "weight, "
        "kept by the cache or by the graph",
    ),
    a.cast_of_weight & ~f.is_freed_in_own_forward,
    BY_FRAMES,
    by_phases=False,
)

FACTS = (
    # --- what its stack names
    FrameFact(WORKSPACE, Role.WORKSPACE, a.everything),
    FrameFact(Category.COMMUNICATION, Role.COMMUNICATION, a.everything),
    FrameFact(WEIGHT, Role.REPLICA, a.everything),
    FrameFact(INPUT, Role.SCATTERED, a.everything),
    FrameFact(CACHE, Role.CACHE, a.everything),
    Fact(
        WORKSPACE,
        Reason(
            "cublas-workspace-size",
            "as large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it",
        ),
        a.workspace_size,
        BY_SIZES,
    ),
    # --- who freed it
    FrameFact(WEIGHT, Role.UNCACHED, a.everything, is_free_site=True),
    AUTOCAST_COPY,
    Fact(
        INPUT,
        _BATCH,
        a.before_the_graph & f.feeds_module & f.may_be_input & f.is_freed_by_engine & ~a.in_bulk,
    ),
    FrameFact(
        ACTIVATION,
        Role.RELEASE,
        ~made(Role.OPTIMIZER) & ~a.in_step & ~f.is_freed_in_own_forward,
        is_free_site=True,
    ),
    Fact(
        GRADIENT, _ZERO_GRAD, a.may_be_gradient & a.freed_in_zero_grad, ANNOTATED, by_phases=False
    ),
    Fact(
        GRADIENT,
        _ZERO_GRAD,
        a.may_be_gradient & (freed(Role.ZERO_GRAD) | freed(Role.SET_GRAD)),
        BY_FREE,
        by_phases=False,
    ),
    # --- steps, optimizers and models that are built
    FrameFact(
        WEIGHT,
        Role.PLACEMENT,
        ~f.by_engine & ~a.in_step & (f.is_live_at_dump | a.in_use_in_forward),
    ),
    Fact(
        WEIGHT,
        Reason(
            "made-where-layers-are-built",
            "made before any forward by an `__init__` that another one calls, and in use in "
            "forward: a "
            "layer's weight",
        ),
        a.in_nested_constructors
        & f.outside
        & a.before_any_forward
        & (f.is_live_at_dump | a.in_use_in_forward),
        BY_FRAMES,
        by_phases=False,
    ),
    Fact(
        WEIGHT,
        Reason(
            "new-value-of-a-weight",
            "made in a step by a line whose results are freed as the weights before them were: a "
            "weight's "
            "new value",
        ),
        a.replaces_weights & ~a.ends_within_run,
        BY_FREE,
        by_phases=False,
    ),
    Fact(STATE, _KEPT_IN_STEP, a.in_step & a.in_annotated_step & ~a.ends_within_run, ANNOTATED),
    Fact(TEMPORARY, _FREED_IN_STEP, a.in_step & a.in_annotated_step & a.ends_within_run, ANNOTATED),
    Fact(STATE, _KEPT_IN_STEP, a.in_step & ~a.ends_within_run, BY_FRAMES),
    Fact(TEMPORARY, _FREED_IN_STEP, a.in_step & a.ends_within_run, BY_FRAMES),
    FrameFact(STATE, Role.OPTIMIZER, a.older),
    FrameFact(STATE, Role.STATES, f.is_live_at_dump | a.in_use_in_backward),
    Fact(
        STATE,
        Reason(
            "replaced-in-step",
            "freed in a step; from before the trace and as large as a state of it, or made before "
            "any "
            "backward",
        ),
        a.freed_in_step
        & (
            (a.older & a.size_of_made_state) | (_built & ~f.mid_forward & ~a.in_nested_constructors)
        ),
    ),
    FrameFact(WEIGHT, Role.NAMED_WEIGHTS, a.kept_by_program),
    FrameFact(CACHE, Role.NAMED_CACHE, a.kept_by_program & ~a.trains),
    # --- made by backward
    FrameFact(
        ACTIVATION,
        Role.RECOMPUTE,
        ~made(Role.REENTERED)
        & f.is_freed_by_engine
        & (~freed(Role.RECOMPUTE) | freed(Role.REENTERED)),
    ),
    Fact(
        TEMPORARY,
        Reason(
            "freed-within-backward",
            "allocated by autograd's engine, freed in the same backward pass or before the step "
            "that follows",
        ),
        _by_backward & a.ends_within_backward,
    ),
    Fact(
        GRADIENT,
        Reason(
            "kept-after-backward",
            "allocated by autograd's engine, kept after the backward pass, as large as a weight",
        ),
        (_by_backward | (f.lasts_throughout & made(Role.ENGINE) & ~f.has_no_frames))
        & a.size_of_weight,
    ),
    Fact(
        TEMPORARY,
        Reason(
            "live-in-failed-backward",
            "allocated by autograd's engine, as large as no weight, in a backward pass that ran "
            "out of "
            "memory",
        ),
        _by_backward & f.is_live_at_dump & a.ends_out_of_memory & a.in_last_run,
    ),
    # --- made in forward
    Fact(INPUT, _BATCH, _may_be_batch & f.from_nothing, BY_FRAMES),
    Fact(
        ACTIVATION,
        _BY_BACKWARD,
        f.is_freed_by_engine
        & (f.in_forward | (f.outside & f.reaches_backward) | (a.older & a.after_forward_or_own)),
        BY_FREE,
    ),
    Fact(ACTIVATION, _INTO_BACKWARD, (f.in_forward | _between_modules) & f.reaches_backward),
    Fact(
        CACHE,
        Reason(
            "cache-that-grew",
            "made anew by a cache of keys and values without a backward, and kept there",
        ),
        made(Role.CACHE_UPDATE)
        & ~f.has_next_backward
        & (
            a.outlives_forward
            | (
                a.infers
                & ((f.in_forward & f.is_live_at_dump) | f.outside | f.preexisting_in_forward)
            )
        ),
        BY_FRAMES,
    ),
    Fact(
        CACHE,
        Reason(
            "cache-that-lengthened",
            "made anew by one line in forwards of an inference, each time longer by the same, and "
            "kept",
        ),
        a.infers & a.lengthened & ~a.maybe_saves,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "made-in-forward-and-live-at-dump",
            "made in forward, never freed, and no backward follows",
        ),
        f.in_forward & ~f.is_freed & f.is_live_at_dump & ~f.has_next_backward,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "live-in-failed-forward",
            "made in a forward in which memory ran out, in use then, as most of what it had made",
        ),
        a.in_use_when_memory_ran_out,
    ),
    Fact(
        TEMPORARY,
        _BEFORE_BACKWARD,
        f.in_forward & f.is_freed & ~f.is_freed_by_engine & ~f.reaches_backward,
    ),
    # --- made outside of modules
    Fact(TEMPORARY, _BEFORE_BACKWARD, _between_modules & f.is_freed & ~f.reaches_backward),
    Fact(
        INPUT,
        _BATCH,
        _may_be_batch
        & f.feeds_module
        & ~f.mid_forward
        & ~a.for_every_parameter
        & (made(Role.COLLECTED) | ~a.in_bulk),
    ),
    Fact(
        TEMPORARY,
        Reason(
            "freed-soon-outside-modules",
            "made outside of modules, freed before the next forward or backward",
        ),
        f.outside & f.is_freed & a.ends_before_next_phase,
    ),
)

# Evaluated after the inventory of the job.
LATER = (
    Fact(
        STATE,
        Reason(
            "zeros-for-every-parameter",
            "kept, and filled with zeros by a line that makes one for every parameter: moments",
        ),
        a.for_every_parameter & made(Role.ZEROS) & f.is_live_at_dump,
        BY_SIZES,
    ),
    Fact(
        WEIGHT,
        Reason(
            "full-precision-of-every-parameter",
            "one for every parameter in full precision, made before the first backward and kept, "
            "and states "
            "are as large: the weights that the optimizer works on",
        ),
        a.twice_as_large & a.before_first_backward & f.is_live_at_dump & a.size_of_made_state,
        BY_SIZES,
    ),
    Fact(ACTIVATION, _INTO_BACKWARD, f.preexisting_in_forward),
    Fact(INPUT, _BATCH, _batch_still_there & (_like_batch | (a.older & ~a.begins_in_backward))),
)

# Evaluated last: likely, as often right as stated (measured on 60 programs of the benchmark, in all
# cuts).
LIKELY = (
    Fact(
        TEMPORARY,
        Reason(
            "likely-freed-by-the-program",
            "made outside of modules after a forward began, and freed, with no backward after it",
        ),
        f.outside & f.is_freed & ~f.has_next_backward & ~a.before_any_forward,
        probability=0.95,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "likely-kept-for-a-backward",
            "made outside of modules after a forward began, and still there, with no backward "
            "after it",
        ),
        f.outside
        & f.is_live_at_dump
        & ~f.has_next_backward
        & ~a.before_any_forward
        & ~f.from_nothing,
        probability=0.85,
    ),
    Fact(
        ACTIVATION,
        Reason(
            "likely-saved-before-the-trace",
            "pre-existing, and freed, where a forward keeps results for a backward",
        ),
        a.older & f.is_freed & a.surely_saves,
        probability=0.8,
    ),
    # It may be weights, states or data: any purpose would be a guess.
    Fact(
        Category.UNKNOWN,
        Reason(
            "persistent-since-before-the-recording",
            "there before the first event and at the dump; only its line, if it has one, may show "
            "what it is "
            "for",
        ),
        a.undecided & f.lasts_throughout,
        Evidence.NONE,
    ),
)

# Pinned host memory may be pinned on any thread at any time: lifetimes and phases are no evidence
# there.
HOST_FACTS = (
    FrameFact(INPUT, Role.PINNED_BATCH, a.everything),
    FrameFact(ACTIVATION, Role.OFFLOADED, a.everything),
)
