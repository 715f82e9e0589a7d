"""Everything that a detector looks at, and the form of its result."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from snapconv.answers.advice.look_alikes import LOOK_ALIKES
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    has_code,
    is_among,
    rows_of,
)
from snapconv.hypotheses.changes import Change, Demand, Peak
from snapconv.hypotheses.line_calls import LineCalls
from snapconv.hypotheses.references import ends_without_graph
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.frame_patterns import Role

# A change of the program is worth it from this part of the peak on; a price, from the second on.
LEAST_SHARE, LEAST_SHARE_OF_TRADE = 0.01, 0.05
FAULT, FREE, TRADE = "fault", "free", "trade"
_OF_LIBRARY = re.compile(r"/(transformers|diffusers|timm)/(?:models|layers|integrations)/")
_INSTALLED = re.compile(rf"{_OF_LIBRARY.pattern}|/(?:site|dist)-packages/")


@dataclass(frozen=True, slots=True)
class Detected:
    """Memory that need not be there.

    ``change`` is what would be missing, ``line`` made it, ``where`` is the line to change.
    ``values`` fill the sentences of the kind. ``alone`` is the change with what is a finding of its
    own too. ``could_be``: the look-alikes (``look_alikes.py``) that the file does not exclude; None
    for all that have no sign there. A finding is certain if none is left.
    """

    change: Change
    line: SourceLine | None
    where: SourceLine | None
    values: dict[str, object]
    could_be: tuple[str, ...] | None = None
    alone: Change | None = None


@dataclass(eq=False)
class Evidence:
    """One device at one moment, where a detector looks for memory that need not be there.

    ``live`` marks the allocations in use at the moment. ``goal_bytes``: the peak to reach, None for
    none. ``forward_ms``: the times of modules by path, each without those inside it; empty where
    none are recorded.
    """

    demand: Demand
    calls: LineCalls
    moment: Peak
    goal_bytes: int | None = None
    forward_ms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look up what every detector needs."""
        self.analysis = self.demand.analysis
        self.table = self.analysis.allocations
        self.features = self.analysis.features
        self.category = self.analysis.classification.category
        self.stack_id = self.table.stack_id
        self.sizes = self.features.sizes
        self.alloc = self.features.alloc
        self.end = self.features.end
        self.live = self.table.live_at(self.moment.event)
        self.bytes_of = self.table.bytes_of

    def at(self, moment: Peak) -> "Evidence":
        """Return the evidence at another moment; the rest is not computed again."""
        evidence = copy.copy(self)
        evidence.moment = moment
        evidence.live = self.table.live_at(moment.event)
        return evidence

    @cached_property
    def saved(self) -> Int64Column:
        """What autograd saves in forward for backward.

        What backward computes again is saved there, outside of the forward's hooks.
        """
        features = self.features
        is_saved = self.has(Trait.SAVED) & features.is_freed_by_engine & features.is_traced
        return rows_of(is_saved & ~features.made_through(Role.RECOMPUTE))

    @cached_property
    def saved_ends(self) -> Int64Column:
        """The event from which each saved allocation would be free if no graph kept it."""
        return ends_without_graph(self.calls, self.analysis, self.saved)

    @cached_property
    def is_computed(self) -> BoolColumn:
        """What forward and backward make, but for weights, gradients and states."""
        is_of_step = has_code(self.features.alloc_phase, Phase.OPTIMIZER)
        return self.has(Trait.COMPUTED) & self.features.is_traced & ~is_of_step

    @cached_property
    def is_of_forward(self) -> BoolColumn:
        """What forward makes, but for caches of keys and values, and copies of weights.

        autocast makes such copies.
        """
        is_other = self.features.is_cache | self.is_a(Category.WEIGHT)
        return self.features.in_forward & ~is_other

    def is_a(self, category: Category) -> BoolColumn:
        """Mark the allocations of a category."""
        return has_code(self.category, category)

    def has(self, trait: Trait) -> BoolColumn:
        """Mark the allocations of the categories with a trait."""
        return is_among(self.category, categories_with(trait))

    def is_worth(self, n_bytes: int, share: float = LEAST_SHARE) -> bool:
        """Return whether bytes are a large enough part of the memory at the moment."""
        return n_bytes >= self.least_bytes(share)

    def least_bytes(self, share: float = LEAST_SHARE) -> int:
        """Return the least bytes worth a finding: a share of the memory at the moment."""
        return max(int(self.moment.n_bytes * share), 1)

    def live_of(self, rows: Int64Column) -> Int64Column:
        """Return those of some allocations that are in use at the moment."""
        return rows[self.live[rows]]

    def is_large(self, rows: Int64Column, share: float = LEAST_SHARE) -> bool:
        """Return whether allocations are worth a finding."""
        return self.is_worth(self.bytes_of(rows), share)

    def finding(
        self,
        change: Change,
        rows: Int64Column,
        where: SourceLine | None,
        *,
        could_be: tuple[str, ...] | None = None,
        **values: object,
    ) -> Detected:
        """Return the finding about allocations, which names the line that made most of their bytes.

        ``values`` fill its sentences; ``number`` is that of the allocations, unless it is given.
        """
        values = {"number": len(rows), **values}
        return Detected(change, self.analysis.main_line(rows), where, values, could_be)

    def finding_there(
        self, change: Change, rows: Int64Column, **values: object
    ) -> Detected:
        """Return the finding about allocations whose own line is the one to change."""
        line = self.analysis.main_line(rows)
        return self.finding(change, rows, line, could_be=None, **values)

    def library_of(self, rows: Int64Column) -> str:
        """Return the library of models that made most bytes of some allocations; empty for none."""
        for _, file in self._frames_of(rows):
            library = _OF_LIBRARY.search(file)
            if library:
                return library[1]
        return ""

    def caller_of(self, rows: Int64Column) -> str:
        """Say which line of the program called the library that made most of some allocations.

        The text is empty where the program made them itself.
        """
        innermost = ""
        for line, file in self._frames_of(rows):
            if line:
                innermost = innermost or line.place
                if not _INSTALLED.search(file):
                    return "" if line.place == innermost else f", called from {line.place}"
        return ""

    def _frames_of(self, rows: Int64Column) -> Iterator[tuple[SourceLine | None, str]]:
        """Yield the project's line and the file of each frame of the main stack, from inside."""
        for frame in reversed(self.calls.path(self.analysis.main_stack(rows))):
            yield self.calls.lines.of_frame(frame), self.calls.file(frame)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: its sentences, and the detector that finds it.

    A fault keeps memory for nothing, a trade has a price; what is free has none that most programs
    notice. ``wrong_if``: when it is none, where that is no look-alike. ``noun``: what {counted}
    counts. ``estimated`` says why its bytes are an estimate; empty where the replay is exact.
    ``has_any_size``: memory that grows without an end need not be large yet. ``is_of_reserved``: it
    is about memory that is reserved and not allocated.
    """

    slug: str
    what: str
    how: tuple[str, ...]
    detect: Callable[[Evidence], Iterator[Detected]]
    noun: str = ""
    plural: str = ""
    wrong_if: str = ""
    costs: str = "nothing"
    estimated: str = ""
    has_any_size: bool = False
    is_free: bool = False
    is_of_reserved: bool = False

    def look_alikes(self, could_be: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return what else a finding of this kind could be: see ``Detected``."""
        look_alikes = LOOK_ALIKES.get(self.slug, ())
        if could_be is None:
            return tuple(other.what for other in look_alikes if not other.sign)
        return tuple(other.what for other in look_alikes if other.slug in could_be)

    @property
    def sort(self) -> str:
        """Whether it is a fault, free or a trade."""
        if self.is_free:
            return FREE
        return FAULT if self.costs == "nothing" else TRADE
