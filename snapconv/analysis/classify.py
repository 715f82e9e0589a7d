"""The category of every allocation, with its evidence and the rule that decided.

Decisions run from the strongest evidence to the weakest, and the first one stands: the user's own rules,
what a recorder noted, what freed the memory, whose code allocated it, how long it lived, and last, whether
sizes repeat as those of gradients and optimizer states must. What nothing speaks for stays unknown.
"""

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Classification, Decisions, Opinion
from snapconv.analysis.facts import Facts, at, first_before, next_of
from snapconv.analysis.held import decide_held, made_in_bulk
from snapconv.analysis.inference import decide_inference
from snapconv.analysis.metadata import Joined, decide_noted
from snapconv.analysis.persistent import sort_persistent
from snapconv.analysis.phases import Phase, Phases
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.rules import CUBLAS_WORKSPACE_BYTES, Role
from snapconv.analysis.stack_roles import StackRoles
from snapconv.analysis.user_rules import NO_RULES, UserRules

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]

# How often a line has run again when what it made is held on purpose, and not handed on by a loop.
_HELD_TIMES = 2


def classify(
    allocations: AllocationTable,
    phases: Phases,
    roles: StackRoles,
    user: UserRules = NO_RULES,
    *,
    noted: Joined | None = None,
    is_host: bool = False,
) -> Classification:
    """Classify every allocation of one device; ``noted`` is what a recorder said of them.

    Of pinned host memory (``is_host``) only what its own stack says counts: it may be pinned on any thread at
    any time, so that lifetimes and phases are no evidence.
    """
    decisions = Decisions(allocations, roles, phases_are_recorded=phases.is_recorded)
    _decide(decisions, Facts(allocations, phases, roles), user, noted, is_host=is_host)
    return decisions.result()


def weigh(
    allocations: AllocationTable,
    phases: Phases,
    roles: StackRoles,
    user: UserRules = NO_RULES,
    *,
    noted: Joined | None = None,
    is_host: bool = False,
    rows: Int64Column,
) -> tuple[Opinion, ...]:
    """What every rule says of some allocations, in the order of the decisions.

    The first opinion on a row is the one that ``classify`` follows.
    """
    decisions = Decisions(allocations, roles, watched=rows, phases_are_recorded=phases.is_recorded)
    _decide(decisions, Facts(allocations, phases, roles), user, noted, is_host=is_host)
    return tuple(decisions.opinions)


def _decide(
    decisions: Decisions, facts: Facts, user: UserRules, noted: Joined | None, *, is_host: bool
) -> None:
    """Ask every rule, the strongest evidence first; each says only what it can stand for by itself."""
    _by_user(decisions, facts, user)
    if is_host:
        _of_host(decisions, facts)
        return
    if noted is not None:
        decide_noted(decisions, noted, facts.has(Role.MODULE_CALL))
    _by_frames(decisions, facts)
    _by_release(decisions, facts)
    _optimizer(decisions, facts)
    _placement(decisions, facts)
    _backward(decisions, facts)
    _forward(decisions, facts)
    _old(decisions, facts)
    sort_persistent(decisions, facts.persistent_candidates(decisions.category))
    decide_inference(decisions, facts)
    decide_held(decisions, facts)


def _by_user(decisions: Decisions, facts: Facts, user: UserRules) -> None:
    """What the user's own rules say."""
    for number, rule in enumerate(user.rules):
        if rule.category is not None:
            where = user.matches(number, facts.allocations, free_sites_known=facts.phases.free_sites_known)
            decisions.decide(where, rule.category, Evidence.USER_RULE, rule.slug)


def _of_host(decisions: Decisions, facts: Facts) -> None:
    """Pinned host memory whose stack says what it is for."""
    every = np.ones(len(facts.alloc), np.bool_)
    decisions.decide_by_role(every, Role.PINNED_BATCH, Category.INPUT)
    decisions.decide_by_role(every, Role.OFFLOADED, Category.ACTIVATION)


def _by_frames(decisions: Decisions, facts: Facts) -> None:
    """Memory whose very stack says what it is for."""
    every = np.ones(len(facts.alloc), np.bool_)
    decisions.decide_by_role(every, Role.WORKSPACE, Category.WORKSPACE)
    decisions.decide_by_role(every, Role.COMMUNICATION, Category.COMMUNICATION)
    decisions.decide_by_role(every, Role.CACHE, Category.ACTIVATION)
    sizes = facts.allocations.requested_bytes
    is_size = np.isin(sizes, CUBLAS_WORKSPACE_BYTES) & facts.is_live_at_dump
    if not facts.roles.has_cpp:
        likely = is_size & ((facts.alloc_phase == Phase.FORWARD) | facts.is_engine)
        kept = likely & _is_rare(sizes, likely, 4)
        decisions.decide(kept, Category.WORKSPACE, Evidence.SIZES, "cublas-workspace-size")
    # Of old blocks less is known, so that nothing else in the whole trace may have the size.
    old = is_size & ~facts.is_traced & (facts.has_no_frames | np.bool_(not facts.roles.has_cpp))
    kept = old & _is_rare(sizes, every, 2)
    decisions.decide(kept, Category.WORKSPACE, Evidence.SIZES, "cublas-workspace-size")


def _by_release(decisions: Decisions, facts: Facts) -> None:
    """What a backward node let go of was kept for backward; what zero_grad drops is a gradient."""
    in_optimizer = facts.has(Role.OPTIMIZER) | (facts.alloc_phase == Phase.OPTIMIZER)
    _batch_of_graph(decisions, facts)
    _old_batch_of_graph(decisions, facts)
    released = facts.freed_by(Role.RELEASE)
    decisions.decide_by_role(released & ~in_optimizer, Role.RELEASE, Category.ACTIVATION, free_site=True)
    # Modules run in backward where a checkpoint computes again, but a compiled backward makes gradients.
    by_module = facts.has(Role.MODULE_CALL) & ~(facts.is_engine & facts.has(Role.COMPILED))
    may_be_gradient = (facts.is_engine | ~facts.is_traced) & ~by_module
    annotated = at(facts.phases.in_zero_grad, facts.end)
    dropped = facts.freed_by(Role.ZERO_GRAD)
    for where, evidence in ((annotated, Evidence.ANNOTATION), (dropped, Evidence.FREE_SITE)):
        decisions.decide(may_be_gradient & where, Category.GRADIENT, evidence, "dropped-in-zero-grad")


def _batch_of_graph(decisions: Decisions, facts: Facts) -> None:
    """A batch that nothing but the graph held, made just before the first module that saves anything."""
    saved = np.flatnonzero(facts.made_by_module & facts.is_freed_by_engine)
    is_first = facts.alloc < first_before(facts.next_backward, facts.alloc, saved, facts.n_events)
    batch = facts.may_be_input & is_first & facts.feeds_module & facts.is_freed_by_engine
    slug = "made-outside-modules-used-in-forward"
    decisions.decide(batch & facts.made_from_nothing, Category.INPUT, Evidence.FRAMES, slug)
    decisions.decide(batch, Category.INPUT, Evidence.LIFETIME, slug)


def _old_batch_of_graph(decisions: Decisions, facts: Facts) -> None:
    """What is older than the trace and let go of where, in other iterations, batches of its size are."""
    table = facts.allocations
    site = np.where(facts.is_freed_by_engine, table.free_stack_id.astype(np.int64), -1)
    old = ~facts.is_traced & (site >= 0)
    rows = np.flatnonzero(np.isin(site, np.unique(site[old])))
    sizes, size = np.unique(table.requested_bytes[rows], return_inverse=True)
    _, kind = np.unique(site[rows] * len(sizes) + size.reshape(-1), return_inverse=True)
    kind = kind.reshape(-1)
    is_traced, is_input = facts.is_traced[rows], (decisions.category == Category.INPUT)[rows]
    told, other = (
        np.bincount(kind[where], minlength=len(rows))
        for where in (is_input & is_traced, ~is_input & is_traced)
    )
    where = np.zeros(len(site), np.bool_)
    where[rows] = ~is_traced & ((told > 0) & (other == 0))[kind]
    decisions.decide(where, Category.INPUT, Evidence.FREE_SITE, "freed-where-its-like-are")


def _optimizer(decisions: Decisions, facts: Facts) -> None:
    """What a step allocates is state if it outlives the step."""
    traced = facts.is_traced & (facts.alloc_phase == Phase.OPTIMIZER)
    outlives = facts.end > facts.alloc_run_last
    annotated = at(facts.phases.in_step, facts.alloc).astype(np.bool_)
    for where, evidence in ((annotated, Evidence.ANNOTATION), (~annotated, Evidence.FRAMES)):
        decisions.decide(
            traced & where & outlives, Category.OPTIMIZER_STATE, evidence, "made-in-step-and-kept"
        )
        decisions.decide(traced & where & ~outlives, Category.TEMPORARY, evidence, "made-in-step-and-freed")
    decisions.decide_by_role(~facts.is_traced, Role.OPTIMIZER, Category.OPTIMIZER_STATE)
    # An optimizer that computes new states instead of updating in place frees the old ones in its step.
    sizes = facts.allocations.requested_bytes
    made = sizes[(decisions.category == Category.OPTIMIZER_STATE) & facts.is_traced]
    replaced = ~facts.is_traced & facts.is_freed & (facts.end_phase == Phase.OPTIMIZER) & np.isin(sizes, made)
    decisions.decide(replaced, Category.OPTIMIZER_STATE, Evidence.LIFETIME, "replaced-in-step")
    if facts.n_events and facts.phases.phase[0] == Phase.OPTIMIZER:
        of_first = (facts.end_phase == Phase.OPTIMIZER) & (facts.end <= facts.phases.run_end[0])
        decisions.decide(
            ~facts.is_traced & facts.is_freed & of_first,
            Category.TEMPORARY, Evidence.LIFETIME, "freed-in-step",
        )  # fmt: skip


def _placement(decisions: Decisions, facts: Facts) -> None:
    """What model building puts on the device is weight if it is still there when forward begins."""
    placed = facts.has(Role.PLACEMENT) & ~facts.is_engine
    stays = facts.is_live_at_dump | (facts.end >= facts.next_forward)
    decisions.decide_by_role(placed & stays, Role.PLACEMENT, Category.WEIGHT)
    decisions.decide(placed & ~stays, Category.TEMPORARY, Evidence.LIFETIME, "freed-while-placing")


def _backward(decisions: Decisions, facts: Facts) -> None:
    """Backward's results: freed within it, temporary; kept and as large as a weight, a gradient."""
    made = facts.is_engine & (facts.alloc_phase == Phase.BACKWARD)
    # Reentrant checkpointing calls the engine from where it computed again: the stacks of both go through it.
    again = facts.has(Role.RECOMPUTE) & ~facts.has(Role.REENTERED)
    let_go = ~facts.freed_by(Role.RECOMPUTE) | facts.freed_by(Role.REENTERED)
    recomputed = again & facts.is_freed_by_engine & let_go
    decisions.decide_by_role(recomputed, Role.RECOMPUTE, Category.ACTIVATION)
    # What the step no longer finds is no gradient; what dies later may be dropped by zero_grad.
    before_step = (facts.next_run_phase == Phase.OPTIMIZER) & (facts.end <= facts.alloc_run_last)
    within = made & ((facts.end <= facts.alloc_run_end) | before_step)
    decisions.decide(within, Category.TEMPORARY, Evidence.LIFETIME, "freed-within-backward")
    # A gradient of gradients: the second backward lets go of what the first one kept for it.
    other_run = facts.end > facts.alloc_run_last
    decisions.decide(
        made & ~within & other_run & facts.is_freed_by_engine,
        Category.ACTIVATION, Evidence.FREE_SITE, "kept-for-another-backward",
    )  # fmt: skip
    sizes = facts.allocations.requested_bytes
    weight_like = (decisions.category == Category.WEIGHT) | (
        ~facts.is_traced & facts.is_live_at_dump & ~facts.has(Role.ENGINE)
    )
    known = np.isin(sizes, np.unique(sizes[weight_like]))
    kept = made & ~within
    before = ~facts.is_traced & facts.has(Role.ENGINE) & facts.is_live_at_dump
    before |= _nameless_beside_weights(decisions, facts)
    decisions.decide((kept | before) & known, Category.GRADIENT, Evidence.LIFETIME, "kept-after-backward")
    if facts.phases.ends_in_oom:
        of_last = kept & facts.is_live_at_dump & (facts.alloc_run_last == facts.n_events - 1)
        decisions.decide(of_last, Category.TEMPORARY, Evidence.LIFETIME, "held-by-a-backward-that-failed")
    # The results of a backward that is itself differentiated, as far as the program holds them.
    rest = kept & other_run & (decisions.category != Category.GRADIENT)
    let_go, run = rest & facts.is_freed_by_engine, facts.alloc_run_last
    of_run = [np.bincount(run[rows], sizes[rows], facts.n_events) for rows in (let_go, rest & ~let_go)]
    is_most = of_run[0] >= np.maximum(of_run[1], 1)
    results = rest & ~let_go & at(is_most, run).astype(np.bool_)
    decisions.decide(results, Category.ACTIVATION, Evidence.LIFETIME, "held-for-another-backward")


def _nameless_beside_weights(decisions: Decisions, facts: Facts) -> BoolColumn:
    """Old blocks without frames, where weights as old have theirs: of the engine, with Python-only stacks.

    No more of a size than there are such weights.
    """
    sizes = facts.allocations.requested_bytes
    old = ~facts.is_traced & facts.is_live_at_dump & np.bool_(not facts.roles.has_cpp)
    nameless = old & facts.has_no_frames & (decisions.category == Category.UNKNOWN)
    weights = old & ~facts.has_no_frames & (decisions.category == Category.WEIGHT)
    found, inverse = np.unique(sizes, return_inverse=True)
    n_nameless, n_weights = (np.bincount(inverse[rows], minlength=len(found)) for rows in (nameless, weights))
    return np.asarray(nameless & (n_nameless <= n_weights)[inverse])


def _forward(decisions: Decisions, facts: Facts) -> None:
    """Forward's results: kept into backward, activation; freed before, temporary; inputs by origin."""
    in_forward, outside, decide = facts.in_forward, facts.outside, decisions.decide
    reaches_backward = (facts.next_backward < facts.n_events) & (facts.end >= facts.next_backward)
    of_loss = facts.mid_forward & ~facts.feeds_module
    may_be_input = facts.may_be_input
    decide(
        may_be_input & facts.made_from_nothing & facts.is_freed,
        Category.INPUT, Evidence.FRAMES, "made-outside-modules-used-in-forward",
    )  # fmt: skip
    decide(
        in_forward & facts.is_freed_by_engine, Category.ACTIVATION, Evidence.FREE_SITE, "freed-by-backward"
    )
    decide(in_forward & reaches_backward, Category.ACTIVATION, Evidence.LIFETIME, "kept-into-backward")
    decide(
        in_forward & ~facts.is_freed & (facts.next_backward >= facts.n_events) & facts.is_live_at_dump,
        Category.ACTIVATION, Evidence.LIFETIME, "made-in-forward-and-live-at-dump",
    )  # fmt: skip
    decide(
        in_forward & (facts.next_backward >= facts.n_events) & _held(facts),
        Category.ACTIVATION, Evidence.LIFETIME, "held-while-its-line-ran-again",
    )  # fmt: skip
    decide(
        in_forward & facts.is_freed & ~facts.is_freed_by_engine & ~reaches_backward,
        Category.TEMPORARY, Evidence.LIFETIME, "freed-before-backward",
    )  # fmt: skip
    decide(
        outside & facts.is_freed_by_engine & reaches_backward,
        Category.ACTIVATION, Evidence.FREE_SITE, "freed-by-backward",
    )  # fmt: skip
    # With Python-only stacks, what feeds a module may as well be the next batch.
    is_result = facts.mid_forward if facts.roles.has_cpp else facts.mid_forward & facts.is_computed
    of_forward = of_loss | is_result
    decide(of_forward & reaches_backward, Category.ACTIVATION, Evidence.LIFETIME, "kept-into-backward")
    decide(
        of_forward & facts.is_freed & ~reaches_backward,
        Category.TEMPORARY, Evidence.LIFETIME, "freed-before-backward",
    )  # fmt: skip
    decide(
        may_be_input & facts.feeds_module & facts.is_freed & ~made_in_bulk(decisions, facts),
        Category.INPUT, Evidence.LIFETIME, "made-outside-modules-used-in-forward",
    )  # fmt: skip
    decide(
        outside & facts.is_freed & (facts.end < np.minimum(facts.next_forward, facts.next_backward)),
        Category.TEMPORARY, Evidence.LIFETIME, "freed-soon-outside-modules",
    )  # fmt: skip


def _held(facts: Facts) -> BoolColumn:
    """What lives while its own stack allocates twice more: a cache of keys and values, a list of results.

    What a loop over layers hands from one to the next, or forward to its end, does not outlive that forward.
    """
    outlives = facts.end > next_of(facts.alloc[facts.outside], facts.alloc, facts.n_events)
    rows = np.flatnonzero(facts.in_forward & (facts.allocations.stack_id >= 0))
    stack, width = facts.allocations.stack_id[rows].astype(np.int64), facts.n_events + 2
    keys = stack * width + facts.alloc[rows]
    order = np.argsort(keys)
    n_later = (
        np.searchsorted(keys[order], stack[order] * width + facts.end[rows][order]) - np.arange(len(rows)) - 1
    )
    held = np.zeros(len(facts.alloc), np.bool_)
    held[rows[order]] = n_later >= _HELD_TIMES
    return held & outlives


def _old(decisions: Decisions, facts: Facts) -> None:
    """What was there before the trace and backward lets go of was kept for it.

    Unless the trace begins within that backward: then it may have been made in it. Stacks of C++ tell, as
    they name what lets go of what was kept; without, not what goes before backward drops anything of its own.
    Compiled code lets go of what it made itself as well: there other iterations may tell.
    """
    first_forward, first_backward = (
        facts.phases.next_after(phase, np.array([-1]))[0] for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    # Where the very first run is of modules, that forward had made what they soon drop.
    if first_backward < facts.n_events:
        dropped = (facts.end_phase == Phase.FORWARD) & (facts.end <= facts.phases.run_end[0])
        decisions.decide(
            ~facts.is_traced & dropped, Category.TEMPORARY, Evidence.LIFETIME, "freed-before-backward"
        )
    old = ~facts.is_traced & facts.is_freed_by_engine & ~facts.freed_by(Role.COMPILED)
    names_release = len(facts.roles.is_empty) > 0 and bool(facts.roles.has[Role.RELEASE].any())
    kept = (first_forward < facts.end) | (np.bool_(not names_release) & facts.is_freed_after_own)
    decisions.decide(old & kept, Category.ACTIVATION, Evidence.FREE_SITE, "freed-by-backward")
    # Where checkpoints compute again, what they made is let go of in other ways.
    if names_release and not facts.roles.has[Role.RECOMPUTE].any():
        own = old & ~kept & (facts.allocations.free_requested_event >= 0)
        decisions.decide(own, Category.TEMPORARY, Evidence.LIFETIME, "freed-within-backward")


def _is_rare(values: Int64Column, where: BoolColumn, limit: int) -> BoolColumn:
    """Whether each value occurs at most a few times among the marked rows: one per handle and stream."""
    found, counts = np.unique(values[where], return_counts=True)
    return np.isin(values, found[counts <= limit])
