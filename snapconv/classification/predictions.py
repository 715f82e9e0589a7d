"""The blocks that a hypothesis about the job predicts: of every size so many of each kind.

Sizes of weights are known, their shapes are not. States that are as large as a side times itself
show the sides; what parameters of one size have is one kind of the optimizer's, or two of them.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import isqrt

from snapconv.classification.categories import Category
from snapconv.classification.job import Counts, Job
from snapconv.classification.parameters import Sizes, bytes_of
from snapconv.torch_knowledge.optimizers import (
    NO_STATES,
    SAME,
    Kind,
    Variant,
    is_as_large,
    n_same,
)

# Bytes of an element of weights and of the states that are squares of their sides.
_ELEMENT_BYTES = ((4, 4), (2, 2), (2, 4))
# A preconditioner of fewer rows is small; hostile files have more of them.
_LEAST_SIDE, _MOST_SIDES = 8, 60
# One size of squares that is no parameter's may be any.
_LEAST_SQUARES = 2
# Every side has so many: of a preconditioner, its inverse, its eigenvectors.
_TIMES = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What there is for every parameter, besides its weight."""

    variant: Variant = NO_STATES
    gradients: int = 0
    copies: int = 0
    # The weights themselves are beside explained in full precision: twice as large.
    has_masters: bool = False
    # Blocks beyond these are weights that are not trained.
    is_frozen: bool = False
    # What had no gradient is trained as well: sparse, or in another optimizer's turn.
    trains_all: bool = False
    is_trained: bool = True

    @property
    def states(self) -> int:
        """The states of a parameter that are as large as it: of a matrix."""
        return n_same(self.variant.kinds[0])

    @property
    def n_states(self) -> int:
        """The states of a parameter, of any size: of a matrix."""
        return sum(states.number for states in self.variant.kinds[0])

    @property
    def block_counts(self) -> Counts:
        """The number of blocks of its size for each parameter."""
        return 1 + self.copies, self.states, self.gradients

    @property
    def per_parameter(self) -> int:
        """Blocks of a parameter's size for each parameter."""
        return sum(self.block_counts)

    @property
    def is_simple(self) -> bool:
        """Whether all blocks of a parameter are as large as it, and so many for each."""
        variant = self.variant
        kinds = variant.kinds
        is_scaled = self.has_masters or variant.squares or variant.is_flat
        return (
            not is_scaled
            and len(kinds) == 1
            and n_same(kinds[0]) == sum(n for _, n in kinds[0])
        )

    def __str__(self) -> str:
        parts = ["weights", *_state_words(self.variant)]
        if self.gradients:
            parts.append("gradients")
        if self.copies:
            parts.append("a copy of the model")
        if self.has_masters:
            parts.append("weights in full precision beside half")
        if self.is_frozen:
            parts.append("weights that are not trained")
        if self.trains_all:
            parts.append("also for sizes without a gradient")
        return " + ".join(parts) + ("" if self.is_trained else " (nothing is trained)")


def _state_words(variant: Variant) -> list[str]:
    """Return the states of each kind of weight in words."""
    words = []
    kinds = [" and ".join(_kind_words(kind)) or "no state" for kind in variant.kinds]
    if any(variant.kinds):
        words.append(" or ".join(kinds))
    if variant.squares:
        words.append("preconditioners")
    if variant.is_flat:
        words.append("states of all weights together")
    return words


def _kind_words(kind: Kind) -> list[str]:
    words = []
    for eighths, n in kind:
        times = "" if eighths == SAME else f" of {eighths / SAME:g} times the size"
        words.append(f"{n} state{'s' * (n > 1)}{times}")
    return words


@dataclass(slots=True)
class Prediction:
    """Weights, states and gradients by size, of what no fact has named."""

    counts: dict[int, Counts]
    # Sizes whose parameters are of different kinds, which costs.
    n_other_kinds: int = 0
    # All states are as many for every parameter, and as large as it.
    is_of_one_kind: bool = True
    # Sizes of squares that no parameter has.
    n_squares: int = 0

    def is_new(self, hypothesis: Hypothesis, job: Job) -> bool:
        """Return whether a simpler hypothesis does not predict the same."""
        variant = hypothesis.variant
        is_guessed = not job.optimizers.variants
        if is_guessed and variant.squares and self.n_squares < _LEAST_SQUARES:
            return False
        has_surplus = any(job.counts[size] > sum(n) for size, n in self.counts.items())
        if hypothesis.is_frozen and not (has_surplus or job.frozen_layers):
            return False
        return not is_guessed or len(variant.kinds) == 1 or not self.is_of_one_kind


def predict(hypothesis: Hypothesis, job: Job) -> Prediction:
    """Predict how many open blocks of every size there are."""
    weights = Counter({size: n * (1 + hypothesis.copies) for size, n in job.sizes.items()})
    if hypothesis.has_masters:
        weights.update({2 * size: n for size, n in job.sizes.items()})
    if hypothesis.is_frozen:
        weights.update(job.frozen_weights)
    gradients: Sizes = Counter()
    if hypothesis.gradients:
        gradients = job.sizes_of_gradients
    # Gradients that facts have named are there, whatever the hypothesis says.
    explained = weights + (gradients | job.fact_counts[Category.GRADIENT])
    states = _States(hypothesis.variant, job, explained)
    sizes = weights.keys() | states.predicted.keys()
    counts = {}
    for size in sizes:
        kinds = (weights[size], states.predicted[size], gradients[size])
        counts[size] = job.open_counts(size, kinds)
    is_of_one_kind = len(states.kinds) == 1 and all(map(is_as_large, states.kinds))
    return Prediction(counts, states.n_other_kinds, is_of_one_kind, states.n_squares)


@dataclass(slots=True)
class _States:
    """Predicts the states of all parameters, from what ``explained`` leave of the blocks."""

    variant: Variant
    job: Job
    explained: Sizes
    predicted: Sizes = field(default_factory=Counter)
    n_other_kinds: int = 0
    n_squares: int = 0
    kinds: set[Kind] = field(default_factory=set)

    def __post_init__(self) -> None:
        sizes = self.job.sizes
        if len(self.variant.kinds) == 1:
            self._add(self.variant.kinds[0], sizes)
        else:
            for size in sorted(sizes, reverse=True):
                self._add_fitting(size, sizes[size])
        if self.variant.squares:
            squares = self._squares()
            self.n_squares = len(squares.keys() - sizes)
            self.predicted.update(squares)
        if self.variant.is_flat:
            size = bytes_of(sizes)
            self.predicted[size] += max(1, self.n_unexplained(size))

    def n_unexplained(self, size: int) -> int:
        """Count the blocks of a size that nothing explains yet."""
        n_blocks = self.job.counts[size] + self.job.fact_total[size]
        return n_blocks - self.explained[size] - self.predicted[size]

    def _add(self, kind: Kind, sizes: Sizes) -> None:
        self.kinds.add(kind)
        for eighths, number in kind:
            for size, n in sizes.items():
                self.predicted[size * eighths // SAME] += n * number

    def _add_fitting(self, size: int, n: int) -> None:
        """Add the states of the kind that fits, or of two kinds that fit together."""
        kinds = self.variant.kinds
        for number, kind in enumerate(kinds):
            if self._fits(kind, size, n):
                self._add(kind, Counter({size: n}))
                self.n_other_kinds += number > 0
                return
        low, *_, high = sorted(kinds, key=n_same)
        per_parameter = n_same(high) - n_same(low)
        n_more = self.n_unexplained(size) - n * n_same(low)
        if per_parameter and 0 < n_more < n * per_parameter and n_more % per_parameter == 0:
            n_high = n_more // per_parameter
            self._add(high, Counter({size: n_high}))
            self._add(low, Counter({size: n - n_high}))
            self.n_other_kinds += 2
            return
        self._add(kinds[0], Counter({size: n}))

    def _fits(self, kind: Kind, size: int, n: int) -> bool:
        n_left = self.n_unexplained(size)
        n_as_large = n * n_same(kind)
        if n_left < n_as_large or (n_left > n_as_large and not self.variant.squares):
            return False
        return all(
            self.n_unexplained(size * eighths // SAME) >= n * number
            for eighths, number in kind
        )

    def _squares(self) -> Sizes:
        """Count the states that are as large as a side of a matrix times itself."""
        options = []
        for weight_bytes, state_bytes in _ELEMENT_BYTES:
            square_blocks = {}
            for side, size in square_sides(self.job, state_bytes).items():
                n_left = self.n_unexplained(size)
                if n_left > 0:
                    square_blocks[side] = size, n_left
            for times in _TIMES:
                options.append(
                    _squares_of(self.job.sizes, square_blocks, weight_bytes, times)
                )
        return max(options, key=bytes_of)


def square_sides(job: Job, element_bytes: int) -> dict[int, int]:
    """Return the sides that open blocks may be squares of, with their sizes."""
    sides = {}
    for size in job.counts:
        side = isqrt(size // element_bytes)
        if side >= _LEAST_SIDE and side * side * element_bytes == size:
            sides[side] = size
    return dict(sorted(sides.items())[-_MOST_SIDES:])


def may_have_squares(job: Job) -> bool:
    """Return whether enough sizes that no parameter has are squares."""
    sizes = [
        set(square_sides(job, state_bytes).values()) - job.sizes.keys()
        for _, state_bytes in _ELEMENT_BYTES
    ]
    return max(map(len, sizes)) >= _LEAST_SQUARES


def _squares_of(
    sizes: Sizes, square_blocks: dict[int, tuple[int, int]], weight_bytes: int, times: int
) -> Sizes:
    """Count the squares that matrices have for each of their sides, so many for each.

    A matrix of whose elements several pairs of sides may be has those that leave the most.
    """
    if not square_blocks:
        return Counter()
    budget = {side: n // times for side, (_, n) in square_blocks.items() if n % times == 0}
    options = {size: _pairs(size // weight_bytes, list(budget)) for size in sizes}
    n_sides: Sizes = Counter()
    for size in sorted(options, key=lambda size: (len(options[size]), -size)):
        best = max(
            options[size],
            key=lambda pair: _least_left(budget, pair, sizes[size]),
            default=(),
        )
        if best and _least_left(budget, best, sizes[size]) >= 0:
            for side in best:
                budget[side] -= sizes[size]
                n_sides[side] += sizes[size]
    is_exact = [side for side in n_sides if not budget[side]]
    return Counter({square_blocks[side][0]: times * n_sides[side] for side in is_exact})


def _least_left(budget: dict[int, int], sides: tuple[int, ...], n: int) -> int:
    """Return how many squares of the side with the fewest are left by so many matrices."""
    return min(budget[side] - n * sides.count(side) for side in sides)


def _pairs(n_elements: int, sides: list[int]) -> list[tuple[int, ...]]:
    """Return the pairs of sides that a matrix may have; if none, single ones: the other is long."""
    dividing = [side for side in sides if n_elements % side == 0 and side < n_elements]
    pairs: list[tuple[int, ...]] = []
    for side in dividing:
        second_side = n_elements // side
        if side <= second_side and second_side in dividing:
            pairs.append((side, second_side))
    return pairs or [(side,) for side in dividing]
