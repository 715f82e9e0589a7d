"""Iterations: the signs that one ends, and the plan of what each is for.

``snapconv.step()`` marks an end by hand; otherwise optimizers and backward passes show it.
"""

import weakref
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

from snapconv.recorder.interception import Event, Listeners

_listeners: list[Callable[[], None]] = []


def step() -> None:
    """Mark the end of an iteration; while nothing is recorded, this does nothing.

    For programs where the steps of torch's optimizers do not mark iterations. Once it is called, or
    where the script's own text names it, only these calls end iterations.
    """
    for listener in tuple(_listeners):
        listener()


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call a listener at every ``step()``; return what ends that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


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


def plan(*, warm_up: int, iterations: int, has_timing: bool) -> tuple[Part, ...]:
    """Return each iteration's part.

    Memory and times are in different iterations, as capturing stacks slows the host.
    """
    memory = [Part.WARM_UP] * warm_up + [Part.MEMORY] * iterations
    # Entering the timer makes torch.compile compile again, which belongs to no iteration's time.
    timing = [Part.TIMING_WARM_UP] + [Part.TIMING] * iterations
    return (*memory, *(timing if has_timing else ()))


class Sign(IntEnum):
    """The sign that an iteration is over; where a program gives several, the greatest counts."""

    BACKWARD = 0
    OPTIMIZER = 1
    SCRIPT = 2


class StepCounter:
    """Finds the end of an iteration: by the steps of one optimizer, the first that stepped.

    A script with several optimizers (a GAN) steps each of them once in an iteration. A step that a
    GradScaler leaves out, since gradients are infinite, counts as one. One inside of a backward
    pass, as hooks on gradients take it, ends the iteration when the pass is over: on a GPU it is
    taken in a thread of autograd's, and half of the gradients are still to come. Where no optimizer
    is built, and ``lowest_sign`` allows it, the end of a backward pass is one. ``snapconv.step()``
    counts above all.
    """

    _has_ended = _has_stepped = _waits_for_backward = False
    _optimizer: "weakref.ref[Any] | None" = None
    _n_backwards = 0

    def __init__(
        self, end_iteration: Callable[[], None], *, lowest_sign: Sign = Sign.OPTIMIZER
    ) -> None:
        self._end_iteration = end_iteration
        self._sign = lowest_sign
        self.listeners: Listeners = {
            Event.OPTIMIZER_BUILT: self.optimizer_built,
            Event.STEP_ENDS: self.stepped,
            Event.SCALER_BEGINS: self.scaler_begins,
            Event.SCALER_ENDS: self.scaler_ends,
            Event.BACKWARD_BEGINS: self.backward_begins,
            Event.BACKWARD_ENDS: self.backward_ends,
        }

    def optimizer_built(self, _optimizer: Any) -> None:
        """Wait for the steps of optimizers: backward passes alone count no more."""
        self.waits_for(Sign.OPTIMIZER)

    def waits_for(self, sign: Sign) -> None:
        """Count no lesser sign than this one from here on: it is going to come."""
        self._sign = max(self._sign, sign)

    def saw(self, sign: Sign) -> None:
        """End the iteration, unless another sign counts.

        The first of a greater sign ends nothing that a lesser one has: a backward pass before
        ``step()``.
        """
        is_new = sign > self._sign
        if sign < self._sign or (is_new and self._has_ended):
            self.waits_for(sign)
            return
        self._sign = sign
        self._has_ended = True
        self._end_iteration()

    def stepped(self, optimizer: Any) -> None:
        """See that an optimizer has stepped."""
        self._has_stepped = True
        watched = self._optimizer() if self._optimizer else None
        if watched is None:
            # It is the first, or the script has thrown the first away.
            self._optimizer = weakref.ref(optimizer)
        elif watched is not optimizer:
            return
        if self._n_backwards:
            self._waits_for_backward = True
        else:
            self.saw(Sign.OPTIMIZER)

    def scaler_begins(self, _optimizer: Any) -> None:
        """See a GradScaler begin a step of an optimizer, which it may leave out."""
        self._has_stepped = False

    def scaler_ends(self, optimizer: Any) -> None:
        """Count a step that was left out."""
        if not self._has_stepped:
            self.stepped(optimizer)

    def backward_begins(self, _roots: Any, is_grad: bool) -> None:  # noqa: FBT001  # an event's
        """See a backward pass begin."""
        self._n_backwards += not is_grad

    def backward_ends(self, is_grad: bool, is_complete: bool) -> None:  # noqa: FBT001  # as above
        """See one end; it is a sign itself where it is the outermost, and has not failed."""
        if is_grad or not self._n_backwards:
            return
        self._n_backwards -= 1
        if self._n_backwards:
            return
        if self._waits_for_backward:
            self._waits_for_backward = False
            self.saw(Sign.OPTIMIZER)
        elif is_complete:
            self.saw(Sign.BACKWARD)
