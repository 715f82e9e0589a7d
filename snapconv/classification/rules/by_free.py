"""The purpose of memory by what freed it: a backward node frees what it saved, zero_grad frees gradients."""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, at, first_before
from snapconv.classification.rule import Decided, PipelineRule, Reason, role_rule, rule
from snapconv.columns import BoolColumn, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

USED_IN_FORWARD = Reason(
    "made-outside-modules-used-in-forward",
    "copied or created outside of modules and live in forward",
    uses_phases=True,
)
FREED_BY_LINE = Reason(
    "freed-by-line-of-one-category", "pre-existing, freed by a line that frees only this category"
)
ZERO_GRAD = Reason("freed-in-zero-grad", "freed inside zero_grad, or where another gradient is assigned")


def made_in_bulk(features: Features, decided: Decided) -> BoolColumn:
    """Rows as large as weights, of a line that makes several in an iteration: noise, moments and copies.

    As large as a weight, or as a block without frames that may be one, or twice as large (full precision).
    """
    of_model = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT) | features.unrecorded
    sizes = distinct(features.sizes[of_model])
    rows = np.flatnonzero(features.outside | features.preexisting_outside)
    rows = rows[is_among(features.sizes[rows], np.concatenate((sizes, 2 * sizes)))]
    # One number for stack and iteration, either of which may be -1.
    stack = features.allocations.stack_id[rows].astype(np.int64)
    where = stack * (features.phases.n_iterations + 1) + features.iteration[rows]
    _, inverse, counts = np.unique(where, return_inverse=True, return_counts=True)
    return features.mask(rows[counts[inverse] > 1])


def _batch_of_graph(features: Features, decided: Decided) -> BoolColumn:
    """A batch that only the graph referenced, made just before the first module that saves anything.

    Weights that a program computes, such as those of an inner step, are made there too, one for each.
    """
    saved = np.flatnonzero(features.by_module & features.is_freed_by_engine)
    first_saved = first_before(features.next_backward, features.alloc, saved, features.n_events)
    is_first = features.alloc < first_saved
    is_freed = is_first & features.feeds_module & features.is_freed_by_engine
    found = features.may_be_input & is_freed
    return found & ~made_in_bulk(features, decided) if found.any() else found


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.FRAMES)
def batch_of_graph_from_nothing(features: Features, decided: Decided) -> BoolColumn:
    """A batch that only the graph referenced, copied to the device."""
    return decided.shared(_batch_of_graph, features) & features.from_nothing


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.LIFETIME)
def batch_of_graph(features: Features, decided: Decided) -> BoolColumn:
    """A batch that only the graph referenced, computed."""
    return decided.shared(_batch_of_graph, features)


@rule(FREED_BY_LINE, Category.INPUT, Evidence.FREE_SITE)
def preexisting_batch_of_graph(features: Features, decided: Decided) -> BoolColumn:
    """Pre-existing, and freed where nothing but batches of its size are, in other iterations."""
    site = features.allocations.free_stack_id
    is_freed = features.is_freed_by_engine & (site >= 0)
    preexisting = is_freed & ~features.is_traced
    if not preexisting.any():
        return preexisting
    rows = np.flatnonzero(is_freed & is_among(site, distinct(site[preexisting])))
    found, is_input = np.zeros(len(site), np.bool_), decided.has(Category.INPUT)
    for of_site in grouped(rows, site):
        for of_size in grouped(of_site, features.sizes):
            is_traced = features.is_traced[of_size]
            found[of_size] = ~is_traced & is_traced.any() & is_input[of_size[is_traced]].all()
    return found


@role_rule(Role.RELEASE, Category.ACTIVATION, is_free_site=True)
def freed_by_node(features: Features, _: Decided) -> BoolColumn:
    """A backward node freed it, and so had saved it. An optimizer's results are none.

    Nor is what a node frees while its forward runs: nothing referenced that graph any more.
    """
    in_optimizer = features.made_through(Role.OPTIMIZER) | (features.alloc_phase == Phase.OPTIMIZER)
    is_kept = ~in_optimizer & ~features.is_freed_in_own_forward
    return np.asarray(features.freed_through(Role.RELEASE) & is_kept)


def _may_be_gradient(features: Features) -> BoolColumn:
    """Made by the engine, by the program after a backward, or pre-existing, and by no module.

    Modules run in backward where a checkpoint computes again; but a compiled backward makes gradients. The
    program makes some where an optimizer works on weights of its own.
    """
    by_module = features.made_through(Role.MODULE_CALL)
    by_module &= ~(features.by_engine & features.made_through(Role.COMPILED))
    by_program = features.outside & (features.alloc > features.first(Phase.BACKWARD))
    return (features.by_engine | by_program | ~features.is_traced) & ~by_module


@rule(ZERO_GRAD, Category.GRADIENT, Evidence.ANNOTATION)
def freed_in_annotated_zero_grad(features: Features, _: Decided) -> BoolColumn:
    """Freed in the range that torch annotates."""
    return _may_be_gradient(features) & at(features.phases.in_zero_grad, features.end).astype(np.bool_)


@rule(ZERO_GRAD, Category.GRADIENT, Evidence.FREE_SITE)
def freed_through_zero_grad(features: Features, _: Decided) -> BoolColumn:
    """Freed by zero_grad, or by an assignment to ``.grad``, as the free's stack has it."""
    freed = features.freed_through(Role.ZERO_GRAD) | features.freed_through(Role.SET_GRAD)
    return _may_be_gradient(features) & freed


BY_FREE: tuple[PipelineRule, ...] = (
    batch_of_graph_from_nothing,
    batch_of_graph,
    preexisting_batch_of_graph,
    freed_by_node,
    freed_in_annotated_zero_grad,
    freed_through_zero_grad,
)
