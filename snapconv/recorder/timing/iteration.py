"""One iteration while it runs: its calls, its backward passes and its sections, as marks.

A *section* is what lies between two boundaries: the beginning and end of a backward pass or of an
optimizer's step, and of the iteration. What a section was for is only known at its end: calls that
a backward pass follows were forward.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from snapconv.guest.guard import Guards
from snapconv.guest.own_frames import calls_original
from snapconv.guest.torch_surface import Feature
from snapconv.recorder.observe.tensors import graph_nodes, named_tensors
from snapconv.recorder.timing.marks import Clock, StackRecorder

# The sequence number of every AccumulateGrad: it runs as soon as it can, and belongs to no call.
_ACCUMULATES_GRAD = (1 << 64) - 1
# A loop over tens of thousands of elements would otherwise fill the memory with rows and events.
MAX_CALLS = 200_000

# Calls that return no tensor and are more than a question about one: they wait for the device, or
# write.
_WITHOUT_RESULT = frozenset("item tolist numpy bool int float index setitem".split())


@dataclass(slots=True, eq=False)
class Call:
    """One outermost call of a torch function; without ``begin`` and ``end``, a node of no call.

    ``tiles`` are the times of its nodes, each up to the next node. ``is_forward_work``: it ran in a
    module or autograd recorded it; ``was_waited_for``: the device came to it before all of it was
    queued.
    """

    name: str
    stack: Any = None
    module: Any = None
    begin: Any = None
    end: Any = None
    host_ns: int = 0
    is_forward_work: bool = False
    was_waited_for: bool = False
    tiles: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Section:
    """The calls between two boundaries; only an optimizer's have marks as ``begin`` and ``end``."""

    is_optimizer: bool = False
    calls: list[Call] = field(default_factory=list)
    is_before_backward: bool = False
    begin: Any = None
    end: Any = None


@dataclass(slots=True)
class BackwardPass:
    """One run of autograd's engine; ``nodes`` has calls with their nodes' marks, as they ran."""

    begin: Any
    nodes: list[tuple[Call, Any]] = field(default_factory=list)
    end: Any = None
    n_waited_for: int = 0


class Iteration:
    """Records one iteration, on the thread that made it; what other threads do passes by."""

    overflowed = False
    _is_busy = False
    _optimizer_depth = _n_calls = _n_backwards = 0
    _running: BackwardPass | None = None

    def __init__(self, clock: Clock, stacks: StackRecorder, guards: Guards) -> None:
        import torch

        self._times = guards.of(Feature.TIMES)
        self._backward_times = guards.of(Feature.BACKWARD_TIMES)
        self.sections = [Section()]
        self.backward_passes: list[BackwardPass] = []
        self.left_over: list[Call] = []
        self._clock = clock
        self._mark = clock.mark
        self._stacks = stacks
        self._next_node: Callable[[], int] = torch._C._autograd._get_sequence_nr
        self._thread = threading.get_ident()
        # The ranges of nodes that calls have made, in order: where each begins, and where it ends.
        self._first_nodes: list[int] = []
        self._makers: list[tuple[int, Call]] = []
        self._hooked: set[int] = set()
        self._hooks: list[Any] = []

    # --- calls

    @calls_original
    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: Any = None,
    ) -> Any:
        """Call a torch function and record it, unless it is part of another.

        Guarded by hand, so that nothing stands between the marks and the call.
        """
        if self._times.failure is not None:
            return function(*args, **kwargs)
        call = None
        try:
            is_part = self._is_busy or self._running is not None
            if not is_part and self._may_mark():
                stack, running_module = self._stacks.gather()
                call = Call(name, stack, running_module if module is None else module)
                first_node = self._next_node()
                self._is_busy = True
                call.begin = self._mark()
                began = time.perf_counter_ns()
        except BaseException as failure:
            call = None
            self._is_busy = False
            if not self._times.takes(failure):  # the program's, such as Ctrl-C
                raise
        if call is None:
            return function(*args, **kwargs)
        try:
            result = function(*args, **kwargs)
        finally:
            self._is_busy = False
        ended = time.perf_counter_ns()
        with self._times:
            call.end = self._mark()
            call.was_waited_for = self._clock.was_reached(call.begin)
            call.host_ns = ended - began
            if name in _WITHOUT_RESULT or next(named_tensors(result), None) is not None:
                self._keep(call, first_node)
        return result

    def _may_mark(self) -> bool:
        return threading.get_ident() == self._thread and self._clock.can_mark()

    def _keep(self, call: Call, first_node: int) -> None:
        self._n_calls += 1
        if self._n_calls > MAX_CALLS:
            self.overflowed = True
            return
        next_node = self._next_node()
        if next_node > first_node:
            self._first_nodes.append(first_node)
            self._makers.append((next_node, call))
        call.is_forward_work = next_node > first_node or call.module is not None
        self.sections[-1].calls.append(call)

    # --- backward

    def backward_begins(self, roots: Any, _is_grad: bool) -> None:  # noqa: FBT001  # an event's
        """Record a backward pass, unless it is a part of what is recorded already."""
        if self._is_busy or not self._may_mark():
            return
        self._n_backwards += 1
        if self._n_backwards > 1:
            # Tensor.backward calls torch.autograd.backward, and each is an event: the pass begins
            # with the inner one.
            if self._running is not None and not self._running.nodes:
                self._running.begin = self._mark()
            return
        for node in graph_nodes(roots):
            number = node._sequence_nr()
            if number != _ACCUMULATES_GRAD and number not in self._hooked:
                self._hooked.add(number)
                self._hook(node, self._maker(number) or self._left_over(node))
        self._next_section(is_before_backward=True)
        self._running = BackwardPass(self._mark())

    def backward_ends(self, *_: bool) -> None:
        """End a backward pass; of passes that called each other, the outermost counts."""
        if self._is_busy or not self._n_backwards or not self._may_mark():
            return
        self._n_backwards -= 1
        running = self._running
        if self._n_backwards or running is None:
            return
        running.end = self._mark()
        self._running = None
        self.backward_passes.append(running)
        section = self.sections[-1]
        if section.is_optimizer:
            # A closure of the step called it, as for LBFGS: the rest of the step begins here.
            section.begin = self._mark()

    def _maker(self, number: int) -> Call | None:
        index = bisect_right(self._first_nodes, number) - 1
        if index < 0:
            return None
        stop, call = self._makers[index]
        return call if number < stop else None

    def _left_over(self, node: Any) -> Call:
        """Make a row for a node that no call has made, so that the tiling leaves nothing out."""
        call = Call(node.name())
        self.left_over.append(call)
        return call

    def _hook(self, node: Any, call: Call) -> None:
        """Mark when a node begins."""

        def before(_: Any) -> None:
            with self._backward_times:
                running = self._running
                if running is not None:
                    if running.nodes and self._clock.was_reached(running.nodes[-1][1]):
                        running.n_waited_for += 1
                    running.nodes.append((call, self._mark()))

        self._hooks.append(node.register_prehook(before))

    # --- sections

    def _next_section(self, *, is_before_backward: bool = False) -> None:
        """End a section, before a backward pass or not, and begin the next."""
        section = self.sections[-1]
        section.is_before_backward = is_before_backward
        if section.is_optimizer:
            section.end = self._mark()
        is_optimizer = self._optimizer_depth > 0
        begin = self._mark() if is_optimizer else None
        self.sections.append(Section(is_optimizer=is_optimizer, begin=begin))

    def optimizer_began(self, _optimizer: object) -> None:
        """Begin an optimizer's step; one inside another belongs to that."""
        if self._may_mark():
            self._optimizer_depth += 1
            if self._optimizer_depth == 1:
                self._next_section()

    def optimizer_ended(self, _optimizer: object) -> None:
        """End an optimizer's step."""
        if self._optimizer_depth and self._may_mark():
            self._optimizer_depth -= 1
            if not self._optimizer_depth:
                self._next_section()

    def close(self) -> None:
        """End the iteration: what is still open ends here."""
        self._optimizer_depth = 0
        self._next_section()

    def unhook(self) -> None:
        """Leave nothing on the graph, which may live longer than the iteration."""
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
