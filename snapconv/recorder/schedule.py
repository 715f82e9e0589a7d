"""Iterations: the signs that one ends, and the plan of what each is for.

``snapconv.step()`` marks an end by hand; otherwise optimizers, backward passes and profilers show it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, IntEnum
from typing import Any

from snapconv.recorder.guard import Guard, Guards
from snapconv.recorder.observe.built_objects import new_optimizers
from snapconv.recorder.replacements import replaced
from snapconv.recorder.torch_surface import Feature

# Sharpness-aware minimisation writes parameters between two passes once, and steps an optimizer after these.
_ENOUGH = 2


class IdleOptimizers:
    """Optimizers of which none has stepped, and what becomes of their parameters between backward passes.

    Several passes before the first step are no sign alone: gradients may be accumulated, which leaves
    parameters as they are. A write through ``.data`` is not seen: torch counts no version for it.
    """

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []
        self._versions: dict[int, int] | None = None
        self._n_updates = 0

    def add(self, optimizer: Any) -> None:
        """Watch one more; what was seen of the others counts no longer."""
        self._optimizers.append(weakref.ref(optimizer))
        self._versions, self._n_updates = None, 0

    def clear(self) -> None:
        """Watch none of them any more: one steps."""
        self._optimizers.clear()

    def are_bypassed(self) -> bool:
        """Whether two updates were made without them, or none exists any more; once before each backward."""
        if not self._optimizers:
            return False
        try:
            before, self._versions = self._versions, _versions_of(self._optimizers)
        except Exception:  # noqa: BLE001  # not ours to report: groups may hold anything, a lazy parameter too
            self.clear()
            return False
        if before is not None:
            none_exists = all(reference() is None for reference in self._optimizers)
            written = (before.get(number, now) != now for number, now in self._versions.items())
            self._n_updates += none_exists or any(written)
        return self._n_updates >= _ENOUGH


def _versions_of(optimizers: "list[weakref.ref[Any]]") -> dict[int, int]:
    """Count how often each parameter was written, by its identity; inference tensors count nothing."""
    return {
        id(tensor): tensor._version
        for reference in optimizers
        for group in getattr(reference(), "param_groups", ())
        for tensor in group["params"]
        if not tensor.is_inference()
    }


_listeners: list[Callable[[], None]] = []


def step() -> None:
    """Mark the end of an iteration; while nothing is recorded, this does nothing.

    For a program that torch's optimizers do not separate, or not as intended. Once it is called, or
    where the script's own text names snapconv, only these calls end iterations.
    """
    for listener in tuple(_listeners):
        listener()


@contextmanager
def listening(listener: Callable[[], None]) -> Iterator[None]:
    """Call a listener at every ``step()``, for as long as the context lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Part(Enum):
    """The purpose of an iteration, in the order in which the parts follow each other."""

    WARM_UP = "warm-up"
    MEMORY = "memory"
    TIMING_WARM_UP = "timing warm-up"
    TIMING = "timing"
    AFTER = "after"

    @property
    def is_of_memory(self) -> bool:
        """Whether the history and the observer are on."""
        return self in (Part.WARM_UP, Part.MEMORY)


class Schedule:
    """The plan of a recording: what each iteration is for.

    Memory and times come from different iterations: capturing stacks slows the host down.
    """

    def __init__(self, *, warm_up: int, iterations: int, has_timing: bool) -> None:
        n_timing = iterations if has_timing else 0
        # Entering the timer compiles what is compiled once more; that is no iteration's time.
        lengths = {
            Part.WARM_UP: warm_up,
            Part.MEMORY: iterations,
            Part.TIMING_WARM_UP: min(n_timing, 1),
            Part.TIMING: n_timing,
        }
        self._plan = [part for part, length in lengths.items() for _ in range(length)]

    def part(self, iteration: int) -> Part:
        """Return what an iteration is for."""
        return self._plan[iteration] if iteration < len(self._plan) else Part.AFTER

    @property
    def n_iterations(self) -> int:
        """Return how many iterations it takes until everything is recorded."""
        return len(self._plan)

    @property
    def n_for_times(self) -> int:
        """Return how many iterations it takes to have times, which the timer's warm-up has; 0: never."""
        return self._plan.index(Part.TIMING_WARM_UP) + 1 if Part.TIMING_WARM_UP in self._plan else 0


class Sign(IntEnum):
    """The sign that an iteration is over; where a program gives several, the greatest counts."""

    BACKWARD = 0
    PROFILER = 1
    OPTIMIZER = 2
    SCRIPT = 3


class StepCounter:
    """Finds the end of an iteration: by the steps of one optimizer, the first that stepped.

    A script with several optimizers (a GAN) steps each of them once in an iteration. A step that a
    GradScaler leaves out, since gradients are infinite, counts as one. One inside of a backward pass, as
    hooks on gradients take it, ends the iteration when the pass is over: on a GPU it is taken in a thread
    of autograd's, and half of the gradients are still to come.

    A program that builds no optimizer has other signs, from ``least`` on: the end of a backward pass, or a
    profiler's step where it has one. So has one that builds some and updates their parameters itself.
    ``snapconv.step()`` counts above all.
    """

    def __init__(self, on_end: Callable[[], None], *, least: Sign = Sign.OPTIMIZER) -> None:
        self._on_end = on_end
        self._least, self._sign, self._has_ended = least, least, False
        self._idle = IdleOptimizers()
        self._optimizer: weakref.ref[Any] | None = None
        self._has_stepped = self._waits_for_backward = False
        self._n_backwards = 0

    def waits_for(self, sign: Sign) -> None:
        """Count no lesser sign than this one from here on: it is going to come."""
        self._sign = max(self._sign, sign)

    def optimizer_built(self, optimizer: Any) -> None:
        """Wait for the steps of an optimizer, unless its parameters are updated without it."""
        if self._optimizer is None and self._least < Sign.OPTIMIZER:
            self._idle.add(optimizer)
        self.waits_for(Sign.OPTIMIZER)

    def saw(self, sign: Sign) -> None:
        """End the iteration, unless another sign counts.

        The first of a greater sign ends nothing that a lesser one has ended already: a backward pass before
        the first ``snapconv.step()``.
        """
        is_new = sign > self._sign
        if sign < self._sign or (is_new and self._has_ended):
            self.waits_for(sign)
            return
        self._sign, self._has_ended = sign, True
        self._on_end()

    def step_begins(self) -> None:
        """See an optimizer begin a step; a closure may run backward passes in it (L-BFGS)."""
        self._idle.clear()

    def stepped(self, optimizer: Any, *_: object) -> None:
        """See that an optimizer has stepped; the shape of torch's hook."""
        self._has_stepped = True
        self.step_begins()  # where a scaler leaves a step out, nothing has begun
        watched = self._optimizer() if self._optimizer else None
        if watched is None:
            # None yet, or the script has thrown it away and made another.
            self._optimizer = weakref.ref(optimizer)
        elif watched is not optimizer:
            return
        if self._n_backwards:
            self._waits_for_backward = True
        else:
            self.saw(Sign.OPTIMIZER)

    def scaler_steps(self, optimizer: Any, step: Callable[[], Any]) -> Any:
        """Run a GradScaler's step of an optimizer, which may leave it out."""
        self._has_stepped = False
        result = step()
        if not self._has_stepped:
            self.stepped(optimizer)
        return result

    def runs_backward(self, backward: Callable[[], Any]) -> Any:
        """Run a backward pass."""
        if not self._n_backwards and self._idle.are_bypassed() and self._sign == Sign.OPTIMIZER:
            self._sign = self._least
        self._n_backwards += 1
        is_over = False
        try:
            result = backward()
            is_over = self._n_backwards == 1
        finally:
            self._n_backwards -= 1
            if self._waits_for_backward and not self._n_backwards:
                self._waits_for_backward = is_over = False
                self.saw(Sign.OPTIMIZER)
        if is_over:
            self.saw(Sign.BACKWARD)
        return result


@contextmanager
def counting_steps(counter: StepCounter, guards: Guards | None = None) -> Iterator[None]:
    """Let torch's optimizers, GradScalers and profilers call a counter, for as long as the context lasts."""
    guards = guards or Guards()
    built = new_optimizers(counter.optimizer_built, guards.of(Feature.BUILT_OPTIMIZERS))
    marked = guards.of(Feature.MARKED_STEPS).hook(lambda: counter.saw(Sign.SCRIPT))
    with ExitStack() as parts, listening(marked):
        for feature, listen in (
            (Feature.OPTIMIZER_STEPS, _optimizer_steps),
            (Feature.SCALER_STEPS, _scaler_steps),
            (Feature.BACKWARD_PASSES, _backward_passes),
            (Feature.PROFILER_STEPS, _profiler_steps),
        ):
            guard = guards.of(feature)
            guard.enter(parts, lambda listen=listen, guard=guard: listen(counter, guard))  # type: ignore[misc]
        guards.of(Feature.BUILT_OPTIMIZERS).run(built.start)
        parts.callback(guards.of(Feature.BUILT_OPTIMIZERS).finish, built.stop)
        yield


@contextmanager
def _optimizer_steps(counter: StepCounter, guard: Guard) -> Iterator[None]:
    """Let every optimizer's step be seen.

    The counter is called last of all hooks: the records of the others belong to the iteration that ends. It
    also makes it safe to add and remove hooks at an iteration's end, which torch does not foresee: it walks
    through the very dictionary (2.13), and only who is last may change it.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    post = register_optimizer_step_post_hook(guard.hook(counter.stepped))
    hooks = post.hooks_dict_ref()

    def go_last(*_: object) -> None:
        counter.step_begins()
        if post.id in hooks and next(reversed(hooks)) != post.id:
            hooks.move_to_end(post.id)

    pre = register_optimizer_step_pre_hook(guard.hook(go_last))
    try:
        yield
    finally:
        post.remove()
        pre.remove()


@contextmanager
def _scaler_steps(counter: StepCounter, guard: Guard) -> Iterator[None]:
    """Let every GradScaler.step be run by the counter."""
    import torch

    scaler = torch.amp.GradScaler

    def step(call: Callable[[], Any], _scaler: Any, optimizer: Any, *_: Any, **__: Any) -> Any:
        return counter.scaler_steps(optimizer, call)

    with replaced(scaler, "step", guard.wrap_call(scaler.step, step)):
        yield


@contextmanager
def _profiler_steps(counter: StepCounter, guard: Guard) -> Iterator[None]:
    """Let the steps of torch's profilers be seen; one that has a schedule is going to be stepped."""
    from torch.profiler import profile

    def starts(call: Callable[[], Any], profiler: Any, *_: Any, **__: Any) -> Any:
        if getattr(profiler, "record_steps", False):
            counter.waits_for(Sign.PROFILER)
        return call()

    def steps(call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        result = call()
        counter.saw(Sign.PROFILER)
        return result

    with (
        replaced(profile, "start", guard.wrap_call(profile.start, starts)),
        replaced(profile, "step", guard.wrap_call(profile.step, steps)),
    ):
        yield


@contextmanager
def _backward_passes(counter: StepCounter, guard: Guard) -> Iterator[None]:
    """Let every backward pass be run by the counter.

    ``Tensor.backward`` too, and not only what it calls: a mode for torch functions is taken off while it
    runs and put back after it, so that the timer's can only come and go outside of it.
    """
    import torch

    def backward(call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return counter.runs_backward(call)

    with ExitStack() as parts:
        for holder in (torch.autograd, torch.Tensor):
            parts.enter_context(replaced(holder, "backward", guard.wrap_call(holder.backward, backward)))
        yield
