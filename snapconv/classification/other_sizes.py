"""Blocks of sizes that no known parameter has: frozen weights, data, caches of keys and values, states.

The blocks of one size are judged together, by additive evidence: each row of ``EVIDENCE`` that holds adds its
bits to the categories, and the probabilities are proportional to 2 ** bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Decided
from snapconv.classification.parameters import SMALL_BYTES, counted, layers_by_counts
from snapconv.columns import BoolColumn, Int64Column

if TYPE_CHECKING:
    from snapconv.classification.inventory import Job

# Fewer blocks of a size say nothing of layers.
_LEAST_REPEATED = 3
# Sizes of vectors, from which those of matrices between layers follow; hostile files have more of them.
_LEAST_WIDTH, _MOST_WIDTH, _MOST_WIDTHS = 64, 32768, 60
# torch's pools: what is smaller lies apart from the rest.
_SMALL_POOL = 1 << 20
# Blocks of one size in one run of memory: an engine that makes its caches one after the other.
_LEAST_RUN, _MOST_OF_RUN = 4, 0.8
# A frozen model beside the trained one has at least this share of its bytes.
_FROZEN_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class SizeGroup:
    """All open blocks of one size, and what is seen of them and of the job.

    ``beside`` and ``after`` are shares of the blocks: next to blocks of the model, above them all.
    """

    size: int
    n: int
    n_layers: int
    beside: float
    after: float
    is_run: bool
    is_matrix: bool
    is_multiple_of_input: bool
    is_beyond: bool
    is_beside_frozen: bool
    knows_parameters: bool
    knows_nothing: bool
    infers: bool

    @property
    def is_of_layers(self) -> bool:
        """Whether there are as many for every layer."""
        return self.n_layers > 1 and self.n >= _LEAST_REPEATED and self.n % self.n_layers == 0


class OtherSizes:
    """Judges the sizes of the open rows of a job."""

    def __init__(self, decided: Decided, rows: Int64Column, job: "Job") -> None:
        features = decided.features
        self._judged: dict[int, dict[Category, float]] = {}
        self._job, self._addr, self._sizes = job, features.allocations.addr, features.sizes
        self._order = rows[np.argsort(self._addr[rows], kind="stable")]
        self._core = self._of_model()
        weights = counted(features.sizes[decided.has(Category.WEIGHT)]) + job.n
        repeated = [size for size, n in weights.items() if n >= _LEAST_REPEATED]
        self._widths = sorted(s for s in repeated if _LEAST_WIDTH <= s <= _MOST_WIDTH)[-_MOST_WIDTHS:]
        inputs = features.sizes[decided.has(Category.INPUT)]
        self._inputs = np.unique(inputs[inputs >= _LEAST_WIDTH])[-_MOST_WIDTHS:]
        self._n_layers = job.n_layers if job.n_layers > 1 else layers_by_counts(job.n)
        n_open = {s: n for s, n in job.n.items() if n >= _LEAST_REPEATED and not job.sizes[s]}
        n_bytes = sum(s * n for s, n in n_open.items())
        of_parameters = sum(s * n for s, n in job.sizes.items())
        n_large = sum(size >= SMALL_BYTES for size in n_open)
        self._has_frozen = n_large >= _LEAST_REPEATED and n_bytes > _FROZEN_SHARE * of_parameters

    def _of_model(self) -> dict[bool, tuple[Int64Column, BoolColumn, int]]:
        """For both pools: the open rows by address, which are the model's, and the last of these, or -1."""
        job = self._job
        core = {s for s in job.n if job.sizes[s]} or {s for s, n in job.n.items() if n >= _LEAST_REPEATED}
        found = {}
        for is_small in (True, False):
            pool = self._order[(self._sizes[self._order] <= _SMALL_POOL) == is_small]
            is_core = np.isin(self._sizes[pool], sorted(core))
            if job.sizes:  # the weights come first
                order = np.argsort(self._sizes[pool], kind="stable")
                sizes = self._sizes[pool][order]
                place = np.arange(len(pool)) - np.searchsorted(sizes, sizes)
                limit = np.array([job.sizes[s] for s in sizes.tolist()], np.int64)
                is_core[order] &= place < limit
            found[is_small] = pool, is_core, int(np.flatnonzero(is_core).max(initial=-1))
        return found

    def group(self, members: Int64Column) -> SizeGroup:
        """Describe the blocks of one size."""
        size, n, job = int(self._sizes[members[0]]), len(members), self._job
        pool, is_core, last = self._core[size <= _SMALL_POOL]
        at = np.searchsorted(self._addr[pool], self._addr[members])
        left, right = np.maximum(at - 1, 0), np.minimum(at + 1, len(pool) - 1)
        beside = (is_core[left] & (left != at)) | (is_core[right] & (right != at))
        runs = np.diff(np.concatenate(([-1], np.flatnonzero(np.diff(np.sort(at)) != 1), [n - 1])))
        largest = max(job.sizes, default=0)
        return SizeGroup(
            size=size,
            n=n,
            n_layers=self._n_layers,
            beside=float(np.mean(beside)),
            after=float(np.mean(at > last)) if last >= 0 else 0.0,
            is_run=n >= _LEAST_RUN and int(runs.max()) >= _MOST_OF_RUN * n,
            is_matrix=self._is_matrix(size),
            is_multiple_of_input=bool(np.any((size % self._inputs == 0) & (size >= 2 * self._inputs))),
            is_beyond=0 < 2 * largest < size,
            is_beside_frozen=self._has_frozen and bool(job.sizes),
            knows_parameters=bool(job.sizes),
            knows_nothing=not (job.sizes or job.is_training or (job.infers and not job.saves)),
            infers=job.infers and not job.saves,
        )

    def _is_matrix(self, size: int) -> bool:
        """Whether a size is that of a vector of the model, or of a matrix between two."""
        widths = self._widths
        if not widths or size <= max(widths):
            return size in widths
        of_widths = set(widths)
        return any(size % a == 0 and (b * size // a) in of_widths for a in widths for b in (4, 2))

    def judge(self, members: Int64Column) -> dict[Category, float]:
        """Return the probability of each category of the blocks of one size, found once for a job."""
        size = int(self._sizes[members[0]])
        if size not in self._judged:
            self._judged[size] = self._judge(self.group(members))
        return self._judged[size]

    def _judge(self, group: SizeGroup) -> dict[Category, float]:
        bits = np.zeros(len(CATEGORIES))
        for row in EVIDENCE:
            bits[:-1] += float(row.holds(group)) * np.array(row.bits)
        shares = np.exp2(bits - bits.max())
        return dict(zip(CATEGORIES, (shares / shares.sum()).tolist(), strict=True))


CATEGORIES = (
    Category.WEIGHT,
    Category.INPUT,
    Category.KV_CACHE,
    Category.OPTIMIZER_STATE,
    Category.ACTIVATION,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A row: a sentence, when it holds (or for how many of the blocks), and its bits.

    The bits are for a weight, an input, a cache and a state, each against whatever else it may be.
    """

    sentence: str
    holds: Callable[[SizeGroup], float | bool]
    bits: tuple[float, float, float, float]


# Fitted by logistic regression on 15,447 sizes of 207 programs of the benchmark, in all cuts: count these as
# seen. Of a quarter of the programs left out, 74 % of the bytes (by their square root) were right. Where the
# parameters are not known, a weight stands for all of the model: its gradients and states too.
EVIDENCE = (
    Evidence("any size", lambda group: True, (2.4, 1.2, -1.1, -0.7)),
    Evidence("three and more", lambda group: group.n >= _LEAST_REPEATED, (-0.5, -3.5, -1.2, -1.3)),
    Evidence("so many for every layer", lambda group: group.is_of_layers, (2.3, 0.4, 2.0, 1.5)),
    Evidence(
        "one or two for every layer, in inference",
        lambda group: group.infers and group.n_layers > 1 and group.n in (group.n_layers, 2 * group.n_layers),
        (-0.4, 0.4, 0.7, 0.1),
    ),
    Evidence("beside blocks of the model", lambda group: group.beside, (-0.9, -1.0, -1.7, -2.4)),
    Evidence("above all blocks of the model", lambda group: group.after, (-1.6, -0.1, -0.2, 0.9)),
    Evidence("in one run of memory", lambda group: group.is_run, (-0.8, 0.1, 1.5, 0.0)),
    Evidence(
        "in one run of memory, in inference",
        lambda group: group.is_run and group.infers,
        (-0.5, 0.3, 0.5, 0.0),
    ),
    Evidence("a matrix between widths of layers", lambda group: group.is_matrix, (0.4, -0.5, -1.5, -0.9)),
    Evidence("several times an input", lambda group: group.is_multiple_of_input, (2.4, 2.5, 1.7, 1.3)),
    Evidence("in inference", lambda group: group.infers, (2.3, 1.1, 1.3, 1.3)),
    Evidence("beside known parameters", lambda group: group.knows_parameters, (0.2, 1.0, 0.0, 2.1)),
    Evidence("nothing of the job is known", lambda group: group.knows_nothing, (-0.6, -1.0, -2.3, -3.3)),
    Evidence(
        "three and more beside known parameters",
        lambda group: group.knows_parameters and group.n >= _LEAST_REPEATED,
        (-0.2, 0.1, -0.1, 1.0),
    ),
    Evidence("twice as large as any parameter", lambda group: group.is_beyond, (0.2, 0.7, -0.2, -0.6)),
    Evidence("beside a model that is frozen", lambda group: group.is_beside_frozen, (2.3, -0.8, 0.1, 0.2)),
    Evidence("tiny", lambda group: group.size < SMALL_BYTES, (1.3, 0.9, 0.6, 0.8)),
)
