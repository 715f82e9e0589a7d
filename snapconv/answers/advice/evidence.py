"""Everything that a detector looks at, and the form of its result."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.changes import Change, Demand, Peak
from snapconv.answers.advice.look_alikes import LOOK_ALIKES
from snapconv.classification.categories import Category, Trait, categories_with
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    has_code,
    is_among,
    last_before,
    rows_of,
)
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.paths import normal
from snapconv.stacks.project_lines import SourceLine
from snapconv.stacks.stack_roles import stacks_by_frame

# A change of the program is worth it from this part of the peak on; a price, from the second on.
LEAST_SHARE, LEAST_SHARE_OF_TRADE = 0.01, 0.05
FAULT, FREE, TRADE = "fault", "free", "trade"
_MODULE_FILE = "torch/nn/modules/module.py"
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
    values: dict[str, str]
    could_be: tuple[str, ...] | None = None
    alone: Change | None = None


class LineCalls:
    """The calls of lines on one device.

    A line is called from its first event to its last without a break.
    """

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self.lines = analysis.lines
        self._python = analysis.facts.roles.python
        self._events = analysis.device.events
        is_alloc = has_code(self._events.action, Action.ALLOC)
        self.n_allocs = np.cumsum(is_alloc, dtype=np.int32)
        self.alloc_events = rows_of(is_alloc)
        self._paths: dict[int, tuple[int, ...]] = {}
        self._marks: dict[tuple[int, ...], BoolColumn] = {}
        self._begins: dict[tuple[int, ...], Int64Column] = {}

    @cached_property
    def _stacks_by_frame(self) -> Callable[[int], Int32Column]:
        """The stacks of a frame; made when it is needed, as a file may have many devices."""
        return stacks_by_frame(self._python)

    def path(self, stack: int) -> tuple[int, ...]:
        """Return the Python frames of a stack, the outermost first."""
        if stack not in self._paths:
            self._paths[stack] = tuple(self._python.frames_of(stack)[::-1].tolist())
        return self._paths[stack]

    def is_module_call(self, frame: int) -> bool:
        """Return whether a frame calls a module's forward."""
        return normal(self._python.frames.filenames[frame]).endswith(_MODULE_FILE)

    def module_call(self, stack: int, *, outermost: bool = False) -> tuple[int, ...]:
        """Return the Python frames down to the call of a stack's innermost module.

        There are none where no module is called.
        """
        path = self.path(stack)
        depths = [depth for depth, frame in enumerate(path) if self.is_module_call(frame)]
        if not depths:
            return ()
        depth = depths[0] if outermost else depths[-1]
        return path[: depth + 1]

    def is_within(self, path: tuple[int, ...]) -> BoolColumn:
        """Mark the stacks that begin with a path, and those that were not recorded.

        The last entry is that of allocations without a stack.
        """
        if path not in self._marks:
            marks = np.zeros(len(self._python) + 1, bool)
            marks[-1] = True
            for stack in self._stacks_by_frame(path[-1]).tolist():
                marks[stack] = self.path(stack)[: len(path)] == path
            self._marks[path] = marks
        return self._marks[path]

    def begins(self, path: tuple[int, ...]) -> Int64Column:
        """Return the first event of every unbroken run of a path's events."""
        if path not in self._begins:
            marks = self.is_within(path)[self._events.stack_id]
            self._begins[path] = rows_of(marks & np.diff(marks, prepend=False))
        return self._begins[path]

    def began_last(self, path: tuple[int, ...], event: int) -> int:
        """Return where the last call of a path before an event began; -1 for none."""
        return int(last_before(self.begins(path), np.array(event)))

    def began(self, path: tuple[int, ...], event: int) -> int:
        """Return the first event of the unbroken run of a path's events that an event ends."""
        is_end = event > 0 and self.is_within(path)[self._events.stack_id[event - 1]]
        return self.began_last(path, event) if is_end else event

    def line_of(self, path: tuple[int, ...]) -> SourceLine | None:
        """Return the project's line of a path: its innermost."""
        return next(filter(None, map(self.lines.of_frame, reversed(path))), None)


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
        self.live = self.table.live_at(self.moment.event)
        self.bytes_of = self.table.bytes_of

    @cached_property
    def is_computed(self) -> BoolColumn:
        """What forward and backward make, but for weights, gradients and states."""
        analysis = self.analysis
        is_computed = is_among(analysis.classification.category, categories_with(Trait.COMPUTED))
        is_of_step = has_code(self.features.alloc_phase, Phase.OPTIMIZER)
        return np.asarray(is_computed & ~is_of_step & self.features.is_traced)

    @cached_property
    def is_of_forward(self) -> BoolColumn:
        """What forward makes, but for caches of keys and values, and copies of weights.

        autocast makes such copies.
        """
        is_other = self.features.is_cache | self.is_a(Category.WEIGHT)
        return self.features.in_forward & ~is_other

    def is_a(self, category: Category) -> BoolColumn:
        """Mark the allocations of a category."""
        return has_code(self.analysis.classification.category, category)

    def is_worth(self, n_bytes: int, share: float = LEAST_SHARE) -> bool:
        """Return whether bytes are a large enough part of the memory at the moment."""
        return n_bytes >= self.least_bytes(share)

    def least_bytes(self, share: float = LEAST_SHARE) -> int:
        """Return the least bytes worth a finding: a share of the memory at the moment."""
        return max(int(self.moment.n_bytes * share), 1)

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
        texts = {name: str(value) for name, value in values.items()}
        return Detected(change, self.analysis.main_line(rows), where, texts, could_be)

    def library_of(self, rows: Int64Column) -> str:
        """Return the library of models that made most bytes of some allocations; empty for none."""
        files = (file for _, file in self._frames_of(rows))
        library = next(filter(None, map(_OF_LIBRARY.search, files)), None)
        return library[1] if library else ""

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
        files = self.analysis.snapshot.stacks.frames.filenames
        for frame in reversed(self.calls.path(self.analysis.main_stack(rows))):
            yield self.calls.lines.of_frame(frame), normal(files[frame])


def is_operation(analysis: DeviceAnalysis, *words: str) -> BoolColumn:
    """Mark what operations with one of some words in their names made."""

    def has_word(name: str) -> bool:
        return any(word in name.lower() for word in words)

    is_named = [*map(has_word, analysis.operations), False]  # without an operation the number is -1
    return np.array(is_named)[analysis.operation_id]


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
        texts = []
        for look_alike in LOOK_ALIKES[self.slug]:
            is_open = not look_alike.sign if could_be is None else look_alike.slug in could_be
            if is_open:
                texts.append(look_alike.what)
        return tuple(texts)

    @property
    def sort(self) -> str:
        """Whether it is a fault, free or a trade."""
        if self.is_free:
            return FREE
        return FAULT if self.costs == "nothing" else TRADE
