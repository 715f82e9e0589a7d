"""The inventory of the job: one hypothesis explains all blocks from before the trace.

A job has so many parameters of every size. A hypothesis says how many blocks there are for each:
weights, states of an optimizer, gradients that are still there, a second model; whether the
optimizer works in full precision beside weights in half; and whether what had no gradient is
trained too, in the turn of another optimizer. It so predicts how often every size occurs; what
facts have named already is subtracted. Its cost, in bits, is that of its own rarity and of every
size whose count it misses. A row's probabilities are the sum over all hypotheses, each with a
weight of 2 ** -bits.

The bits, a table (``Bits``), were fitted on the first thirteen groups of blind programs of the
benchmark: count these as seen.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product
from math import inf, log2
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import (
    CERTAIN,
    LIKELY,
    Decided,
    FloatColumn,
    Proposal,
)
from snapconv.classification.job import KINDS, Counts, Job, find_job, is_beside_equal
from snapconv.classification.other_sizes import OtherSizes
from snapconv.classification.parameters import (
    SMALL_BYTES,
    Source,
    bytes_of,
    layers_by_counts,
)
from snapconv.classification.predictions import (
    Hypothesis,
    Prediction,
    may_have_squares,
    predict,
)
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among, rows_of
from snapconv.torch_knowledge.optimizers import (
    SAME,
    States,
    Variant,
    has_other_sizes,
    has_states,
    most_same,
    same_states,
)
from snapconv.units import format_bytes

SLUG = "explained-by-the-job"
GRADIENT_OR_STATE = "gradient-or-optimizer-state"
REASONS = {
    SLUG: "one hypothesis about the whole job explains how often this size and the "
    "others occur: so many weights, states, gradients and copies of the model",
    GRADIENT_OR_STATE: "a gradient or a state of the optimizer: as many of a size as "
    "both have, and nothing shows which",
}
# Sources that have all parameters of an optimizer.
_HAS_ALL = (Source.WHOLE, Source.ADDED)
# What hostile files may cost: sizes by their bytes, the largest first.
_MOST_SIZES = 600
# The states of Adam with amsgrad.
_OF_AMSGRAD = 3
# Several optimizers with options have no more.
_MOST_VARIANTS = 24
# An unknown optimizer's: of two for different parameters, preconditioners, and quantized states.
_RARE_VARIANTS = (
    Variant(((States(SAME, 1),), (States(SAME, 2),))),
    Variant(((States(SAME, 2),),), squares=True),
    Variant(((States(SAME, 1),),), squares=True),
    Variant(((),), squares=True),
    Variant(((States(SAME // 4, 2),), (States(SAME, 2),))),
    Variant(((States(SAME // 2, 2),), (States(SAME, 2),))),
)
# Equal counts cost equally, in every hypothesis.
_MOST_CACHED = 1 << 16
# Hypotheses that are rarer than the best one by so many bits are not weighed: 0.1 %.
_MOST_BITS = 10
# Hypotheses less probable than this, beside the best ones, change no row by more (30 %: 0.4
# points).
_LEAST_WEIGHT = 0.003
# A size weighs by its share of all bytes to this power: small sizes count too (30 %: 0.6 points).
_SHARE_POWER = 0.1


# Programs of the benchmark whose optimizer keeps 0 to 6 states for most parameters, by bytes: of 36
# public ones and of 192 others.
_PROGRAMS_BY_STATES = (15, 27, 180, 5, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class Bits:
    """What speaks against a hypothesis: with every bit more it is half as probable.

    ``scripts/bench/classification/constants.py`` measures by how much each moves the figures.
    """

    # --- once for a hypothesis
    # The states of an unknown optimizer for every parameter, 0 to 6: each number costs as much as
    # it is rare. Half a program more of each lets none be impossible.
    states: tuple[float, ...] = tuple(
        log2((sum(_PROGRAMS_BY_STATES) + 0.5 * len(_PROGRAMS_BY_STATES)) / (n + 0.5))
        for n in _PROGRAMS_BY_STATES
    )
    # No state of an unknown optimizer, where only forwards were seen, that save.
    no_state_yet: float = 1.3
    # A known optimizer has other options than the default, or none of what they give.
    rare_option: float = 2.5
    # Adam keeps the largest squares too, which few programs ask for: a third copy is more likely
    # one of the weights, as the targets of reinforcement learning are.
    amsgrad: float = 9.0
    # What a known optimizer or known gradients contradict.
    impossible: float = 10.0
    # A second model, a teacher or an average; or states, maybe weights, in full precision beside
    # half.
    second: float = 3.0
    # States or gradients where a first step reserves; neither, where none does.
    start: float = 2.0
    # What had no gradient is trained too, by one optimizer.
    trains_all: float = 4.0
    # Parameters of the same sizes are not trained; and where much else may not be trained either.
    frozen: float = 8.0
    frozen_beside_others: float = 2.0
    # No weights are frozen where layers keep less than others: in 9 of 9 programs some were.
    none_frozen: float = 3.0
    # Blocks of a size lie beside each other as those of several states do, or as copies do not.
    adjacency: float = 7.0
    # An unknown optimizer has preconditioners, or quantized states.
    rare_variant: float = 4.0
    # Nothing is trained, by whether forward saves for a backward: not, maybe, surely.
    untrained: tuple[float, float, float] = (0.0, 4.0, 9.0)
    # Something is trained, though no forward saves: activations may be elsewhere, or computed
    # again.
    unseen_training: float = 8.0
    # --- for a size whose blocks are not as many as the hypothesis says
    # Its parameters are of another kind than most.
    other_kind: float = 1.0
    # There are more blocks.
    too_many: float = 2.5
    # There are fewer blocks.
    too_few: float = 4.0
    # There are more parameters of a size than are known.
    more_parameters: float = 0.8
    # There are fewer, or more than are known for sure.
    other_number: float = 3.0
    # The hypothesis does not divide them without a remainder.
    no_multiple: float = 2.0
    # For every doubling of the number in a layer; 1 in a model without layers.
    per_layer: float = 0.7


BITS = Bits()


# --- hypotheses and the bits of their rarity


def hypotheses(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    """Go through the hypotheses, each with the bits of its rarity."""
    is_shown = bool(job.sizes or job.is_training or job.saves)
    for hypothesis, bits in _training_hypotheses(job):
        yield hypothesis, bits + (0.0 if is_shown else BITS.unseen_training)
    if job.is_training:
        return
    bits = BITS.untrained[job.saves]
    yield Hypothesis(is_trained=False), bits
    yield Hypothesis(copies=1, is_trained=False), bits + BITS.second


def _training_hypotheses(job: Job) -> Iterator[tuple[Hypothesis, float]]:
    gradient_bits = _bits_of_gradients(job)
    variants = list(_variants(job))
    for (variant, variant_bits), gradients, copies in product(variants, (0, 1), (0, 1)):
        bits = variant_bits + gradient_bits[gradients]
        if copies:
            bits += max(0.0, BITS.second + BITS.adjacency * job.states_beside_each_other)
        if not job.has_step and job.reserves_more is bool(has_states(variant) or gradients):
            bits += BITS.start
        if job.frozen_layers:
            bits += BITS.none_frozen
        plain = Hypothesis(variant, gradients, copies)
        yield plain, bits
        if bits < BITS.impossible:
            for hypothesis, more_bits in _extended(plain, job):
                yield hypothesis, bits + more_bits


def _extended(plain: Hypothesis, job: Job) -> Iterator[tuple[Hypothesis, float]]:
    """Yield hypotheses that say more, each with its further bits."""
    variant = plain.variant
    if _is_in_full_precision(variant):
        yield replace(plain, has_masters=True), 0.0
    elif not (variant.kinds[0] or job.sizes):
        yield replace(plain, has_masters=True), BITS.second
    if not job.sizes:
        return
    if has_states(variant) and plain.is_simple:
        turns = job.optimizers.may_be_several or job.parameters.source is Source.BEFORE
        yield replace(plain, trains_all=True), 0.0 if turns else BITS.trains_all
    if not (plain.copies or variant.squares):
        yield replace(plain, is_frozen=True), _bits_of_frozen(job)


def _bits_of_frozen(job: Job) -> float:
    """Return the bits of parameters of the same sizes that are not trained."""
    if job.frozen_layers:
        return -BITS.none_frozen
    if job.optimizers.variants or not job.has_other_blocks or may_have_squares(job):
        return BITS.frozen
    return BITS.frozen_beside_others


def _is_in_full_precision(variant: Variant) -> bool:
    """Return whether all states are twice as large as their weights."""
    states = [states for kind in variant.kinds for states in kind]
    return bool(states) and all(eighths == 2 * SAME for eighths, _ in states)


def _variants(job: Job) -> Iterator[tuple[Variant, float]]:
    """Yield the states that there may be of every parameter, each with its bits."""
    optimizers = job.optimizers
    if not (optimizers.variants and optimizers.are_known):
        yield from _guessed_variants(job)
        return
    choices = islice(product(*optimizers.variants), _MOST_VARIANTS)
    known_variants = dict.fromkeys(map(_combined, choices))
    yield from _known_variants(known_variants)
    # What keeps none by default may by options that were not measured, as momentum.
    least_bits = BITS.impossible if any(map(has_states, known_variants)) else 0.0
    is_to_come = not (job.has_step or optimizers.states_are_built)
    for number, bits in enumerate(_bits_of_states(job)):
        if same_states(number) not in known_variants:
            may_be_none = is_to_come and not number
            yield same_states(number), 0.0 if may_be_none else max(least_bits, bits)


def _guessed_variants(job: Job) -> Iterator[tuple[Variant, float]]:
    """Yield what an unknown optimizer may keep."""
    for number, bits in enumerate(_bits_of_states(job)):
        yield same_states(number), bits
        # The optimizer's own weights, and its states.
        n_states = number + bool(job.sizes)
        if n_states and _has_full_precision(job):
            yield same_states(n_states, 2 * SAME), bits + BITS.second
    if job.sizes:
        has_squares = may_have_squares(job)
        for variant in _RARE_VARIANTS:
            if has_squares or not variant.squares:
                yield variant, BITS.rare_variant


def _bits_of_states(job: Job) -> tuple[float, ...]:
    """Return the bits of so many states of every parameter of an unknown optimizer."""
    if job.sizes:
        return BITS.states
    no_state = BITS.no_state_yet if job.saves else BITS.states[0]
    return (no_state, *BITS.states[1:5])


def _known_variants(variants: Iterable[Variant]) -> Iterator[tuple[Variant, float]]:
    """Yield the variants of optimizers that are known, the default first."""
    numbers = {variant: most_same(variant) for variant in variants}
    default = next(iter(numbers.values()), 0)
    for variant, number in numbers.items():
        if not default:
            # Without what options give, nothing would be kept.
            yield variant, BITS.rare_option * (len(numbers) > 1 and not number)
        elif variant.is_optional and number == default + 1 == _OF_AMSGRAD:
            yield variant, BITS.amsgrad
        else:
            n_more = max(1, number - default)
            yield variant, BITS.rare_option * n_more * variant.is_optional


def _has_full_precision(job: Job) -> bool:
    """Return whether half of the parameters may have blocks in full precision: twice as large."""
    masters = Counter({2 * size: n for size, n in job.sizes.items()})
    return 2 * bytes_of(masters & job.counts) >= bytes_of(job.sizes)


def _combined(variants: Iterable[Variant]) -> Variant:
    """Combine the variants of several optimizers: each has some of the parameters."""
    variants = list(variants)
    kinds = dict.fromkeys(kind for variant in variants for kind in variant.kinds)
    return Variant(
        tuple(kinds),
        any(variant.squares for variant in variants),
        any(variant.is_flat for variant in variants),
        any(variant.has_others for variant in variants),
        any(variant.is_optional for variant in variants),
    )


def _bits_of_gradients(job: Job) -> tuple[float, float]:
    """Return the bits of no gradients from before the trace, and of gradients."""
    source = job.parameters.source
    if source in (Source.WHOLE, Source.SEVERAL):
        return 0.0, BITS.impossible
    if source is Source.ADDED or (job.fact_counts[Category.GRADIENT] and job.sizes):
        return BITS.impossible, 0.0
    return 0.0, 0.0


# --- the bits of what a hypothesis misses


def blocks_without_gradient(hypothesis: Hypothesis, job: Job) -> int:
    """Return how many blocks there are for each parameter that had no gradient."""
    n_blocks = 1 + hypothesis.copies + hypothesis.n_states
    if job.parameters.source in (Source.ADDED, Source.BEFORE) or not job.sizes:
        n_blocks += hypothesis.gradients
    return n_blocks


@lru_cache(_MOST_CACHED)
def bits_of_count(n: int, n_layers: int) -> float:
    """Return the bits of a model that has so many weights of one size: layers have the same."""
    bits = 1 + log2(n)
    if 1 < n_layers <= n:
        per_layer, remainder = divmod(n, n_layers)
        bits = min(bits, BITS.per_layer * log2(per_layer) + remainder)
    return bits


@dataclass(frozen=True, slots=True)
class Misses:
    """The bits of all counts that a hypothesis misses, and the bytes that it explains."""

    bits: float
    explained_bytes: int


def missed(
    hypothesis: Hypothesis,
    prediction: Prediction,
    job: Job,
    n_layers: int,
    sizes: list[int],
) -> Misses:
    """Return what a hypothesis misses."""
    bits = BITS.other_kind * prediction.n_other_kinds
    explained_bytes = 0
    total_bytes = max(1, bytes_of(job.counts))
    for size in sizes:
        n = job.counts[size]
        n_explained = 0
        counts = prediction.counts.get(size)
        if counts is not None:
            size_bits, n_explained = _bits_of_size(hypothesis, counts, job, size, n_layers)
        elif not n:
            continue
        elif job.sizes:
            size_bits = _bits_of_other_size(hypothesis, job, n, n_layers)
        else:
            size_bits, n_explained = _bits_without_parameters(
                n, hypothesis.per_parameter, n_layers
            )
        share = size * max(n, sum(counts or ())) / total_bytes
        bits += share**_SHARE_POWER * size_bits
        explained_bytes += size * n_explained
    return Misses(bits, explained_bytes)


def _bits_without_parameters(n: int, times: int, n_layers: int) -> tuple[float, int]:
    """Return the bits of one size whose parameters are not known.

    Beside them, how many blocks are explained.
    """
    n_parameters, remainder = divmod(n, times)
    if remainder:
        return BITS.no_multiple + bits_of_count(n, 0), 0
    return bits_of_count(n_parameters, n_layers), n


def _bits_of_size(
    hypothesis: Hypothesis, counts: Counts, job: Job, size: int, n_layers: int
) -> tuple[float, int]:
    """Return the bits of a predicted size, and how many blocks of it are explained."""
    n = job.counts[size]
    expected = sum(counts)
    if n == expected:
        return 0.0, n
    if n > expected:  # one block more, an ids tensor, spoils nothing
        if hypothesis.is_frozen and not job.frozen_layers:
            return bits_of_count(n - expected, n_layers), n
        options = [(BITS.too_many + 0.5 * log2(1 + n - expected), expected)]
    else:
        options = [(BITS.too_few + log2(1 + expected - n), 0)]
    number = other_number(hypothesis, job, size)
    if number:
        options.append((_bits_of_other_number(job, number - job.sizes[size]), n))
    return min(options)


def other_number(hypothesis: Hypothesis, job: Job, size: int) -> int:
    """Return another number of parameters of a size that leaves no remainder; 0 for none."""
    n_known = job.sizes[size]
    if not (n_known and hypothesis.is_simple):
        return 0
    times = hypothesis.per_parameter
    number, remainder = divmod(job.counts[size] + job.fact_total[size], times)
    is_other = number > n_known or (times > 1 and number < n_known)
    return number if is_other and not remainder else 0


def _bits_of_other_number(job: Job, n_more: int) -> float:
    # With all gradients of an iteration and one optimizer, no parameter is missing.
    is_complete = job.parameters.source in _HAS_ALL and not job.optimizers.may_be_several
    return BITS.other_number if n_more < 0 or is_complete else BITS.more_parameters


def _bits_of_other_size(hypothesis: Hypothesis, job: Job, n: int, n_layers: int) -> float:
    """Return the bits of a size that no parameter has."""
    if not hypothesis.trains_all:
        return bits_of_count(n, n_layers)
    n_parameters, remainder = divmod(n, blocks_without_gradient(hypothesis, job))
    if remainder:
        return BITS.no_multiple + bits_of_count(n, n_layers)
    return bits_of_count(n_parameters, n_layers)


# --- the posterior of every row


@dataclass(frozen=True, slots=True)
class Weighed:
    """A hypothesis with its posterior weight, and the share of the open bytes that it explains.

    ``is_contradicted``: the optimizers are known, and they or the gradients speak against it.
    """

    weight: float
    hypothesis: Hypothesis
    prediction: Prediction
    explained: float
    is_contradicted: bool


def weigh(job: Job) -> list[Weighed]:
    """Weigh all hypotheses about a job, the most probable first."""
    sizes = _sizes_to_weigh(job)
    total_bytes = max(1, bytes_of(job.counts))
    n_layers = _n_layers(job)
    options: list[tuple[float, tuple[Hypothesis, Prediction, float, bool]]] = []
    least_bits = inf
    for hypothesis, rarity in sorted(hypotheses(job), key=itemgetter(1)):
        if rarity > least_bits + _MOST_BITS and len(options) > 1:
            break
        prediction = predict(hypothesis, job)
        if prediction.is_new(hypothesis, job):
            misses = missed(hypothesis, prediction, job, n_layers, sizes)
            bits = rarity + misses.bits
            least_bits = min(least_bits, bits)
            explained = misses.explained_bytes / total_bytes
            is_contradicted = bool(job.optimizers.variants) and rarity >= BITS.impossible
            options.append((bits, (hypothesis, prediction, explained, is_contradicted)))
    options.sort(key=itemgetter(0))
    weights = np.array([2.0 ** (least_bits - bits) for bits, _ in options])
    weights /= weights.sum()
    pairs = zip(weights.tolist(), options, strict=True)
    return [Weighed(weight, *explanation) for weight, (_, explanation) in pairs]


def _sizes_to_weigh(job: Job) -> list[int]:
    """Return the sizes of open blocks and of parameters, those with the most bytes first."""
    counts = job.counts

    def order(size: int) -> tuple[int, int]:
        return -size * counts[size], size

    sizes = counts.keys() | job.sizes.keys()
    large = sorted((size for size in sizes if size >= SMALL_BYTES), key=order)
    return large[:_MOST_SIZES] or sorted(counts)[:_MOST_SIZES]


def _n_layers(job: Job) -> int:
    """Return how many layers ran; of models without known parameters, those that counts show."""
    if job.n_layers > 1:
        return job.n_layers
    return 0 if job.sizes else layers_by_counts(job.counts)


# Categories and how many blocks of each, in order of addresses, with the probability of that order.
Layout = tuple[float, tuple[tuple[Category, int], ...]]


def layouts(weighed: Weighed, job: Job, size: int, n: int) -> list[Layout]:
    """Lay out the blocks of one size in order of addresses.

    Weights lie below states of their size in 99 % of pairs, gradients in 46 to 51 %, which shows
    nothing. The probabilities sum to the share of the blocks that the hypothesis predicts.
    """
    hypothesis = weighed.hypothesis
    if not hypothesis.is_trained:
        return [(1.0, ((Category.WEIGHT, n),))]
    counts = weighed.prediction.counts.get(size)
    if counts is not None:
        return _predicted_layouts(hypothesis, job, counts, size, n)
    n_parameters, remainder = divmod(n, blocks_without_gradient(hypothesis, job))
    weights = n_parameters * (1 + hypothesis.copies) + remainder
    states = n_parameters * hypothesis.n_states
    return _ordered((weights, states, n - weights - states), job)


def _predicted_layouts(
    hypothesis: Hypothesis, job: Job, counts: Counts, size: int, n: int
) -> list[Layout]:
    surplus = n - sum(counts)
    limited = _ordered(_limited(counts, n), job)
    number = 0 if hypothesis.is_frozen else other_number(hypothesis, job, size)
    if surplus and number:
        weights, states, gradients = (number * kind for kind in hypothesis.block_counts)
        layout = _ordered(job.open_counts(size, (weights, states, gradients)), job)
        if surplus < 0 or job.parameters.source not in _HAS_ALL:
            return layout
        # Parameters without a gradient this time, or no parameters.
        return [(share / 2, order) for share, order in layout + limited]
    # States of an optimizer that is known are as many as these: what is more is weights.
    has_all_states = job.has_known_states and not has_other_sizes(hypothesis.variant)
    is_weights = hypothesis.is_frozen or surplus < job.sizes[size] or has_all_states
    is_said = surplus > 0 and is_weights
    share = 1.0 if is_said else _predicted_share(sum(counts), n)
    return [(share * part, order) for part, order in limited]


def _predicted_share(n_expected: int, n: int) -> float:
    """Return the share of blocks that is predicted: of what is not, nothing is said."""
    return min(n_expected, n) / max(n_expected, n, 1)


def _limited(counts: Counts, n: int) -> Counts:
    """Fit the counts to ``n`` blocks: a surplus is weights; of too few, gradients lack first."""
    states = min(counts[1], n)
    weights = min(counts[0] + max(0, n - sum(counts)), n - states)
    return weights, states, n - states - weights


def _ordered(counts: Counts, job: Job) -> list[Layout]:
    weights, states, gradients = zip(KINDS, counts, strict=True)
    n_above = counts[1] + counts[2]
    if not (counts[1] and counts[2]) or job.optimizers.states_are_built:
        return [(1.0, (weights, states, gradients))]
    return [(n / n_above, (weights, (kind, n_above))) for kind, n in (states, gradients)]


Probabilities = NDArray[np.float64]


def probabilities(
    decided: Decided, rows: Int64Column, job: Job, weighed: list[Weighed]
) -> Probabilities:
    """Return the probability of every category for the rows, summed over hypotheses."""
    features = decided.features
    table = np.zeros((len(rows), len(Category)))
    other_sizes = OtherSizes(decided, job)
    sizes = features.sizes[rows]
    address_order = np.argsort(features.allocations.addr[rows], kind="stable")
    if not job.is_in_order:
        # States of one parameter lie beside each other, weights do not.
        beside = is_beside_equal(features, rows[address_order])
        address_order = address_order[np.argsort(beside, kind="stable")]

    def negative_bytes(members: Int64Column) -> int:
        return -int(sizes[members[0]]) * len(members)

    size_groups = sorted(grouped(address_order, sizes), key=negative_bytes)
    for members in size_groups[:_MOST_SIZES]:
        size = int(sizes[members[0]])
        for candidate in weighed:
            if candidate.weight > _LEAST_WEIGHT:
                _mark_size(table, members, candidate, job, other_sizes, size)
    return table


def _mark_size(
    table: Probabilities,
    members: Int64Column,
    weighed: Weighed,
    job: Job,
    other_sizes: OtherSizes,
    size: int,
) -> None:
    """Add what a hypothesis says of the rows of one size; ``other_sizes`` judges other sizes."""
    hypothesis = weighed.hypothesis
    n = len(members)
    model = layouts(weighed, job, size, n)
    trains_it = hypothesis.trains_all and n % blocks_without_gradient(hypothesis, job) == 0
    if trains_it or size in weighed.prediction.counts:
        _mark(table, members, weighed.weight, model)
        return
    judged = dict(other_sizes.judge(size))
    if not job.sizes and hypothesis.is_trained and n >= hypothesis.per_parameter:
        # It is part of the model, as the hypothesis divides it; or it is not.
        _mark(table, members, weighed.weight * judged.pop(Category.WEIGHT), model)
    for category, probability in judged.items():
        table[members, category] += weighed.weight * probability


def _mark(
    table: Probabilities, members: Int64Column, weight: float, size_layouts: list[Layout]
) -> None:
    for share, layout in size_layouts:
        begin = 0
        for category, n in layout:
            table[members[begin : begin + n], category] += weight * share
            begin += n


# --- the stage


# How often what hypotheses state is right, where parameters are known and where not: fitted on
# every second of 207 recordings in order of names without the twelve in the tree, begun late or
# ended early; a line between the points. The others test it (docs/reference/accuracy.md).
_STATED = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 1.0)
_RIGHT = {
    True: (0.30, 0.50, 0.55, 0.73, 0.89, 0.91, 0.94, 0.98, 0.99),
    False: (0.50, 0.60, 0.62, 0.76, 0.82, 0.94, 0.967, 0.987, 0.99),
}
# Gradients from before the trace may be those of one optimizer of several, which step in turn: what
# does not explain so much is likely at most. Of what was certain then, a third was wrong (30 %: 0.4
# points).
_MOSTLY = 0.6


def explain_by_job(decided: Decided) -> Iterator[Proposal]:
    """Explain what is open, from before the trace, live and without frames.

    Where two purposes are as probable, say that it is one of the two.
    """
    rows = rows_of(decided.is_open & decided.features.unrecorded)
    if not len(rows):
        return
    job = find_job(decided, rows)
    if not (job.sizes or job.is_training or job.infers or job.saves):
        return  # without an event, a dump at a peak looks like one at rest
    weighed = weigh(job)
    decided.explanation = sentence(weighed, bytes_of(job.counts), job.optimizers.names)
    table = probabilities(decided, rows, job, weighed)
    stated = np.interp(table.max(1), _STATED, _RIGHT[bool(job.sizes)])
    is_part = job.parameters.source is Source.BEFORE and weighed[0].explained < _MOSTLY
    if is_part or weighed[0].is_contradicted:
        stated = np.minimum(stated, CERTAIN - 0.01)
    if not job.is_in_order:
        is_shown = _is_shown_by_neighbours(decided, rows, table)
        stated = np.where(is_shown, stated, np.minimum(stated, CERTAIN - 0.01))
    yield from _likely_proposals(decided, rows, table, stated)


def _is_shown_by_neighbours(
    decided: Decided, rows: Int64Column, table: Probabilities
) -> BoolColumn:
    """Return where blocks right beside each other show what the order of addresses does not.

    States are shown by an equal block beside them; weights, where all states of their size are.
    """
    order = np.argsort(decided.features.allocations.addr[rows])
    is_beside = np.empty(len(rows), np.bool_)
    is_beside[order] = is_beside_equal(decided.features, rows[order])
    is_state = table.argmax(1) == Category.OPTIMIZER_STATE
    sizes = decided.features.sizes[rows]
    is_open = is_among(sizes, distinct(sizes[is_beside != is_state]))
    return np.asarray((is_beside & is_state) | ~is_open)


def _likely_proposals(
    decided: Decided, rows: Int64Column, table: Probabilities, stated: Probabilities
) -> Iterator[Proposal]:
    """Propose the best category of each row, where it is likely, as often right as stated."""
    features = decided.features
    column: FloatColumn = np.zeros(len(decided.category), np.float32)
    column[rows] = stated
    best = table.argmax(1)
    is_likely = stated >= LIKELY
    for code in distinct(best[is_likely]).tolist():
        marked = features.mask(rows[(best == code) & is_likely])
        yield Proposal(marked, Category(code), Evidence.SIZES, SLUG, column)
    gradient_or_state = table[:, Category.GRADIENT] + table[:, Category.OPTIMIZER_STATE]
    marked = features.mask(rows[(gradient_or_state >= LIKELY) & ~is_likely])
    yield Proposal(marked, Category.UNKNOWN, Evidence.NONE, GRADIENT_OR_STATE)


# From here on, a hypothesis's probability is not worth a word.
_SURE = 0.995


def sentence(weighed: list[Weighed], n_bytes: int, optimizers: tuple[str, ...]) -> str:
    """Say what explains the job.

    "AdamW: weights + 2 states account for 98.7 % of 4.1 GiB allocated before the recording".
    """
    best = weighed[0]
    text = f"{', '.join(optimizers)}: " if optimizers else ""
    text += f"{best.hypothesis} account for {100 * best.explained:.1f} %"
    text += f" of {format_bytes(n_bytes)} allocated before the recording"
    if best.weight < _SURE:
        text += f" (right with a probability of {100 * best.weight:.0f} %)"
    for second in weighed:
        if second.hypothesis != best.hypothesis:
            return f"{text}; next best: {second.hypothesis}, {100 * second.explained:.1f} %"
    return text
