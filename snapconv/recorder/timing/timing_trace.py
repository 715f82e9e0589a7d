"""Iterations that have ended -> the columns of timing.json; docs/reference/capture.md has its schema."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from snapconv.recorder.timing.timing_iteration import Call, Iteration, Section
from snapconv.recorder.timing.timing_marks import Clock
from snapconv.recorder.timing.timing_stacks import StackRecorder

ModulePath = Callable[[Any], "str | None"]

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
_COLUMNS = (
    "iteration", "name", "phase", "module", "stack",
    "forward_ms", "backward_ms", "backward_strict_ms", "host_ms",
)  # fmt: skip


class Columns:
    """All iterations so far, as plain values; marks are read when an iteration is added."""

    def __init__(self, clock: Clock, stacks: StackRecorder, module_path: ModulePath) -> None:
        self._clock = clock
        self._stacks = stacks
        self._module_path = module_path
        self.calls: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.iterations: list[dict[str, Any]] = []
        self.launch_bound = {
            "forward": {"n": 0, "n_waited_for": 0, "device_ms": 0.0, "host_ms": 0.0},
            "backward": {"n": 0, "n_waited_for": 0, "device_ms": 0.0, "host_ms": 0.0},
        }

    def add(self, number: int, ended: Iteration) -> None:
        """Read an iteration's marks; the device must have come past them."""
        calls = [call for section in ended.sections for call in section.calls]
        stack_ids = iter(self._stacks.ids([call.stack for call in calls]))
        phases = _phases(ended)
        for section, phase in zip(ended.sections, phases, strict=True):
            work = _forward_work(section.calls) if phase == FORWARD else range(len(section.calls))
            for place, call in enumerate(section.calls):
                self._add_call(number, call, phase if place in work else OTHER, next(stack_ids))
                if phase == FORWARD and place in work:
                    self._count("forward", 1, call.was_waited_for, self._ms(call), call.host_ns)
        self._add_backward(number, ended)
        self.iterations.append(self._iteration(number, ended, phases))

    def values(self) -> dict[str, Any]:
        """Return the part of timing.json about iterations and calls."""
        return {"iterations": self.iterations, "stacks": self._stacks.stacks(), "calls": self.calls}

    def _iteration(self, number: int, ended: Iteration, phases: list[str]) -> dict[str, Any]:
        """Measure around the phases; None for one that did not happen."""
        forward = [s for s, phase in zip(ended.sections, phases, strict=True) if phase == FORWARD]
        worked = [s.calls[w[0]:w[-1] + 1] for s in forward if (w := _forward_work(s.calls))]  # fmt: skip
        steps = [s for s, phase in zip(ended.sections, phases, strict=True) if phase == OPTIMIZER]
        return {
            "iteration": number,
            "forward_ms": self._sum([(calls[0].begin, calls[-1].end) for calls in worked]),
            "backward_ms": self._sum([(run.begin, run.end) for run in ended.backward_passes]),
            "optimizer_ms": self._sum([(step.begin, step.end) for step in steps]),
            "bookkeeping_ms": sum(call.bookkeeping_ns for calls in worked for call in calls) / 1e6,
        }

    def _add_call(self, number: int, call: Call, phase: str, stack_id: int = -1) -> None:
        module = call.module
        values = (
            number,
            call.name,
            phase,
            None if module is None else self._module_path(module),
            stack_id,
            None if call.begin is None else self._ms(call),
            self._sum(call.tiles),
            self._sum(call.strict),
            call.host_ns / 1e6,
        )
        for column, value in zip(self.calls.values(), values, strict=True):
            column.append(value)

    def _add_backward(self, number: int, ended: Iteration) -> None:
        for call in ended.left_over:
            if call.tiles:
                self._add_call(number, call, BACKWARD)
        for run in ended.backward_passes:
            device_ms = self._clock.ms(run.begin, run.end)
            self._count("backward", len(run.nodes), run.n_waited_for, device_ms, run.host_ns)

    def _sum(self, pairs: list[tuple[Any, Any]] | None) -> float | None:
        """Add up the times between marks; None where there are none."""
        return round(sum(self._clock.ms(*pair) for pair in pairs), 6) if pairs else None

    def _ms(self, call: Call) -> float:
        return self._clock.ms(call.begin, call.end)

    def _count(self, phase: str, n: int, n_waited_for: int, device_ms: float, host_ns: int) -> None:
        counts = self.launch_bound[phase]
        for key, more in (
            ("n", n),
            ("n_waited_for", int(n_waited_for)),
            ("device_ms", device_ms),
            ("host_ms", host_ns / 1e6),
        ):
            counts[key] += more


def tile(ended: Iteration) -> None:
    """Give every node the time from its beginning to that of the next one, so that nothing is left out.

    What the engine does between two nodes is thus the first one's: adding up and checking gradients,
    and AccumulateGrad, which belongs to no call.
    """
    for run in ended.backward_passes:
        marks = [*(mark for _, mark in run.nodes), run.end]
        for (call, _), pair in zip(run.nodes, pairwise(marks), strict=True):
            if call.tiles is not None:
                call.tiles.append(pair)


def _phases(ended: Iteration) -> list[str]:
    """Say what every section was for. Without a backward pass, all but the optimizer's is forward."""
    return [_phase(section, has_backward=bool(ended.backward_passes)) for section in ended.sections]


def _phase(section: Section, *, has_backward: bool) -> str:
    if section.is_before_backward:
        return FORWARD
    if section.is_optimizer:
        return OPTIMIZER
    return OTHER if has_backward else FORWARD


def _forward_work(calls: list[Call]) -> range:
    """Return the places from the first to the last call that ran in a module or that autograd recorded.

    What comes before has to do with the batch, or with the iteration before: its copies, its loss.
    """
    work = [place for place, call in enumerate(calls) if call.is_forward_work]
    return range(work[0], work[-1] + 1) if work else range(0)
