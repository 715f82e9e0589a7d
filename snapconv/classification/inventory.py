"""The inventory of the job: blocks from before the trace, explained by one hypothesis about all of them.

A job has so many parameters of every size. A hypothesis says how many blocks there are for each:
weights, states of an optimizer, gradients that are still there, a second model; whether the
optimizer works in full precision beside weights in half; and whether what had no gradient is
trained too, in the turn of another optimizer. It so predicts how often every size occurs; what
facts have named already is subtracted. Its cost, in bits, is that of its own rarity and of every
size whose count it misses. A row's probabilities are the sum over all hypotheses, each with a
weight of 2 ** -bits.

The bits, a table (``Bits``), were fitted on the first thirteen groups of blind programs of the
benchmark:
count these as seen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import log2

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.conditions import saves
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import CERTAIN, LIKELY, Decided, FloatColumn, Proposal
from snapconv.classification.other_sizes import OtherSizes
from snapconv.classification.parameters import (
    LEAST_REPEATED,
    SMALL_BYTES,
    Parameters,
    Sizes,
    Source,
    bytes_of,
    candidates,
    counted,
    is_training,
)
from snapconv.columns import Int64Column, distinct, grouped, number_groups, rows_of
from snapconv.phases.trace_phases import Optimizers, Phase
from snapconv.units import format_bytes

SLUG = "explained-by-the-job"
GRADIENT_OR_STATE = "gradient-or-optimizer-state"
REASONS = {
    SLUG: "one hypothesis about the whole job explains how often this size and the others occur: "
    "so many weights, states, gradients and copies of the model",
    GRADIENT_OR_STATE: "a gradient or a state of the optimizer: as many of a size as both have, "
    "and nothing shows which",
}
# Sources that have all parameters of an optimizer.
_HAS_ALL = (Source.WHOLE, Source.ADDED)
# What hostile files may cost: sizes by their bytes, the largest first, and numbers of layers.
_MOST_SIZES, _MOST_LAYERS = 600, 60
# Equal counts cost equally, in every hypothesis.
_MOST_CACHED = 1 << 16
# Hypotheses less probable than this, beside the best ones, change no row by more (30 %: 0.4
# points).
_LEAST_WEIGHT = 0.003
# A size weighs by its share of all bytes to this power: small sizes count too (30 %: 0.6 points).
_SHARE_POWER = 0.1


# Numbers of blocks: weights, optimizer states, gradients; _KINDS is their order.
Counts = tuple[int, int, int]
_KINDS = (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.GRADIENT)


@dataclass(frozen=True, slots=True)
class Bits:
    """What speaks against a hypothesis: with every bit more it is half as probable.

    In brackets: 30 % more or less changes a mean of 42 recordings, late or ended early, by so many
    points.
    """

    # --- once for a hypothesis
    # So many states, 0 to 4, for every parameter, of an unknown optimizer: most are Adam's two
    # (2.5).
    states: tuple[float, ...] = (2.0, 3.5, 0.6, 5.0, 7.0)
    no_state_yet: float = (
        1.3  # of an unknown optimizer, where only forwards were seen, that save (2.2)
    )
    rare_state: float = 2.5  # a known optimizer may keep it, and rarely does (0.4)
    impossible: float = 10.0  # what a known optimizer or known gradients contradict (0.9)
    # A second model, a teacher or an average; or states, maybe weights, in full precision beside
    # half (2.6).
    second: float = 3.0
    start: float = (
        2.0  # states or gradients where a first step reserves; neither, where none does (2.6)
    )
    trains_all: float = 4.0  # what had no gradient is trained too, by one optimizer (0.4)
    # Nothing is trained, by whether forward saves for a backward: not, maybe, surely (0.2).
    untrained: tuple[float, float, float] = (0.0, 4.0, 9.0)
    # --- for a size whose blocks are not as many as the hypothesis says
    more: float = 2.5  # more blocks (0.4)
    fewer: float = 4.0  # fewer (0.5)
    more_parameters: float = 0.8  # more parameters of a size than are known (3.7)
    other_number: float = 3.0  # fewer, or more than are known for sure (1.3)
    no_multiple: float = 2.0  # the hypothesis does not divide them without a rest (0.4)
    per_layer: float = (
        0.7  # for every doubling of the number in a layer; 1 in a model without layers (1.1)
    )


BITS = Bits()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What there is for every parameter, besides its weight."""

    states: int = 0
    gradients: int = 0
    copies: int = 0
    # In full precision: 1, masters of the optimizer and its states; 2, masters that are weights,
    # and states.
    precision: int = 0
    # What had no gradient is trained as well: sparse, or in another optimizer's turn.
    trains_all: bool = False
    is_trained: bool = True

    @property
    def of_each(self) -> Counts:
        """The number of blocks for each parameter."""
        return 1 + self.copies, self.states, self.gradients

    @property
    def per_parameter(self) -> int:
        """Blocks of a parameter's size for each parameter."""
        return sum(self.of_each) - (self.states if self.precision else 0)

    def __str__(self) -> str:
        parts = (
            "weights",
            self.states and f"{self.states} state{'s' * (self.states > 1)}",
            self.gradients and "gradients",
            self.copies and "a copy of the model",
            self.precision and "in full precision beside half",
            self.trains_all and "also for sizes without a gradient",
        )
        return " + ".join(map(str, filter(None, parts))) + (
            "" if self.is_trained else " (nothing is trained)"
        )


@dataclass(frozen=True)
class Job:
    """What the recording shows of the job. ``n`` counts the open blocks, ``known`` what facts have named."""

    parameters: Parameters
    n: Sizes
    known: dict[Category, Sizes]
    n_layers: int
    optimizers: Optimizers
    is_training: bool
    saves: int
    has_step: bool
    infers: bool
    reserves_more: bool | None

    @property
    def sizes(self) -> Sizes:
        """Parameters by size."""
        return self.parameters.sizes

    @cached_property
    def has_gradients(self) -> bool:
        """Whether facts have named most gradients, and so all: what is open is none."""
        return 2 * bytes_of(self.known[Category.GRADIENT] & self.sizes) > bytes_of(self.sizes)

    def n_known(self, size: int) -> int:
        """Weights, gradients and states of a size that facts have named."""
        return sum(sizes[size] for sizes in self.known.values())

    def left(self, size: int, counts: Iterable[int]) -> Counts:
        """Subtract what facts have named from the blocks of a size."""
        weights, states, gradients = (
            max(0, n - self.known[kind][size]) for kind, n in zip(_KINDS, counts, strict=True)
        )
        return weights, states, gradients

    def of_half(self, size: int) -> int:
        """Parameters of half a size."""
        return self.sizes[size // 2] if size % 2 == 0 else 0

    def explains(self, size: int, hypothesis: Hypothesis) -> bool:
        """Whether parameters have this size, or half of it where the optimizer works in full precision."""
        return bool(self.sizes[size] or (hypothesis.precision and self.of_half(size)))


def jobs(decided: Decided, rows: Int64Column) -> list[Job]:
    """Gather the evidence, once for each candidate for the parameters."""
    features = decided.features
    found = candidates(decided, rows)
    older = ~features.is_traced
    newer = features.is_traced & features.is_live_at_dump
    known = {Category.GRADIENT: counted(features.sizes[decided.has(Category.GRADIENT) & older])}
    for category in (Category.WEIGHT, Category.OPTIMIZER_STATE):
        mine = decided.has(category)
        # A step may replace its states: those before and those after are the same.
        known[category] = counted(features.sizes[mine & older]) | counted(
            features.sizes[mine & newer]
        )
    trains = is_training(decided)
    first = Job(
        parameters=found[0],
        n=counted(features.sizes[rows]),
        known=known,
        n_layers=layers_that_ran(decided),
        optimizers=features.phases.optimizers,
        is_training=trains,
        saves=decided.shared(saves),
        has_step=bool(np.any(features.phases.certain == Phase.OPTIMIZER)),
        infers=not trains and bool((features.in_forward | features.preexisting_in_forward).any()),
        reserves_more=features.reserves_more,
    )
    return [replace(first, parameters=parameters) for parameters in found]


def layers_that_ran(decided: Decided) -> int:
    """Return what divides how often every line of modules allocates that does so repeatedly in a forward."""
    features = decided.features
    rows = rows_of(features.by_module)
    if not len(rows):
        return 0
    outside = np.sort(features.alloc[features.outside])
    forward = np.searchsorted(outside, features.alloc[rows])
    rows = rows[forward == np.bincount(forward).argmax()]
    _, group = number_groups(features.allocations.stack_id[rows], features.sizes[rows])
    n_made = np.bincount(group)
    return int(np.gcd.reduce(n_made[n_made >= LEAST_REPEATED], initial=0))


# --- hypotheses and the bits of their rarity


def hypotheses(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    """Go through the hypotheses, each with the bits of its rarity."""
    if job.sizes or job.is_training or job.saves:
        yield from _of_training(job)
    if job.is_training:
        return
    bits = BITS.untrained[job.saves]
    yield Hypothesis(is_trained=False), bits
    yield Hypothesis(copies=1, is_trained=False), bits + BITS.second


def _of_training(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    of_gradients = _bits_of_gradients(job)
    of_all = BITS.trains_all
    if job.optimizers.may_be_several or job.parameters.source is Source.BEFORE:
        of_all = 0.0
    # In full precision a block is twice as large as in half.
    masters = Counter({2 * size: n for size, n in job.sizes.items()})
    has_full = 2 * bytes_of(masters & job.n) >= bytes_of(job.sizes)
    for (states, of_states), gradients, copies in product(
        enumerate(_bits_of_states(job)), (0, 1), (0, 1)
    ):
        bits = of_states + of_gradients[gradients] + BITS.second * copies
        if not job.has_step and job.reserves_more is bool(states or gradients):
            bits += BITS.start
        plain = Hypothesis(states, gradients, copies)
        for precision in (0, 1, 2) if has_full else (0,):
            if precision != 1 or states:
                yield replace(plain, precision=precision), bits + BITS.second * (precision > 0)
        if states and job.sizes:
            yield replace(plain, trains_all=True), bits + of_all


def _bits_of_states(job: Job) -> list[float]:
    if not job.optimizers.states_range:
        first = BITS.no_state_yet if job.saves and not job.sizes else BITS.states[0]
        return [first, *BITS.states[1:]]
    low, high = job.optimizers.states_range
    return [_bits_of_known(job, states, low, high) for states in range(len(BITS.states))]


def _bits_of_known(job: Job, states: int, low: int, high: int) -> float:
    """Return the bits of so many states where the optimizer is known."""
    if states == 0 < low and not job.has_step:
        return 0.0  # the first step may be still to come
    if low <= states <= high:
        return BITS.rare_state * (states - low if low else states == 0)
    # Without a step nothing shows whether Adam keeps a maximum too.
    return BITS.states[states] if states == high + 1 > 2 and not job.has_step else BITS.impossible


def _bits_of_gradients(job: Job) -> tuple[float, float]:
    """Return the bits of no gradients from before the trace, and of gradients."""
    if job.parameters.source in (Source.WHOLE, Source.SEVERAL):
        return 0.0, BITS.impossible
    if job.parameters.source is Source.ADDED or (job.known[Category.GRADIENT] and job.sizes):
        return BITS.impossible, 0.0
    return 0.0, 0.0


# --- the bits of what a hypothesis misses


def predicted(hypothesis: Hypothesis, size: int, job: Job) -> Counts:
    """Return how many open blocks of a size there should be."""
    n_half = job.of_half(size)
    weights, states, gradients = (job.sizes[size] * times for times in hypothesis.of_each)
    if hypothesis.precision:
        states = n_half * (hypothesis.states + (hypothesis.precision == 1))
        weights += n_half * (hypothesis.precision == 2)
    return job.left(size, (weights, states, 0 if job.has_gradients else gradients))


def without_gradient(hypothesis: Hypothesis, job: Job) -> int:
    """Return how many blocks there are for each parameter that had no gradient."""
    has = job.parameters.source in (Source.ADDED, Source.BEFORE) or not job.sizes
    return 1 + hypothesis.copies + hypothesis.states + (hypothesis.gradients if has else 0)


@lru_cache(_MOST_CACHED)
def bits_of_count(n: int, n_layers: int) -> float:
    """Return the bits of a model that has weights of one size so often: layers have the same sizes."""
    bits = 1 + log2(n)
    if 1 < n_layers <= n:
        per_layer, rest = divmod(n, n_layers)
        bits = min(bits, BITS.per_layer * log2(per_layer) + rest)
    return bits


def missed(hypothesis: Hypothesis, job: Job, n_layers: int, sizes: list[int]) -> tuple[float, int]:
    """Return the bits of all counts that a hypothesis misses, and the bytes that it explains."""
    bits = 0.0
    explained = 0
    every = max(1, bytes_of(job.n))
    for size in sizes:
        n = job.n[size]
        each = job.sizes[size]
        n_explained = 0
        if job.explains(size, hypothesis):
            of_size, n_explained = _bits_of_size(hypothesis, job, size)
        elif not n:
            continue
        elif job.sizes:
            of_size = _bits_of_other_size(hypothesis, job, n, n_layers)
        else:
            of_size, n_explained = _bits_without_parameters(n, hypothesis.per_parameter, n_layers)
        bits += (size * max(n, each) / every) ** _SHARE_POWER * of_size
        explained += size * n_explained
    return bits, explained


@lru_cache(_MOST_CACHED)
def _bits_without_parameters(n: int, times: int, n_layers: int) -> tuple[float, int]:
    """Return the bits of one size whose parameters are not known, and how many blocks are explained."""
    each, rest = divmod(n, times)
    if not rest:
        return bits_of_count(each, n_layers), n
    options = [(BITS.no_multiple + bits_of_count(n, 0), 0)]
    if each:
        of_rest = BITS.no_multiple + bits_of_count(rest, n_layers)
        options.append((bits_of_count(each, n_layers) + of_rest, n - rest))
    return min(options)


def _bits_of_size(hypothesis: Hypothesis, job: Job, size: int) -> tuple[float, int]:
    """Return the bits of a size that parameters have, and how many blocks of it are explained."""
    n = job.n[size]
    each = job.sizes[size]
    expected = sum(predicted(hypothesis, size, job))
    if n == expected:
        return 0.0, n
    if n > expected:  # one block more, an ids tensor, spoils nothing
        options = [(BITS.more + 0.5 * log2(1 + n - expected), expected)]
    else:
        options = [(BITS.fewer + log2(1 + expected - n), 0)]
    if not hypothesis.precision:
        times = hypothesis.per_parameter
        more, rest = divmod(n + job.n_known(size), times)
        if not rest and more > each:
            # With all gradients of an iteration and one optimizer, no parameter is missing.
            whole = job.parameters.source in _HAS_ALL and not job.optimizers.may_be_several
            options.append((BITS.other_number if whole else BITS.more_parameters, n))
        elif not rest and times > 1 and 0 < more < each:
            options.append((BITS.other_number, n))
    return min(options)


def _bits_of_other_size(hypothesis: Hypothesis, job: Job, n: int, n_layers: int) -> float:
    """Return the bits of a size that no parameter has."""
    if not hypothesis.trains_all:
        return bits_of_count(n, n_layers)
    each, rest = divmod(n, without_gradient(hypothesis, job))
    return BITS.no_multiple + bits_of_count(n, n_layers) if rest else bits_of_count(each, n_layers)


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
    n_of = of_jobs[0].n
    found = []
    every = set(n_of).union(*({size, 2 * size} for job in of_jobs for size in job.sizes))
    sizes = sorted(
        (size for size in every if size >= SMALL_BYTES), key=lambda size: -size * n_of[size]
    )
    sizes = sizes[:_MOST_SIZES] or sorted(n_of)[:_MOST_SIZES]
    total = max(1, bytes_of(n_of))
    for number, job in enumerate(of_jobs):
        layers = [job.n_layers] if job.n_layers > 1 else [0] if job.sizes else _possible_layers(job)
        for hypothesis, rarity in hypotheses(job):
            bits, explained = min(
                (missed(hypothesis, job, n, sizes) for n in layers), key=lambda found: found[0]
            )
            # Parameters by a second source are rarer than those by the best.
            found.append((rarity + bits + (number > 0), (hypothesis, job, explained / total)))
    found.sort(key=lambda one: one[0])
    weights = np.array([2.0 ** (found[0][0] - bits) for bits, _ in found])
    weights /= weights.sum()
    return [Weighed(weight, *one) for weight, (_, one) in zip(weights.tolist(), found, strict=True)]


def _possible_layers(job: Job) -> list[int]:
    found = {0}
    for n in {n for size, n in job.n.items() if size >= SMALL_BYTES and n >= LEAST_REPEATED}:
        found |= {n // times for times in (1, 2, 3, 4) if n % times == 0}
    return sorted(found)[:_MOST_LAYERS]


# Categories and how many blocks of each, in order of addresses, with the probability of that order.
Layout = tuple[float, tuple[tuple[Category, int], ...]]


def layouts(hypothesis: Hypothesis, job: Job, size: int, n: int) -> list[Layout]:
    """Lay out the blocks of one size in order of addresses.

    Weights lie below states of their size in 99 % of pairs, gradients in 46 to 51 %, which shows
    nothing.
    """
    if not hypothesis.is_trained:
        return [(1.0, ((Category.WEIGHT, n),))]
    if not job.explains(size, hypothesis):
        each, rest = divmod(n, without_gradient(hypothesis, job))
        weights = each * (1 + hypothesis.copies) + rest
        states = each * hypothesis.states
        return _in_order((weights, states, n - weights - states), job)
    counts = predicted(hypothesis, size, job)
    more = n - sum(counts)
    whole = (
        _as_whole_copies(hypothesis, job, size, n, more)
        if more and not hypothesis.precision
        else None
    )
    if whole and more > 0 and job.parameters.source in _HAS_ALL:
        # Parameters without a gradient this time, or no parameters.
        both = (whole, _limited(counts, n))
        return [(share / 2, layout) for one in both for share, layout in _in_order(one, job)]
    return _in_order(whole or _limited(counts, n), job)


def _as_whole_copies(
    hypothesis: Hypothesis, job: Job, size: int, n: int, more: int
) -> Counts | None:
    """Count by another number of parameters of this size, if that leaves no rest."""
    times = hypothesis.per_parameter
    n_every = n + job.n_known(size)
    each, rest = divmod(n_every, times)
    if rest or not (each > job.sizes[size] or (times > 1 and n_every and more < 0)):
        return None
    return job.left(size, (each * n_blocks for n_blocks in hypothesis.of_each))


def _limited(counts: Counts, n: int) -> Counts:
    """Add the blocks that are more to the weights; if there are fewer, gradients are missing first."""
    states = min(counts[1], n)
    weights = min(counts[0] + max(0, n - sum(counts)), n - states)
    return weights, states, n - states - weights


def _in_order(counts: Counts, job: Job) -> list[Layout]:
    weights, states, gradients = zip(_KINDS, counts, strict=True)
    both = counts[1] + counts[2]
    if not (counts[1] and counts[2]) or job.optimizers.states_are_built:
        return [(1.0, (weights, states, gradients))]
    return [(n / both, (weights, (kind, both))) for kind, n in (states, gradients)]


Probabilities = NDArray[np.float64]


def probabilities(decided: Decided, rows: Int64Column, weighed: list[Weighed]) -> Probabilities:
    """Return the probability of every category for the rows, summed over hypotheses."""
    features = decided.features
    found = np.zeros((len(rows), len(Category)))
    kept = [one for one in weighed if one.weight > _LEAST_WEIGHT]
    of_jobs = {id(one.job): one.job for one in kept}
    others = {key: OtherSizes(decided, job) for key, job in of_jobs.items()}
    sizes = features.sizes[rows]
    by_size = grouped(np.argsort(features.allocations.addr[rows], kind="stable"), sizes)
    by_size.sort(key=lambda members: -int(sizes[members[0]]) * len(members))
    for members in by_size[:_MOST_SIZES]:
        for one in kept:
            _mark_size(found, members, one, others[id(one.job)], int(sizes[members[0]]))
    return found


def _mark_size(
    found: Probabilities, members: Int64Column, one: Weighed, others: OtherSizes, size: int
) -> None:
    """Add what a hypothesis says of one size: of its rows, by ``others`` where they are no parameters."""
    hypothesis = one.hypothesis
    job = one.job
    n = len(members)
    of_model = layouts(hypothesis, job, size, n)
    trains_it = hypothesis.trains_all and n % without_gradient(hypothesis, job) == 0
    if trains_it or job.explains(size, hypothesis):
        _mark(found, members, one.weight, of_model)
    else:
        judged = dict(others.judge(size))
        if not job.sizes and hypothesis.is_trained and n >= hypothesis.per_parameter:
            # Of the model, as the hypothesis divides it; or not of the model.
            _mark(found, members, one.weight * judged.pop(Category.WEIGHT), of_model)
        for category, probability in judged.items():
            found[members, category] += one.weight * probability


def _mark(found: Probabilities, members: Int64Column, weight: float, of_size: list[Layout]) -> None:
    for share, layout in of_size:
        at = 0
        for category, n in layout:
            found[members[at : at + n], category] += weight * share
            at += n


# --- the stage


# How often what hypotheses state is right, where parameters are known and where not: fitted on
# every second of 207 recordings in order of names without the twelve in the tree, begun late or
# ended early; a line between the points. The others test it (docs/reference/accuracy.md).
_STATED = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 1.0)
_RIGHT = {
    True: (0.40, 0.45, 0.62, 0.70, 0.88, 0.91, 0.94, 0.98, 0.99),
    False: (0.50, 0.60, 0.62, 0.76, 0.82, 0.94, 0.967, 0.987, 0.99),
}
# Gradients from before the trace may be those of one optimizer of several, which step in turn: what
# does not explain so much is likely at most. Of what was certain then, a third was wrong (30 %: 0.4
# points).
_MOSTLY = 0.6


def explain_by_job(decided: Decided) -> Iterator[Proposal]:
    """Explain what is open, from before the trace, live and without frames; or say that it is one of two."""
    features = decided.features
    rows = rows_of(decided.is_open & features.unrecorded)
    if not len(rows):
        return
    of_jobs = jobs(decided, rows)
    job = of_jobs[0]
    if not (job.sizes or job.is_training or job.infers or job.saves):
        return  # without an event, a dump at a peak looks like one at rest
    weighed = weigh(of_jobs)
    decided.explanation = sentence(weighed, bytes_of(job.n), job.optimizers.names)
    found = probabilities(decided, rows, weighed)
    best = found.argmax(1)
    stated = np.interp(found.max(1), _STATED, _RIGHT[bool(job.sizes)])
    if job.parameters.source is Source.BEFORE and weighed[0].explained < _MOSTLY:
        stated = np.minimum(stated, CERTAIN - 0.01)
    column: FloatColumn = np.zeros(len(decided.category), np.float32)
    column[rows] = stated
    for code in distinct(best[stated >= LIKELY]).tolist():
        where = features.mask(rows[(best == code) & (stated >= LIKELY)])
        yield Proposal(where, Category(code), Evidence.SIZES, SLUG, column)
    both = found[:, Category.GRADIENT] + found[:, Category.OPTIMIZER_STATE]
    either = features.mask(rows[(both >= LIKELY) & (stated < LIKELY)])
    yield Proposal(either, Category.UNKNOWN, Evidence.NONE, GRADIENT_OR_STATE)


# From here on, a hypothesis's probability is not worth a word.
_SURE = 0.995


def sentence(weighed: list[Weighed], n_bytes: int, optimizers: tuple[str, ...]) -> str:
    """Say what explains the job: "AdamW: weights + 2 states account for 98.7 % of 4.1 GiB made before …"."""
    best = weighed[0]
    text = f"{', '.join(optimizers)}: " if optimizers else ""
    text += f"{best.hypothesis} account for {100 * best.explained:.1f} %"
    text += f" of {format_bytes(n_bytes)} allocated before the recording"
    if best.weight < _SURE:
        text += f" (right with a probability of {100 * best.weight:.0f} %)"
    other = next((one for one in weighed if one.hypothesis != best.hypothesis), None)
    return (
        f"{text}; next best: {other.hypothesis}, {100 * other.explained:.1f} %" if other else text
    )
