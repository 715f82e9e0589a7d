"""The category of every allocation, with its evidence and the rule that decided.

Decisions run from the strongest evidence to the weakest, and the first one stands: what freed the
memory, whose code allocated it, how long it lived, and last, whether sizes repeat as those of
gradients and optimizer states must. What nothing speaks for stays unknown.
"""

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Classification, Decisions
from snapconv.analysis.persistent import Persistent, sort_persistent
from snapconv.analysis.phases import Phase, Phases, is_engine
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.rules import CUBLAS_WORKSPACE_BYTES, Role
from snapconv.analysis.stack_roles import StackRoles

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]


def classify(allocations: AllocationTable, phases: Phases, roles: StackRoles) -> Classification:
    """Classify every allocation of one device."""
    facts = _Facts(allocations, phases, roles)
    decisions = Decisions(allocations, roles)
    _by_frames(decisions, facts)
    _by_release(decisions, facts)
    _optimizer(decisions, facts)
    _placement(decisions, facts)
    _backward(decisions, facts)
    _forward(decisions, facts)
    sort_persistent(decisions, facts.persistent_candidates(decisions.category))
    return decisions.result()


class _Facts:
    """What is known of each allocation before anything is decided; one bool or event per row."""

    def __init__(self, allocations: AllocationTable, phases: Phases, roles: StackRoles) -> None:
        self.allocations, self.phases, self.roles = allocations, phases, roles
        n_events = len(phases.certain)
        self.alloc = allocations.alloc_event
        # The program's own end of use: an end far in the future for what is live at the dump.
        end = np.where(
            allocations.free_requested_event >= 0, allocations.free_requested_event, allocations.end_event
        )
        self.end = np.where(end >= 0, end, n_events)
        self.is_traced = self.alloc >= 0
        self.is_live_at_dump = allocations.end_event < 0
        self.is_freed = end >= 0
        self.alloc_phase = _at(phases.certain, self.alloc)
        self.alloc_run_end = _at(phases.run_end, self.alloc, -1)
        self.end_phase = np.where(self.is_freed, _at(phases.certain, end), 0)
        self.next_backward = phases.next_after(Phase.BACKWARD, self.alloc)
        self.next_forward = phases.next_after(Phase.FORWARD, self.alloc)
        self.next_step = phases.next_after(Phase.OPTIMIZER, self.alloc)
        self.is_engine = is_engine(roles, allocations.stack_id) & self.is_traced
        self.is_freed_by_engine = (
            phases.free_sites_known
            & self.is_freed
            & (is_engine(roles, allocations.free_stack_id) | (self.end_phase == Phase.BACKWARD))
        )
        self.n_events = n_events

    def has(self, role: Role) -> BoolColumn:
        """Allocations made through code of this role."""
        return self.roles.of(role, self.allocations.stack_id)

    def freed_by(self, role: Role) -> BoolColumn:
        """Allocations freed from code of this role, where the file has the stacks of frees."""
        if not self.phases.free_sites_known:
            return np.zeros(len(self.alloc), np.bool_)
        return self.roles.of(role, self.allocations.free_stack_id)

    def persistent_candidates(self, category: NDArray[np.int8]) -> Persistent:
        """What sort_persistent needs: the undecided blocks without a birth, and the known gradients."""
        undecided = category == Category.UNKNOWN
        stack = self.allocations.stack_id
        no_frames = stack < 0
        if len(self.roles.is_empty):
            no_frames = no_frames | self.roles.is_empty[np.maximum(stack, 0)]
        return Persistent(
            candidates=undecided & ~self.is_traced & self.is_live_at_dump & no_frames,
            gradients=category == Category.GRADIENT,
            states=category == Category.OPTIMIZER_STATE,
            iteration=_at(self.phases.iteration, self.alloc, -1),
        )


def _by_frames(decisions: Decisions, facts: _Facts) -> None:
    """Memory whose very stack says what it is for."""
    every = np.ones(len(facts.alloc), np.bool_)
    decisions.decide_by_role(every, Role.WORKSPACE, Category.WORKSPACE)
    decisions.decide_by_role(every, Role.COMMUNICATION, Category.COMMUNICATION)
    if not facts.roles.has_cpp:
        sizes = facts.allocations.requested_bytes
        in_use = (facts.alloc_phase == Phase.FORWARD) | facts.is_engine
        likely = np.isin(sizes, CUBLAS_WORKSPACE_BYTES) & in_use
        kept = likely & facts.is_live_at_dump & _is_rare(sizes, likely)
        decisions.decide(kept, Category.WORKSPACE, Evidence.SIZES, "cublas-workspace-size")


def _by_release(decisions: Decisions, facts: _Facts) -> None:
    """What a backward node let go of was kept for backward; what zero_grad drops is a gradient."""
    in_optimizer = facts.has(Role.OPTIMIZER) | (facts.alloc_phase == Phase.OPTIMIZER)
    released = facts.freed_by(Role.RELEASE)
    decisions.decide_by_role(released & ~in_optimizer, Role.RELEASE, Category.ACTIVATION, free_site=True)
    may_be_gradient = (facts.is_engine | ~facts.is_traced) & ~facts.has(Role.MODULE_CALL)
    annotated = _at(facts.phases.in_zero_grad, facts.end)
    dropped = annotated | facts.freed_by(Role.ZERO_GRAD)
    for where, evidence in ((annotated, Evidence.ANNOTATION), (dropped, Evidence.FREE_SITE)):
        decisions.decide(may_be_gradient & where, Category.GRADIENT, evidence, "dropped-in-zero-grad")


def _optimizer(decisions: Decisions, facts: _Facts) -> None:
    """What a step allocates is state if it outlives the step."""
    traced = facts.is_traced & (facts.alloc_phase == Phase.OPTIMIZER)
    outlives = facts.end > facts.alloc_run_end
    annotated = _at(facts.phases.in_step, facts.alloc).astype(np.bool_)
    for where, evidence in ((annotated, Evidence.ANNOTATION), (~annotated, Evidence.FRAMES)):
        decisions.decide(
            traced & where & outlives, Category.OPTIMIZER_STATE, evidence, "made-in-step-and-kept"
        )
        decisions.decide(traced & where, Category.TEMPORARY, evidence, "made-in-step-and-freed")
    decisions.decide_by_role(~facts.is_traced, Role.OPTIMIZER, Category.OPTIMIZER_STATE)
    # An optimizer that computes new states instead of updating in place frees the old ones in its step.
    sizes = facts.allocations.requested_bytes
    made = sizes[(decisions.category == Category.OPTIMIZER_STATE) & facts.is_traced]
    replaced = ~facts.is_traced & facts.is_freed & (facts.end_phase == Phase.OPTIMIZER) & np.isin(sizes, made)
    decisions.decide(replaced, Category.OPTIMIZER_STATE, Evidence.LIFETIME, "replaced-in-step")


def _placement(decisions: Decisions, facts: _Facts) -> None:
    """What model building puts on the device is weight if it is still there when forward begins."""
    placed = facts.has(Role.PLACEMENT) & ~facts.is_engine
    stays = facts.is_live_at_dump | (facts.end >= facts.next_forward)
    decisions.decide_by_role(placed & stays, Role.PLACEMENT, Category.WEIGHT)
    decisions.decide(placed, Category.TEMPORARY, Evidence.LIFETIME, "freed-while-placing")


def _backward(decisions: Decisions, facts: _Facts) -> None:
    """Backward's results: freed within it, temporary; kept and as large as a weight, a gradient."""
    made = facts.is_engine & (facts.alloc_phase == Phase.BACKWARD)
    recomputed = facts.has(Role.RECOMPUTE) & facts.is_freed_by_engine & ~facts.freed_by(Role.RECOMPUTE)
    decisions.decide_by_role(recomputed, Role.RECOMPUTE, Category.ACTIVATION)
    decisions.decide(
        made & (facts.end <= facts.alloc_run_end) & facts.is_freed,
        Category.TEMPORARY, Evidence.LIFETIME, "freed-within-backward",
    )  # fmt: skip
    sizes = facts.allocations.requested_bytes
    weight_like = (decisions.category == Category.WEIGHT) | (
        ~facts.is_traced & facts.is_live_at_dump & ~facts.has(Role.ENGINE)
    )
    known = np.isin(sizes, np.unique(sizes[weight_like]))
    kept = made & ((facts.end > facts.next_step) | ~facts.is_freed | (facts.end > facts.alloc_run_end))
    before = ~facts.is_traced & facts.has(Role.ENGINE) & facts.is_live_at_dump
    decisions.decide((kept | before) & known, Category.GRADIENT, Evidence.LIFETIME, "kept-after-backward")


def _forward(decisions: Decisions, facts: _Facts) -> None:
    """Forward's results: kept into backward, activation; freed before, temporary; inputs by origin."""
    in_forward = facts.is_traced & ~facts.is_engine & (facts.has(Role.MODULE_CALL) | facts.has(Role.LOSS))
    outside = facts.is_traced & ~facts.is_engine & ~in_forward & (facts.alloc_phase != Phase.OPTIMIZER)
    reaches_backward = (facts.next_backward < facts.n_events) & (facts.end >= facts.next_backward)
    used_in_forward = (facts.next_forward < facts.n_events) & (facts.end >= facts.next_forward)
    made_from_nothing = facts.has(Role.COPY) | facts.has(Role.FACTORY)
    decide = decisions.decide
    decide(
        outside & made_from_nothing & used_in_forward & facts.is_freed,
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
    decide(in_forward & facts.is_freed, Category.TEMPORARY, Evidence.LIFETIME, "freed-before-backward")
    decide(
        outside & facts.is_freed_by_engine & reaches_backward,
        Category.ACTIVATION, Evidence.FREE_SITE, "freed-by-backward",
    )  # fmt: skip
    decide(
        outside & used_in_forward & facts.is_freed & ~facts.roles.has_cpp & ~_like_weights(decisions, facts),
        Category.INPUT, Evidence.LIFETIME, "made-outside-modules-used-in-forward",
    )  # fmt: skip
    decide(
        outside & facts.is_freed & (facts.end < np.minimum(facts.next_forward, facts.next_backward)),
        Category.TEMPORARY, Evidence.LIFETIME, "freed-soon-outside-modules",
    )  # fmt: skip


def _like_weights(decisions: Decisions, facts: _Facts) -> BoolColumn:
    """Rows as large as a weight or a pre-existing block: noise, moments and copies are no inputs."""
    sizes = facts.allocations.requested_bytes
    model = (decisions.category == Category.WEIGHT) | (~facts.is_traced & facts.is_live_at_dump)
    return np.isin(sizes, sizes[model])


def _at(column: np.ndarray, rows: Int64Column, missing: int = 0) -> np.ndarray:
    """``column[rows]``, with ``missing`` where a row is -1 or beyond the end."""
    if not len(column):
        return np.full(len(rows), missing, column.dtype)
    known = (rows >= 0) & (rows < len(column))
    return np.where(known, column[np.where(known, rows, 0)], np.asarray(missing, column.dtype))


def _is_rare(values: Int64Column, where: BoolColumn) -> BoolColumn:
    """Whether each value occurs at most a few times among the marked rows: one per handle and stream."""
    found, counts = np.unique(values[where], return_counts=True)
    return np.isin(values, found[counts <= 4])
