"""The times of a script's operations: one row per outermost torch call, forward and backward.

Nothing is run twice, and no tensor is kept. Marks are put before and after every call, and into
autograd's graph, and read when the iteration is over. docs/design/timing.md explains the figures,
docs/reference/capture.md has the schema of timing.json.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from snapconv.guest.guard import Guards
from snapconv.guest.own_frames import calls_original
from snapconv.guest.torch_surface import Feature
from snapconv.recorder.interception import Event, Interception, Listeners
from snapconv.recorder.timing import patches
from snapconv.recorder.timing.iteration import Call, Iteration, Section
from snapconv.recorder.timing.marks import Clock, CpuClock, CudaClock, StackRecorder
from snapconv.version import VERSION

ModulePath = Callable[[Any], str | None]
# The marks at the beginning and at the end.
Span = tuple[Any, Any]

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"
_COLUMNS = (
    "iteration", "name", "phase", "module", "stack",
    "forward_ms", "backward_ms", "host_ms",
)  # fmt: skip


@dataclass(eq=False)
class Columns:
    """All iterations so far, as plain values; marks are read when an iteration is added."""

    clock: Clock
    stacks: StackRecorder
    module_path: ModulePath

    def __post_init__(self) -> None:
        self.calls: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.iterations: list[dict[str, Any]] = []
        self.launch_bound = {
            phase: {"n": 0, "n_waited_for": 0} for phase in (FORWARD, BACKWARD)
        }

    def add(self, number: int, ended: Iteration) -> None:
        """Read an iteration's marks; the device must have come past them."""
        stack_ids = self._stack_ids(ended.sections)
        spans: defaultdict[str, list[Span]] = defaultdict(list)
        for run in ended.backward_passes:
            spans[BACKWARD].append((run.begin, run.end))
            self._count(BACKWARD, len(run.nodes), run.n_waited_for)
        for section in ended.sections:
            phase = _phase(section, has_backward=bool(ended.backward_passes))
            spans[phase] += self._add_section(number, section, phase, stack_ids)
        for call in ended.left_over:
            if call.tiles:  # its node ran
                self._add_call(number, call, BACKWARD)
        row: dict[str, Any] = {"iteration": number}
        for phase in (FORWARD, BACKWARD, OPTIMIZER):
            row[f"{phase}_ms"] = self._sum(spans[phase])
        self.iterations.append(row)

    def _add_section(
        self, number: int, section: Section, phase: str, stack_ids: dict[Call, int]
    ) -> list[Span]:
        """Add the calls of a section; return its span of its phase, if it has one."""
        work = _work(section.calls, phase)
        for index, call in enumerate(section.calls):
            call_phase = phase if index in work else OTHER
            self._add_call(number, call, call_phase, stack_ids[call])
        if phase == OPTIMIZER:
            return [(section.begin, section.end)]
        if phase != FORWARD or not work:
            return []
        calls = section.calls[work.start : work.stop]
        self._count(phase, len(calls), sum(call.was_waited_for for call in calls))
        return [(calls[0].begin, calls[-1].end)]

    def _stack_ids(self, sections: list[Section]) -> dict[Call, int]:
        calls = [call for section in sections for call in section.calls]
        ids = self.stacks.ids([call.stack for call in calls])
        return dict(zip(calls, ids, strict=True))

    def _add_call(self, number: int, call: Call, phase: str, stack_id: int = -1) -> None:
        module = None if call.module is None else self.module_path(call.module)
        forward_ms = None if call.begin is None else self.clock.ms(call.begin, call.end)
        values = (
            number, call.name, phase, module, stack_id,
            forward_ms, self._sum(call.tiles), call.host_ns / 1e6,
        )  # fmt: skip
        for column, value in zip(self.calls.values(), values, strict=True):
            column.append(value)

    def _sum(self, spans: list[Span]) -> float | None:
        """Add up the times between marks; None where there are none: the phase did not happen."""
        return round(sum(self.clock.ms(*span) for span in spans), 6) if spans else None

    def _count(self, phase: str, n: int, n_waited_for: int) -> None:
        self.launch_bound[phase]["n"] += n
        self.launch_bound[phase]["n_waited_for"] += n_waited_for


def tile(ended: Iteration) -> None:
    """Give every node the time up to the next one.

    The engine's work between is in it: sums, AccumulateGrad.
    """
    for run in ended.backward_passes:
        marks = [mark for _, mark in run.nodes]
        marks.append(run.end)
        for (call, _), span in zip(run.nodes, pairwise(marks), strict=True):
            call.tiles.append(span)


def _phase(section: Section, *, has_backward: bool) -> str:
    """Say what a section was for. Without a backward pass, all but the optimizer's is forward."""
    if section.is_before_backward:
        return FORWARD
    if section.is_optimizer:
        return OPTIMIZER
    return OTHER if has_backward else FORWARD


def _work(calls: list[Call], phase: str) -> range:
    """Return the indices of the calls that did the work of their phase.

    In a forward, these are from the first to the last call in a module or autograd's graph.
    """
    if phase != FORWARD:
        return range(len(calls))
    work = [index for index, call in enumerate(calls) if call.is_forward_work]
    return range(work[0], work[-1] + 1) if work else range(0)


SCHEMA_VERSION = 1


class Timer:
    """Times the iterations between ``begin`` and ``end``; changes no result and no allocation.

    A context manager, entered before the user's code defines anything and left after it. Between
    timed iterations only a check of one variable runs, in ``Function.apply`` and in compiled
    functions.
    """

    _columns: Columns | None = None
    _iteration: Iteration | None = None
    _number = 0
    _is_warm_up = _overflowed = False

    def __init__(
        self,
        *,
        device: int,
        clock: str,
        project_root: Path,
        module_path: ModulePath,
        guards: Guards | None = None,
        interception: Interception | None = None,
    ) -> None:
        self._clock_name = clock
        self._guards = guards or Guards()
        self._interception = interception or Interception(self._guards)
        self.use_device(device)
        self._project_root = project_root
        self._module_path = module_path
        self._listening = ExitStack()
        self._run = ExitStack()

    def __enter__(self) -> "Timer":
        # Modes of before the user's code: the timer's goes within them, around all of the user's.
        self._outer_modes = patches.modes_now()
        self._listen(self._run, Feature.CUSTOM_FUNCTION_TIMES, patches.patch_function_apply)
        self._listen(self._run, Feature.COMPILED_FUNCTION_TIMES, patches.compiled_functions)
        return self

    def _listen(
        self, parts: ExitStack, feature: Feature, listen: Callable[..., Any]
    ) -> None:
        """Let a patch hand calls to ``_around``; a failure of ours ends its feature alone."""
        guard = self._guards.of(feature)
        guard.enter(parts, partial(listen, self._around, guard))

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._run.close()

    def use_device(self, device: int) -> None:
        """Time this device; before the first iteration that is timed."""
        self._device = device
        self._clock: Clock = CudaClock(device) if self._clock_name == "cuda" else CpuClock()

    # The guard passes positional arguments.
    def begin(self, iteration: int, is_warm_up: bool = False) -> None:  # noqa: FBT001, FBT002
        """Begin an iteration on this thread; a warm-up's times do not count.

        It creates the CUDA events, which takes longer than to record them.
        """
        self._stop()
        if self._columns is None or self._is_warm_up:  # without the warm-up's rows
            self._columns = Columns(self._clock, StackRecorder(), self._module_path)
        self._number = iteration
        self._is_warm_up = is_warm_up
        self._clock.settle()
        timed = self._iteration = Iteration(self._clock, self._columns.stacks, self._guards)
        listening = self._listening
        times = self._guards.of(Feature.TIMES)
        backward_times = self._guards.of(Feature.BACKWARD_TIMES)
        listeners: Listeners = {
            Event.STEP_BEGINS: partial(times.run, timed.optimizer_began),
            Event.STEP_ENDS: partial(times.run, timed.optimizer_ended),
            Event.BACKWARD_BEGINS: partial(backward_times.run, timed.backward_begins),
            Event.BACKWARD_ENDS: partial(backward_times.finish, timed.backward_ends),
        }
        # The first listeners: the recorder's own may end the iteration at the end of a step.
        self._interception.listen(listeners, is_first=True)
        listening.callback(times.finish, self._interception.leave, listeners)
        mode = partial(patches.function_mode, self._around, times, inside=self._outer_modes)
        times.enter(listening, mode)
        self._listen(listening, Feature.OPAQUE_MODULE_TIMES, patches.opaque_modules)

    def end(self) -> None:
        """End the iteration and read its times, which waits for the device."""
        ended = self._iteration
        if ended is None or self._columns is None:
            return
        ended.close()
        self._stop()
        self._clock.settle()
        self._overflowed |= ended.overflowed
        tile(ended)
        self._columns.add(self._number, ended)
        self._clock.forget()

    def trace(self) -> dict[str, Any] | None:
        """Return the content of timing.json, plain values only; None if no iteration was timed."""
        columns = self._columns
        if columns is None or not columns.iterations or self._is_warm_up:
            return None
        import torch

        is_cuda = self._clock_name == "cuda"
        device_name = str(torch.cuda.get_device_name(self._device)) if is_cuda else "CPU"
        return {
            "version": SCHEMA_VERSION,
            "snapconv": VERSION,
            "torch": str(torch.__version__),
            "clock": self._clock_name,
            "simulated": not is_cuda,
            "device": self._device,
            "device_name": device_name,
            "project_root": str(self._project_root),
            "iterations": columns.iterations,
            "stacks": columns.stacks.stacks(),
            "calls": columns.calls,
            "launch_bound": columns.launch_bound if is_cuda else None,
            "overflowed": self._overflowed,
        }

    def _stop(self) -> None:
        """Stop listening, in any state; makes no mark, as the device may have failed."""
        self._listening.close()
        if self._iteration is not None:
            self._iteration.unhook()
            self._iteration = None

    @calls_original
    def _around(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, *module: Any
    ) -> Any:
        """Call a function, within an iteration as a call of it; ``module``: that is compiled."""
        if self._iteration is None:
            return function(*args, **kwargs)
        return self._iteration.call(name, function, args, kwargs, *module)
