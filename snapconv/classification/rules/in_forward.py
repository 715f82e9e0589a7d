"""Forward's results: kept into backward, activation; freed before, temporary; inputs by their origin."""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, next_of
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.rules.by_free import USED_IN_FORWARD, made_in_bulk
from snapconv.classification.rules.in_backward import WITHIN
from snapconv.classification.rules.of_inference import MOST_KEPT, only_infers
from snapconv.classification.rules.of_new_values import as_new_values
from snapconv.classification.rules.of_samples import as_of_samples, computed_for_step
from snapconv.classification.sizes_of_layers import surely_as_layers
from snapconv.columns import BoolColumn, distinct, grouped, is_among, run_starts
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

FREED_BY_BACKWARD = Reason(
    "freed-by-backward",
    "made in forward, or just before backward outside of modules; freed by the engine",
    uses_phases=True,
)
KEPT_INTO_BACKWARD = Reason(
    "kept-into-backward", "made in forward, still live when backward begins", uses_phases=True
)
LIVE_AT_DUMP = Reason(
    "made-in-forward-and-live-at-dump",
    "made in forward, never freed, and no backward follows",
    uses_phases=True,
)
CACHE_GREW = Reason(
    "cache-that-grew",
    "made anew by a cache of keys and values without a backward, and kept there",
    uses_phases=True,
)
CACHE_LENGTHENED = Reason(
    "cache-that-lengthened",
    "made anew by one line in forwards of an inference, each time longer by the same, and kept until then",
)
FREED_WITH_CACHE = Reason(
    "freed-with-a-cache",
    "kept in an inference by a line that most often makes what is temporary, and freed where a cache of keys "
    "and values is",
)
OUT_OF_MEMORY = Reason(
    "live-in-failed-forward",
    "made in a forward in which memory ran out, in use then, as most of what it had made",
    uses_phases=True,
)
FREED_BEFORE = Reason("freed-before-backward", "made in forward, freed before backward", uses_phases=True)
FOR_NEXT_FORWARD = Reason(
    "made-for-the-next-forward",
    "made between forward and backward by a line that had made a batch of the size before, and in use in "
    "the forward after that backward",
    uses_phases=True,
)
FREED_SOON = Reason(
    "freed-soon-outside-modules",
    "made outside of modules, freed before the next forward or backward",
    uses_phases=True,
)

# How often a line must run again until its result counts as kept on purpose, not passed on by a loop.
_LEAST_RUNS_AGAIN = 2


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.FRAMES)
def input_from_nothing(features: Features, _: Decided) -> BoolColumn:
    """A batch that is copied to the device, or filled there."""
    return features.may_be_input & features.from_nothing & features.is_freed


@rule(FREED_BY_BACKWARD, Category.ACTIVATION, Evidence.FREE_SITE)
def freed_by_engine(features: Features, _: Decided) -> BoolColumn:
    """Made in forward, and freed by the engine."""
    return features.in_forward & features.is_freed_by_engine


@rule(KEPT_INTO_BACKWARD, Category.ACTIVATION, Evidence.LIFETIME)
def kept_into_backward(features: Features, decided: Decided) -> BoolColumn:
    """Made in forward, and in use when backward begins.

    What an attribute of a module holds until a later forward may be an average that is kept as well, unless
    backward makes a gradient and scratch of that size: then it is what a layer computes of a weight, as
    ``weight_norm`` does, and trains.
    """
    found = features.in_forward & features.reaches_backward
    if not found.any():
        return found
    sizes, by_engine = features.sizes, features.by_engine
    of_gradients = distinct(sizes[decided.has(Category.GRADIENT) & by_engine])
    of_scratch = sizes[decided.has(Category.TEMPORARY) & by_engine]
    of_weights = np.intersect1d(of_gradients, of_scratch)
    return found & (~_held_by_attribute(features) | is_among(sizes, of_weights))


def _held_by_attribute(features: Features) -> BoolColumn:
    """Freed where a later forward gives an attribute a new value; or still there, of the same line."""
    freed = features.in_forward & features.freed_through(Role.ATTRIBUTE)
    held = freed & (features.end >= features.phases.next_after(Phase.FORWARD, features.alloc_run_end))
    if not held.any():
        return held
    line = features.lines()
    of_lines = (line >= 0) & is_among(line, line[held])
    return held | (of_lines & features.in_forward & features.is_live_at_dump)


@rule(CACHE_GREW, Category.KV_CACHE, Evidence.FRAMES)
def cache_that_grew(features: Features, _: Decided) -> BoolColumn:
    """What a cache of keys and values makes anew for every token; in training backward needs it as well.

    And between two tokens, where a search goes on with other rows of it.
    """
    by_cache = features.made_through(Role.CACHE_UPDATE)
    kept = _outlives_its_forward(features) & ~features.has_next_backward
    if only_infers(features):
        kept |= _is_live_after_forward(features)
        kept |= _held_from_before(features) | features.outside | _is_renewed(features, by_cache)
    return by_cache & kept


def _is_renewed(features: Features, rows: BoolColumn) -> BoolColumn:
    """What stacks make of which some is in use when they make the next: tokens in a module's own loop."""
    stack, found = features.allocations.stack_id, np.zeros(len(rows), np.bool_)
    for of_stack in grouped(np.flatnonzero(rows & features.in_forward & features.has_stack), stack):
        in_turn = of_stack[np.argsort(features.alloc[of_stack], kind="stable")]
        found[of_stack] = np.any(features.alloc[in_turn[1:]] < features.end[in_turn[:-1]])
    return found


def _held_from_before(features: Features) -> BoolColumn:
    """What forwards before the trace left, if most of it is of caches: else they saved it for a backward."""
    held = features.preexisting_in_forward
    of_caches = features.sizes[held & features.made_through(Role.CACHE_UPDATE)].sum()
    return held & np.bool_(2 * of_caches >= features.sizes[held].sum())


@rule(CACHE_LENGTHENED, Category.KV_CACHE, Evidence.LIFETIME)
def cache_that_lengthened(features: Features, decided: Decided) -> BoolColumn:
    """What a line makes anew for every token, each time longer by the same, and the program keeps."""
    found = np.zeros(len(features.alloc), np.bool_)
    if not only_infers(features):
        return found
    stack, sizes = features.allocations.stack_id, features.sizes
    kept = decided.shared(_outlives_its_line, features) | _is_live_after_forward(features)
    rows = np.flatnonzero(kept & decided.is_open & features.has_stack)
    rows = rows[np.argsort(features.alloc[rows], kind="stable")]
    lines = []
    for of_line in grouped(rows, stack):
        more = np.diff(sizes[of_line[run_starts(sizes[of_line])]])
        # It begins anew with every text.
        longer = more[more > 0]
        if len(longer) >= _LEAST_RUNS_AGAIN and np.all(longer == longer[0]):
            lines.append(stack[of_line[0]])
    # Its last one need not live until the line runs again.
    is_cache = _outlives_its_forward(features) | _is_live_after_forward(features)
    return is_cache & features.has_stack & is_among(stack, lines)


@rule(FREED_WITH_CACHE, Category.KV_CACHE, Evidence.FREE_SITE)
def cache_that_began(features: Features, decided: Decided) -> BoolColumn:
    """The keys and values of a prompt, which lie in the result of the layer that computes them.

    For the tokens that follow it is copied into the longer cache, and is temporary. Every layer has one at
    once, unlike an encoder, whose one output is dropped with the caches too.
    """
    found = np.zeros(len(features.alloc), np.bool_)
    caches = decided.has(Category.KV_CACHE) & features.is_freed
    if not (features.phases.free_sites_known and caches.any() and only_infers(features)):
        return found
    stack, site = features.allocations.stack_id, features.allocations.free_stack_id
    kept = decided.shared(_outlives_its_line, features) & decided.is_open
    made, n_stacks = features.in_forward & features.has_stack, len(features.roles.stacks)
    n_made, n_kept = (np.bincount(stack[rows], minlength=n_stacks) for rows in (made, kept))
    is_seldom = 2 * n_kept < n_made
    rows = np.flatnonzero(kept & features.is_freed & is_among(site, distinct(site[caches & (site >= 0)])))
    for of_line in grouped(rows[is_seldom[stack[rows]]], stack):
        in_turn = of_line[np.argsort(features.alloc[of_line], kind="stable")]
        with_next = features.alloc[in_turn[1:]] < features.end[in_turn[:-1]]
        found[in_turn[1:][with_next]] = True
        found[in_turn[:-1][with_next]] = True
    return found


@rule(LIVE_AT_DUMP, Category.ACTIVATION, Evidence.LIFETIME)
def in_forward_and_live_at_dump(features: Features, _: Decided) -> BoolColumn:
    """Made in a forward that the trace ends in, or that nothing follows."""
    return _is_live_after_forward(features)


def _is_live_after_forward(features: Features) -> BoolColumn:
    kept = ~features.is_freed & features.is_live_at_dump
    return features.in_forward & kept & ~features.has_next_backward


def _outlives_its_forward(features: Features) -> BoolColumn:
    """Made in forward, and there when something is made outside of modules."""
    after = next_of(features.alloc[features.outside], features.alloc, features.n_events)
    return np.asarray(features.in_forward & (features.end > after))


def _outlives_its_line(features: Features, _: Decided) -> BoolColumn:
    """What lives while its own stack allocates twice more.

    What a loop over layers passes from one to the next, or forward to its end, does not outlive that forward.
    """
    stack_id = features.allocations.stack_id
    may_be = features.in_forward & ~features.has_next_backward & features.has_stack
    if not may_be.any():
        return may_be
    rows = np.flatnonzero(features.in_forward & is_among(stack_id, distinct(stack_id[may_be])))
    stack, width = stack_id[rows].astype(np.int64), features.n_events
    keys = stack * width + features.alloc[rows]
    order = np.argsort(keys)
    ends = np.searchsorted(keys[order], stack[order] * width + features.end[rows][order])
    n_later = ends - np.arange(len(rows)) - 1
    kept = features.mask(rows[order][n_later >= _LEAST_RUNS_AGAIN])
    return may_be & kept & _outlives_its_forward(features)


@rule(OUT_OF_MEMORY, Category.ACTIVATION, Evidence.LIFETIME)
def in_use_by_failed_forward(features: Features, _: Decided) -> BoolColumn:
    """What was there when memory ran out in its forward, where that keeps so much that it is trained.

    An exception then drops all of it, as if it had been temporary.
    """
    oom = next_of(features.phases.oom_events, features.alloc, features.n_events)
    failed = features.in_forward & (oom <= features.alloc_run_last)
    in_use, sizes = failed & (features.end > oom), features.sizes
    return in_use & np.bool_(sizes[in_use].sum() > MOST_KEPT * sizes[failed].sum())


@rule(FREED_BEFORE, Category.TEMPORARY, Evidence.LIFETIME)
def freed_before_backward(features: Features, _: Decided) -> BoolColumn:
    """Made in forward, and freed before a backward."""
    by_forward = features.is_freed & ~features.is_freed_by_engine
    return features.in_forward & by_forward & ~features.reaches_backward


@rule(FREED_BY_BACKWARD, Category.ACTIVATION, Evidence.FREE_SITE)
def outside_and_freed_by_engine(features: Features, _: Decided) -> BoolColumn:
    """Made outside of modules, and freed by the engine."""
    return features.outside & features.is_freed_by_engine & features.reaches_backward


def _between_modules(features: Features, decided: Decided) -> BoolColumn:
    """The loss, and what is computed between modules.

    With Python-only stacks, what feeds a module may as well be the next batch, unless it is computed.
    """
    found = features.mid_forward & ~decided.shared(surely_as_layers, features)
    of_loss = found & ~features.feeds_module
    if features.has_cpp:
        return of_loss | found
    return of_loss | (found & _is_computed(features))


def _is_computed(features: Features) -> BoolColumn:
    """What a line makes from another result of its own, of the same size, which it then frees."""
    stack, sizes = features.allocations.stack_id, features.sizes
    rows = np.flatnonzero(features.is_traced)
    rows = rows[np.argsort(features.alloc[rows])]
    before, row = rows[:-1], rows[1:]
    after = np.append(features.alloc[rows[2:]], features.n_events)[: len(row)]
    is_same = features.has_stack[row] & (stack[before] == stack[row]) & (sizes[before] == sizes[row])
    is_freed = (features.end[before] > features.alloc[row]) & (features.end[before] < after)
    return features.mask(row[is_same & is_freed])


@rule(FOR_NEXT_FORWARD, Category.INPUT, Evidence.LIFETIME)
def batch_for_next_forward(features: Features, _: Decided) -> BoolColumn:
    """The next batch, fetched between forward and backward by a line that had made the first one before them.

    In use when another forward begins after that backward; or there at the dump, if others of its line were.
    """
    first = features.may_be_input & ~features.mid_forward & features.is_freed
    fetched = features.mid_forward & ~features.feeds_module & _like(features, first)
    begins = features.phases.next_after(Phase.FORWARD, features.next_backward)
    kept = fetched & (begins < features.n_events) & (features.end >= begins)
    return kept | (fetched & features.is_live_at_dump & _like(features, kept))


def _like(features: Features, rows: BoolColumn) -> BoolColumn:
    """What the same lines of Python made, of the same sizes."""
    if not rows.any():
        return rows
    line = features.lines()
    keys = line.astype(np.int64) * features.sizes.max() + features.sizes
    return np.asarray((line >= 0) & is_among(keys, keys[rows]))


@rule(KEPT_INTO_BACKWARD, Category.ACTIVATION, Evidence.LIFETIME)
def between_modules_into_backward(features: Features, decided: Decided) -> BoolColumn:
    """Computed between modules or by the loss, and in use when backward begins."""
    return _between_modules(features, decided) & features.reaches_backward


@rule(FREED_BEFORE, Category.TEMPORARY, Evidence.LIFETIME)
def between_modules_and_freed(features: Features, decided: Decided) -> BoolColumn:
    """Computed between modules or by the loss, and freed before backward."""
    return _between_modules(features, decided) & features.is_freed & ~features.reaches_backward


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.LIFETIME)
def input_used_by_module(features: Features, decided: Decided) -> BoolColumn:
    """Made outside of modules, by a line that makes one, and a module runs next.

    Not between modules: what one of them feeds to the next is made there as often as a batch is. What is
    put together from parts of others is a batch, however large: nobody copies weights so.
    """
    used = features.may_be_input & features.feeds_module & features.is_freed & ~features.mid_forward
    used &= ~decided.shared(computed_for_step, features) & ~decided.shared(surely_as_layers, features)
    used &= ~as_new_values(features, decided)
    return used & (features.made_through(Role.COLLECTED) | ~made_in_bulk(features, decided))


@rule(FREED_SOON, Category.TEMPORARY, Evidence.LIFETIME)
def freed_soon_outside(features: Features, decided: Decided) -> BoolColumn:
    """Made outside of modules, and freed before any module or backward runs.

    But not what the step uses beside each parameter.
    """
    next_phase = np.minimum(features.next_forward, features.next_backward)
    soon = features.outside & features.is_freed & (features.end < next_phase)
    return soon & ~as_of_samples(features, decided)


@rule(FREED_BEFORE, Category.TEMPORARY, Evidence.LIFETIME)
def preexisting_freed_by_first_forward(features: Features, _: Decided) -> BoolColumn:
    """Where the very first run is of modules, that forward had made what they soon free."""
    if features.first(Phase.BACKWARD) >= features.n_events:
        return np.zeros(len(features.alloc), np.bool_)
    in_forward = (features.end_phase == Phase.FORWARD) & (features.end <= features.phases.run_end[0])
    return np.asarray(~features.is_traced & in_forward)


def _freed_by_node(features: Features) -> BoolColumn:
    """Pre-existing, and freed by the engine. Compiled code frees what it made itself as well: not here."""
    return ~features.is_traced & features.is_freed_by_engine & ~features.freed_through(Role.COMPILED)


def _names_release(features: Features) -> bool:
    """Whether the stacks of frees name what frees what was saved, as C++ stacks do."""
    return bool(features.roles.has[Role.RELEASE].any())


def is_freed_after_own(features: Features) -> BoolColumn:
    """What is freed once backward has freed something of its own, that it was seen to make.

    Before that, where the trace begins in backward, what is freed may be what it had just made.
    """
    own = features.is_traced & features.by_engine & features.is_freed_by_engine
    return np.asarray(features.end > features.end[own].min(initial=features.n_events))


def _is_saved(features: Features) -> BoolColumn:
    """Freed by a backward whose forward the trace has, or by one that had freed its own before."""
    after_own = np.bool_(not _names_release(features)) & is_freed_after_own(features)
    return np.asarray((features.first(Phase.FORWARD) < features.end) | after_own)


@rule(FREED_BY_BACKWARD, Category.ACTIVATION, Evidence.FREE_SITE)
def preexisting_freed_by_engine(features: Features, _: Decided) -> BoolColumn:
    """What was there before the trace and is freed by backward was kept for it.

    Unless the trace begins within that backward: then it may have been made in it.
    """
    return _freed_by_node(features) & _is_saved(features)


@rule(WITHIN, Category.TEMPORARY, Evidence.LIFETIME)
def preexisting_of_first_backward(features: Features, _: Decided) -> BoolColumn:
    """The trace begins within a backward, which had made it.

    Where checkpoints compute again, what they made is freed in other ways.
    """
    if not _names_release(features) or features.roles.has[Role.RECOMPUTE].any():
        return np.zeros(len(features.alloc), np.bool_)
    requested = features.allocations.free_requested_event >= 0
    return _freed_by_node(features) & ~_is_saved(features) & requested


IN_FORWARD: tuple[PipelineRule, ...] = (
    input_from_nothing,
    freed_by_engine,
    kept_into_backward,
    cache_that_grew,
    cache_that_lengthened,
    cache_that_began,
    in_forward_and_live_at_dump,
    in_use_by_failed_forward,
    freed_before_backward,
    outside_and_freed_by_engine,
    batch_for_next_forward,
    between_modules_into_backward,
    between_modules_and_freed,
    input_used_by_module,
    freed_soon_outside,
)
BEFORE_THE_TRACE: tuple[PipelineRule, ...] = (
    preexisting_freed_by_first_forward,
    preexisting_freed_by_engine,
    preexisting_of_first_backward,
)
