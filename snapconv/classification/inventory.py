"""The inventory of the job: blocks from before the trace, explained by one hypothesis about all of them.

A job has so many parameters of every size. A hypothesis says how many blocks there are for each: weights,
states of an optimizer, gradients that are still there, further copies of the model; and whether the optimizer
works in full precision beside weights in half. It so predicts how often every size occurs; what facts have
named already is subtracted. Its cost, in bits, is that of its own rarity and of every size whose count it
misses. A row's probabilities are the sum over all hypotheses, each with a weight of 2 ** -bits.

The bits were fitted on the first thirteen groups of blind programs of the benchmark: count these as seen.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import log2

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.atoms import saves
from snapconv.classification.categories import Category
from snapconv.classification.certainty import Regime, decided_by
from snapconv.classification.decisions import Decided, Explanation, Proposal
from snapconv.classification.other_sizes import OtherSizes
from snapconv.classification.parameters import (
    SMALL_BYTES,
    Parameters,
    Sizes,
    Source,
    bytes_of,
    candidates,
    counted,
    is_training,
)
from snapconv.classification.second_models import has_second_model
from snapconv.columns import Int64Column, distinct, grouped
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role
from snapconv.units import format_bytes

# What hostile files may cost: sizes by their bytes, the largest first, and numbers of layers.
_MOST_SIZES, _MOST_LAYERS = 600, 60
# Equal counts cost equally, in every hypothesis.
_MOST_CACHED = 1 << 16
# Hypotheses less probable than this, beside the best ones, change no row by more.
_LEAST_WEIGHT = 0.003
# A model has sizes that occur once: a table, a head. A hypothesis that leaves none costs so much.
_NO_SINGLE_SIZE = 3.0
# A layer has one matrix: bits of twice as many large blocks as calls of layers, or half as many; and at most.
_MOST_BY_CALLS = 4.0
# A size weighs by its share of all bytes to this power, but never less than the least: small sizes count too.
_SHARE_POWER, _LEAST_SHARE = 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What there is for every parameter, besides its weight."""

    states: int = 0
    gradients: int = 0
    copies: int = 0
    # In full precision: 1, masters of the optimizer and its states; 2, masters that are weights, and states.
    precision: int = 0
    # What had no gradient is trained as well: sparse, or in another optimizer's turn.
    trains_all: bool = False
    # Another optimizer keeps so many states for the parameters of some sizes; -1: none does.
    other_states: int = -1
    has_half_copy: bool = False
    is_trained: bool = True

    @property
    def per_parameter(self) -> int:
        """Blocks of a parameter's size for each parameter."""
        return 1 + self.copies + self.gradients + (0 if self.precision else self.states)

    def __str__(self) -> str:
        if not self.is_trained:
            return f"weights{' + 1 copy' if self.copies else ''} (nothing is trained)"
        parts = ["weights"]
        if self.states:
            also = f" ({self.other_states} for some sizes)" if self.other_states >= 0 else ""
            parts.append(f"{self.states} state{'s' * (self.states > 1)}{also}")
        if self.gradients:
            parts.append("gradients")
        if self.copies:
            parts.append(f"{self.copies} more cop{'y' if self.copies == 1 else 'ies'} of the model")
        if self.has_half_copy:
            parts.append("a copy in half precision")
        if self.precision:
            parts.append("in full precision beside half")
        if self.trains_all:
            parts.append("also for sizes without a gradient")
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Job:
    """What the recording shows of the job. ``n`` counts the open blocks, ``known`` what facts have named."""

    parameters: Parameters
    n: Sizes
    known: dict[Category, Sizes]
    n_layers: int
    n_calls: int
    states_range: tuple[int, int] | None
    is_training: bool
    saves: int
    has_step: bool
    infers: bool
    states_are_built: bool
    has_several_steps: bool
    has_second_model: bool | None
    reserves_more: bool | None

    @property
    def sizes(self) -> Sizes:
        """Parameters by size."""
        return self.parameters.sizes

    @property
    def is_whole(self) -> bool:
        """Whether all gradients of an iteration were seen."""
        return self.parameters.source is Source.WHOLE

    @property
    def n_known_of(self) -> Sizes:
        """Weights, gradients and states of every size that facts have named."""
        every: Sizes = Counter()
        for sizes in self.known.values():
            every += sizes
        return every

    @property
    def has_gradients(self) -> bool:
        """Whether facts have named nearly all gradients."""
        there = sum(size * min(n, self.sizes[size]) for size, n in self.known[Category.GRADIENT].items())
        return there > 0.7 * bytes_of(self.sizes)

    @property
    def regime(self) -> Regime:
        """What is known at all: parameters, a forward, or nothing."""
        if self.sizes:
            return Regime.PARAMETERS
        return Regime.FORWARD if self.is_training or self.infers or self.saves else Regime.NOTHING


def jobs(decided: Decided, rows: Int64Column) -> list[Job]:
    """Gather the evidence, once for each candidate for the parameters."""
    features, found = decided.features, candidates(decided, rows)
    older, newer = ~features.is_traced, features.is_traced & features.is_live_at_dump

    def named(category: Category) -> tuple[Sizes, Sizes]:
        mine = decided.has(category)
        return counted(features.sizes[mine & older]), counted(features.sizes[mine & newer])

    # A step may replace its states: those before and those after are the same.
    known = {category: np.array(named(category)) for category in (Category.WEIGHT, Category.OPTIMIZER_STATE)}
    by_category = {category: was | now for category, (was, now) in known.items()}
    by_category[Category.GRADIENT] = named(Category.GRADIENT)[0]
    phases = features.phases
    first = Job(
        parameters=found[0],
        n=counted(features.sizes[rows]),
        known=by_category,
        n_layers=layers_that_ran(decided),
        n_calls=calls_of_layers(decided),
        states_range=phases.states_range,
        is_training=is_training(decided),
        saves=saves(decided),
        has_step=bool(np.any(phases.certain == Phase.OPTIMIZER)),
        infers=not is_training(decided)
        and bool((features.in_forward | features.preexisting_in_forward).any()),
        states_are_built=phases.states_are_built,
        has_several_steps=phases.has_several_steps,
        has_second_model=has_second_model(features) if found[0].sizes else None,
        reserves_more=features.reserves_more,
    )
    return [first] + [replace(first, parameters=other) for other in found[1:]]


def layers_that_ran(decided: Decided) -> int:
    """Return what divides how often every line of modules allocates that does so repeatedly in a forward."""
    features = decided.features
    rows = np.flatnonzero(features.by_module)
    if not len(rows):
        return 0
    outside = np.sort(features.alloc[features.outside])
    forward = np.searchsorted(outside, features.alloc[rows])
    counts = np.bincount(forward)
    rows = rows[forward == counts.argmax()]
    _, n_made = np.unique(
        np.stack((features.allocations.stack_id[rows], features.sizes[rows])), axis=1, return_counts=True
    )
    return int(np.gcd.reduce(n_made[n_made >= 3], initial=0))


def calls_of_layers(decided: Decided) -> int:
    """Count the calls of layers with weights, in the forward with most of them."""
    features = decided.features
    calls = features.alloc[features.by_module & features.made_through(Role.LAYER)]
    outside = np.sort(features.alloc[features.outside])
    return int(np.bincount(np.searchsorted(outside, calls)).max(initial=0))


# --- hypotheses and the bits of their rarity

# States for every parameter, 0 to 4, where no optimizer is known.
_BITS_OF_STATES = (2.0, 2.0, 0.6, 5.0, 7.0)
# Further copies, 0 to 2: where a second model was seen to run, where nothing shows it, where none was seen.
_BITS_OF_COPIES = {True: (2.0, 0.5, 4.0), None: (0.3, 2.5, 6.0), False: (0.2, 3.5, 7.0)}
# Full precision: none, masters of the optimizer, masters that are weights; the second where one is known.
_BITS_OF_PRECISION = {False: (0.3, 3.0, 3.5), True: (0.3, 6.0, 2.5)}
# Neither states nor gradients, and any of them: where the trace reserves memory as a first step does, and
# where what earlier steps reserved is enough.
_BITS_OF_START = {None: (0.0, 0.0), True: (0.0, 3.0), False: (2.0, 0.0)}
# What few jobs do: a copy in half precision, other states for some sizes, training without a gradient.
_RARE, _LESS_RARE = 4.0, 1.0
# That nothing is trained, by whether forward saves for a backward: not, maybe, surely.
_BITS_OF_NO_TRAINING = (0.2, 4.0, 9.0)


def hypotheses(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    """Go through the hypotheses, each with the bits of its rarity."""
    if job.sizes or job.is_training or job.saves:
        yield from _of_training(job)
    if job.is_training:
        return
    bits = _BITS_OF_NO_TRAINING[job.saves] if job.infers or job.saves else 2.0
    yield Hypothesis(is_trained=False), bits
    yield Hypothesis(copies=1, is_trained=False), bits + 3.5
    if not (job.sizes or job.saves):  # trained before a recording that only infers, or without events
        before = 6.0 if job.infers else 0.5
        for states, of_states in ((0, 2.5), (1, 2.0 if job.infers else 2.5), (2, 0.5)):
            for gradients, of_gradients in ((0, 0.8), (1, 1.2)):
                if states or gradients:
                    yield Hypothesis(states, gradients), before + of_states + of_gradients


def _of_training(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    base = 0.0 if job.sizes or job.is_training else 0.5
    of_start = (0.0, 0.0) if job.has_step else _BITS_OF_START[job.reserves_more]
    of_gradients = _bits_of_gradients(job)
    of_precision = _BITS_OF_PRECISION[job.states_range is not None]
    for states, of_states in enumerate(_bits_of_states(job)):
        for gradients in (0, 1):
            for copies, of_copies in enumerate(_BITS_OF_COPIES[job.has_second_model]):
                bits = (
                    base
                    + of_states
                    + of_gradients[gradients]
                    + of_copies
                    + of_start[bool(states or gradients)]
                )
                plain = Hypothesis(states, gradients, copies)
                for precision in (0, 1, 2):
                    if precision != 1 or states:
                        yield replace(plain, precision=precision), bits + of_precision[precision]
                yield from _rare(job, plain, bits + of_precision[0])


def _rare(job: Job, plain: Hypothesis, bits: float) -> Iterator[tuple[Hypothesis, float]]:
    """Variants of a hypothesis that need known parameters."""
    if not job.sizes:
        return
    if not plain.copies:
        yield replace(plain, has_half_copy=True), bits + _RARE
    if plain.states:
        yield replace(plain, trains_all=True), bits + (_LESS_RARE if job.has_several_steps else _RARE)
        if not job.states_range and not plain.copies:
            for others in {0, 1, 2} - {plain.states}:
                yield replace(plain, other_states=others), bits + _RARE


def _bits_of_states(job: Job) -> list[float]:
    if not job.states_range:
        none = 1.3 if job.saves and not job.sizes else _BITS_OF_STATES[0]
        one = _BITS_OF_STATES[1] if job.sizes and job.has_step else 2.7 if job.sizes else 3.5
        return [none, one, *_BITS_OF_STATES[2:]]
    low, high = job.states_range
    found = []
    for states in range(len(_BITS_OF_STATES)):
        if states == 0 < low and not job.has_step:
            found.append(1.0)  # the first step may be still to come
        elif not low <= states <= high:
            found.append(11.0)
        elif low == high:
            found.append(0.0)
        else:
            found.append(2.0 if states == 0 else 0.4 if high == 1 else 1.0)
    return found


def _bits_of_gradients(job: Job) -> tuple[float, float]:
    """Return the bits of no gradients from before the trace, and of gradients."""
    source = job.parameters.source
    if source is Source.ADDED:
        return 8.0, 0.0
    if source in (Source.WHOLE, Source.SEVERAL):
        return 0.0, 10.0
    if job.known[Category.GRADIENT] and job.sizes:
        return 8.0, 0.0
    return (0.4, 2.0) if job.saves else (1.0, 1.0)


# --- the bits of what a hypothesis misses


@dataclass(frozen=True, slots=True)
class Split:
    """How many of the open blocks of a size are weights, states and gradients."""

    weights: int
    states: int
    gradients: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.states + self.gradients


def predicted(hypothesis: Hypothesis, size: int, job: Job, states: int | None = None) -> Split:
    """Return how many open blocks of a size there should be."""
    n_states = hypothesis.states if states is None else states
    n, n_half = job.sizes[size], _of_half(job, size)
    weights, of_states = n * (1 + hypothesis.copies), 0 if hypothesis.precision else n_states * n
    if hypothesis.precision:
        of_states += n_half * (n_states + (hypothesis.precision == 1))
        weights += n_half * (hypothesis.precision == 2)
    known = job.known
    return Split(
        max(0, weights - known[Category.WEIGHT][size]),
        max(0, of_states - known[Category.OPTIMIZER_STATE][size]),
        0 if job.has_gradients else max(0, hypothesis.gradients * n - known[Category.GRADIENT][size]),
    )


def _of_half(job: Job, size: int) -> int:
    return job.sizes[size // 2] if size % 2 == 0 else 0


def without_gradient(hypothesis: Hypothesis, job: Job) -> int:
    """Return how many blocks there are for each parameter that had no gradient."""
    has = job.parameters.source is Source.ADDED or not job.sizes
    return 1 + hypothesis.copies + hypothesis.states + (hypothesis.gradients if has else 0)


@lru_cache(_MOST_CACHED)
def bits_of_count(n: int, n_layers: int) -> float:
    """Return the bits of a model that has weights of one size so often: layers have the same sizes."""
    if not n:
        return 4.0
    bits = 0.8 + 1.1 * log2(n)
    if 1 < n_layers <= n:
        per_layer, rest = divmod(n, n_layers)
        if rest < 3:
            of_layers = 0.7 * log2(min(per_layer, 8)) + 1.5 * log2(max(per_layer / 8, 1))
            bits = min(bits, 0.5 + of_layers + rest)
    return bits


def missed(hypothesis: Hypothesis, job: Job, n_layers: int, sizes: list[int]) -> tuple[float, int]:
    """Return the bits of all counts that a hypothesis misses, and the bytes that it explains."""
    if job.sizes:
        return _missed_of_parameters(hypothesis, job, n_layers, sizes)
    bits, explained, n_fit, n_single, every = 0.0, 0, 0, 0, max(1, bytes_of(job.n))
    times = hypothesis.per_parameter
    for size in sizes:
        n = job.n[size]
        if not n:
            continue
        of_size, n_explained = _bits_without_parameters(n, times, n_layers)
        bits += _weight_of(size * n, every) * of_size
        explained += size * n_explained
        if n_explained:
            n_fit += 1
            each = n // times
            seldom = each <= (2 if n_layers > 2 else 1) and size * n > every / 1000
            n_single += seldom or (n_layers > 2 and each > n_layers and each % n_layers in (1, 2))
    if n_fit >= 4 and not n_single:
        bits += _NO_SINGLE_SIZE
    if job.n_calls and job.saves:
        n_large = sum(n for size, n in job.n.items() if size >= max(SMALL_BYTES, max(sizes) / 256))
        bits += min(_MOST_BY_CALLS, _MOST_BY_CALLS * abs(log2(max(1, n_large) / times / job.n_calls)))
    return bits + 0.3 * log2(max(1, n_layers)), explained


@lru_cache(_MOST_CACHED)
def _weight_of(n_bytes: int, every: int) -> float:
    return max(_LEAST_SHARE, float((n_bytes / every) ** _SHARE_POWER))


@lru_cache(_MOST_CACHED)
def _bits_without_parameters(n: int, times: int, n_layers: int) -> tuple[float, int]:
    """Return the bits of one size whose parameters are not known, and how many blocks are explained."""
    each, rest = divmod(n, times)
    if not rest:
        return min(6.0, bits_of_count(each, n_layers)), n
    options = [(1.5 + bits_of_count(n, 0), 0)]
    if each:
        options.append((bits_of_count(each, n_layers) + 1.5 + bits_of_count(rest, n_layers), n - rest))
    return min(options)


def _missed_of_parameters(
    hypothesis: Hypothesis, job: Job, n_layers: int, sizes: list[int]
) -> tuple[float, int]:
    bits, explained, every = 0.0, 0, max(1, bytes_of(job.n))
    n_known = job.n_known_of
    for size in sizes:
        n, each = job.n[size], job.sizes[size]
        is_of_half = bool(hypothesis.precision and _of_half(job, size))
        if each or is_of_half:
            of_size, n_explained = _bits_of_size(hypothesis, job, size, n_known[size])
            explained += size * n_explained
        elif n:
            of_size = _bits_of_other_size(hypothesis, job, size, n_layers)
        else:
            continue
        bits += _weight_of(size * max(n, each), every) * of_size
    return bits, explained


def _bits_of_size(hypothesis: Hypothesis, job: Job, size: int, n_known: int) -> tuple[float, int]:
    """Return the bits of a size that parameters have, and how many blocks of it are explained."""
    n, each, expected = job.n[size], job.sizes[size], predicted(hypothesis, size, job).total
    if n == expected:
        return 0.0, n
    if (
        n > expected
    ):  # one block more, an ids tensor, spoils nothing; whole copies more are another hypothesis
        copies = 2.0 if each and (n - expected) % each == 0 else 0.0
        options = [(min(7.0, 2.5 + copies + 0.5 * log2(1 + n - expected)), expected)]
    else:
        options = [(min(8.0, 4.0 + log2(1 + expected - n)), 0)]
    if hypothesis.other_states >= 0 and n == predicted(hypothesis, size, job, hypothesis.other_states).total:
        options.append((0.7, n))
    if not hypothesis.precision:
        times = hypothesis.per_parameter
        more, rest = divmod(n + n_known, times)
        if not rest and more > each:
            is_all = (job.is_whole or job.parameters.source is Source.ADDED) and not job.has_several_steps
            options.append((3.0 if is_all else 0.8, n))
        elif not rest and times > 1 and 0 < more < each:
            options.append((3.5, n))
    return min(options)


def _bits_of_other_size(hypothesis: Hypothesis, job: Job, size: int, n_layers: int) -> float:
    """Return the bits of a size that no parameter has."""
    n = job.n[size]
    if hypothesis.has_half_copy and job.sizes[2 * size]:
        return 0.0 if n == job.sizes[2 * size] else 3.0 if n < job.sizes[2 * size] else 1.0
    if hypothesis.trains_all:
        each, rest = divmod(n, without_gradient(hypothesis, job))
        return bits_of_count(each, n_layers) if not rest else 2.0 + min(8.0, bits_of_count(n, n_layers))
    return min(8.0, bits_of_count(n, n_layers))


# --- the posterior of every row


@dataclass(frozen=True, slots=True)
class Weighed:
    """A hypothesis with its posterior weight, and the share of the open bytes that it explains."""

    weight: float
    hypothesis: Hypothesis
    job: Job
    explained: float


def weigh(of_jobs: list[Job]) -> list[Weighed]:
    """Weigh all hypotheses, the most probable first."""
    n_of, found = of_jobs[0].n, []
    every = set(n_of).union(
        *(job.sizes for job in of_jobs), *({2 * size for size in job.sizes} for job in of_jobs)
    )
    sizes = sorted((size for size in every if size >= SMALL_BYTES), key=lambda size: -size * n_of[size])
    sizes = sizes[:_MOST_SIZES] or sorted(n_of)[:_MOST_SIZES]
    total = max(1, bytes_of(n_of))
    for number, job in enumerate(of_jobs):
        layers = [job.n_layers] if job.n_layers > 1 else [0] if job.sizes else _possible_layers(job)
        for hypothesis, rarity in hypotheses(job):
            bits, explained = min(
                (missed(hypothesis, job, n, sizes) for n in layers), key=lambda found: found[0]
            )
            # Parameters by a second source are rarer than those by the best.
            found.append((rarity + bits + (number > 0), Weighed(0.0, hypothesis, job, explained / total)))
    found.sort(key=lambda one: one[0])
    weights = np.array([2.0 ** (found[0][0] - bits) for bits, _ in found])
    weights /= weights.sum()
    return [replace(one, weight=weight) for weight, (_, one) in zip(weights.tolist(), found, strict=True)]


def _possible_layers(job: Job) -> list[int]:
    counts = distinct(np.array([n for size, n in job.n.items() if size >= SMALL_BYTES and n >= 3] or [0]))
    found = {0}
    for n in counts.tolist():
        found |= {n // times for times in (1, 2, 3, 4) if n % times == 0}
    return sorted(found)[:_MOST_LAYERS]


# Categories and how many blocks of each, in order of addresses, with the probability of that order.
Layout = tuple[float, tuple[tuple[Category, int], ...]]


def layouts(hypothesis: Hypothesis, job: Job, size: int, n: int, times: int = 0) -> list[Layout]:
    """Lay out the blocks of one size in order of addresses.

    Weights are made first: measured, they lie below the states of their size in 99 % of pairs. Between states
    and gradients, addresses show nothing (46 to 51 %).
    """
    if not hypothesis.is_trained:
        return [(1.0, ((Category.WEIGHT, n),))]
    is_known = bool(job.sizes and (job.sizes[size] or hypothesis.precision))
    if not is_known:
        each, rest = divmod(n, times or 1 + hypothesis.copies + hypothesis.states + hypothesis.gradients)
        n_gradients = (times or 1 + hypothesis.copies + hypothesis.states + hypothesis.gradients) - 1
        n_gradients -= hypothesis.copies + hypothesis.states
        split = Split(each * (1 + hypothesis.copies) + rest, each * hypothesis.states, each * n_gradients)
        return _in_order(split, job)
    split = predicted(hypothesis, size, job)
    if hypothesis.other_states >= 0 and n != split.total:
        other = predicted(hypothesis, size, job, hypothesis.other_states)
        split = other if other.total == n else split
    more = n - split.total
    if more and not hypothesis.precision and (whole := _as_whole_copies(hypothesis, job, size, n, split)):
        if more > 0 and job.is_whole and not (whole.states and whole.gradients):
            # Parameters without a gradient this time, or no parameters.
            first = replace(split, weights=split.weights + more)
            return [(0.5, layout) for one in (whole, first) for _, layout in _in_order(one, job)]
        return _in_order(whole, job)
    if more > 0 and split.states and more % max(1, job.sizes[size]):
        first, last = replace(split, weights=split.weights + more), split
        of_last = (*_in_order(last, job)[0][1], (Category.WEIGHT, more))
        return [(0.75, _in_order(first, job)[0][1]), (0.25, of_last)]
    return _in_order(_limited(split, n), job)


def _as_whole_copies(hypothesis: Hypothesis, job: Job, size: int, n: int, split: Split) -> Split | None:
    """Split by another number of parameters of this size, if that leaves no rest."""
    times, n_known = hypothesis.per_parameter, job.n_known_of[size]
    each, rest = divmod(n + n_known, times)
    if rest or not (each > job.sizes[size] or (times > 1 and n + n_known and split.total > n)):
        return None
    counts = (each * (1 + hypothesis.copies), each * hypothesis.states, each * hypothesis.gradients)
    of = (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)
    left = (max(0, count - job.known[category][size]) for count, category in zip(counts, of, strict=True))
    return Split(*left)


def _limited(split: Split, n: int) -> Split:
    """Add the blocks that are more to the weights; if there are fewer, gradients are missing first."""
    weights, states, gradients = split.weights + max(0, n - split.total), split.states, split.gradients
    over = weights + states + gradients - n
    cut = min(over, gradients)
    gradients, over = gradients - cut, over - cut
    cut = min(over, weights)
    return Split(weights - cut, states - (over - cut), gradients)


def _in_order(split: Split, job: Job) -> list[Layout]:
    weights = (Category.WEIGHT, split.weights)
    states, gradients = (Category.OPTIMIZER_STATE, split.states), (Category.GRADIENT, split.gradients)
    both = split.states + split.gradients
    if not (split.states and split.gradients) or job.states_are_built:
        return [(1.0, (weights, states, gradients))]
    return [
        (split.states / both, (weights, (Category.OPTIMIZER_STATE, both))),
        (split.gradients / both, (weights, (Category.GRADIENT, both))),
    ]


Probabilities = NDArray[np.float64]


def probabilities(decided: Decided, rows: Int64Column, weighed: list[Weighed]) -> Probabilities:
    """Return the probability of every category for the rows, summed over hypotheses."""
    features = decided.features
    found = np.zeros((len(rows), len(Category)))
    kept = [one for one in weighed if one.weight > _LEAST_WEIGHT]
    of_jobs = {id(one.job): one.job for one in kept}
    others = {key: OtherSizes(decided, rows, job) for key, job in of_jobs.items()}
    sizes = features.sizes[rows]
    by_size = grouped(np.argsort(features.allocations.addr[rows], kind="stable"), sizes)
    by_size.sort(key=lambda members: -int(sizes[members[0]]) * len(members))
    for members in by_size[:_MOST_SIZES]:
        for one in kept:
            judge = partial(others[id(one.job)].judge, rows[members])
            _mark_size(found, members, one, judge, int(sizes[members[0]]))
    return found


def _mark_size(
    found: Probabilities,
    members: Int64Column,
    one: Weighed,
    judge: Callable[[], dict[Category, float]],
    size: int,
) -> None:
    """Add what a hypothesis says of one size: of its rows, by ``judge`` where they are no parameters."""
    hypothesis, job, n = one.hypothesis, one.job, len(members)
    if job.sizes[size] or (hypothesis.precision and _of_half(job, size)):
        _mark(found, members, one.weight, layouts(hypothesis, job, size, n))
    elif hypothesis.has_half_copy and job.sizes[2 * size]:
        found[members, Category.WEIGHT] += one.weight
    elif hypothesis.trains_all and n % without_gradient(hypothesis, job) == 0:
        _mark(
            found, members, one.weight, layouts(hypothesis, job, size, n, without_gradient(hypothesis, job))
        )
    else:
        judged = dict(judge())
        if not job.sizes and hypothesis.is_trained and n >= hypothesis.per_parameter:
            # Of the model, as the hypothesis divides it; or not of the model.
            _mark(found, members, one.weight * judged.pop(Category.WEIGHT), layouts(hypothesis, job, size, n))
        for category, probability in judged.items():
            found[members, category] += one.weight * probability


def _mark(found: Probabilities, members: Int64Column, weight: float, of_size: list[Layout]) -> None:
    for share, layout in of_size:
        at = 0
        for category, n in layout:
            found[members[at : at + n], category] += weight * share
            at += n


# --- the stage


@dataclass(frozen=True, slots=True)
class Inventory:
    """The stage that explains what is open, from before the trace, live and without frames."""

    name: str = "inventory"

    def proposals(self, decided: Decided) -> Iterator[Proposal]:
        """Yield what is certain by the hypotheses, then what is likely, then gradients or states."""
        features = decided.features
        rows = np.flatnonzero(decided.is_open & features.unrecorded)
        if not len(rows):
            return
        of_jobs = jobs(decided, rows)
        weighed = weigh(of_jobs)
        decided.explanation = _explanation(weighed, bytes_of(of_jobs[0].n), features.phases.optimizers)
        yield from decided_by(decided, rows, probabilities(decided, rows, weighed), of_jobs[0].regime)


def _explanation(weighed: list[Weighed], n_bytes: int, optimizers: tuple[str, ...]) -> Explanation:
    best = weighed[0]
    other = next((one for one in weighed[1:] if one.hypothesis != best.hypothesis), best)
    return Explanation(
        str(best.hypothesis),
        best.explained,
        str(other.hypothesis) if other is not best else "",
        other.explained,
        n_bytes,
        best.weight,
        best.job.parameters.source.value,
        optimizers,
    )


# From here on, a hypothesis's probability is not worth a word.
_SURE = 0.995


def sentence(explanation: Explanation) -> str:
    """Say what explains the job: "AdamW: weights + 2 states account for 98.7 % of 4.1 GiB made before …"."""
    optimizers = f"{', '.join(explanation.optimizers)}: " if explanation.optimizers else ""
    text = f"{optimizers}{explanation.hypothesis} account for {100 * explanation.explained:.1f} %"
    text += f" of {format_bytes(explanation.n_bytes)} allocated before the recording"
    if explanation.probability < _SURE:
        text += f" (right with a probability of {100 * explanation.probability:.0f} %)"
    if explanation.next_best:
        text += f"; next best: {explanation.next_best}, {100 * explanation.next_explained:.1f} %"
    return text
