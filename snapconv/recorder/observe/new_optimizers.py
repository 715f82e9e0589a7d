"""Which optimizers a program builds: torch calls hooks for those that step, and some never do themselves.

A wrapper such as SAM keeps states of its own and lets another optimizer step.
"""

from collections.abc import Callable
from typing import Any

from snapconv.recorder.guard import Guard


class NewOptimizers:
    """Calls ``listener`` with every optimizer of torch's that is built between ``start`` and ``stop``."""

    def __init__(self, listener: Callable[[Any], None], guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._is_on = False
        self._replaced: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Begin to listen."""
        from torch.optim import Optimizer

        self._is_on = True
        if self._replaced is not None:
            return
        original = Optimizer.__init__

        def built(build: Callable[[], None], optimizer: Any, *_: Any, **__: Any) -> None:
            build()
            if self._is_on:
                self._listener(optimizer)

        Optimizer.__init__ = self._guard.wrap_call(original, built)
        self._replaced = original, Optimizer.__init__

    def stop(self) -> None:
        """Put back what was there; what others have put around ours stays, and ours with it, idle."""
        from torch.optim import Optimizer

        self._is_on = False
        if self._replaced is not None and Optimizer.__init__ is self._replaced[1]:
            Optimizer.__init__ = self._replaced[0]
            self._replaced = None
