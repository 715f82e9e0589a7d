"""Functions of torch that functions of ours stand in for, and torch's stack of function modes.

Whatever the recorder replaces in torch while it runs is replaced, and restored, here.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from snapconv.recorder.guard import Guard

_ABSENT = object()


class Replacements:
    """Attributes that ours stand in for between ``start``, which calls ``place``, and ``stop``.

    ``stop`` leaves what others have put around ours, and ours with it, idle; another ``stop`` restores it
    when the others have gone.
    """

    def __init__(self, guard: Guard, place: "Callable[[Replacements], None]") -> None:
        self._guard, self._place = guard, place
        self._places: list[tuple[Any, str, Any, Any]] = []
        self.is_on = False

    def start(self) -> None:
        """Put ours in place."""
        self.is_on = True
        self._place(self)

    def wrap(self, holder: Any, name: str, work: Callable[..., Any]) -> None:
        """Run ``work(call, *arguments)`` around a function, unless it is left from the last time."""
        original = vars(holder).get(name, _ABSENT)
        if original is _ABSENT or any((holder, name) == place[:2] for place in self._places):
            return

        def while_on(call: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
            return work(call, *arguments, **named) if self.is_on else call()

        self.replace(holder, name, self._guard.wrap_call(original, while_on))

    def replace(self, holder: Any, name: str, ours: Any) -> None:
        """Put ours in place."""
        # vars() and not getattr: a class must lose again what it only inherited.
        self._places.append((holder, name, vars(holder).get(name, _ABSENT), ours))
        setattr(holder, name, ours)

    def stop(self) -> None:
        """Let ours do nothing any more, and restore what is not wrapped by others."""
        self.is_on = False
        for place in reversed(self._places[:]):
            holder, name, original, ours = place
            if vars(holder).get(name) is ours:
                _restore(holder, name, original)
                self._places.remove(place)


@contextmanager
def replaced(holder: Any, name: str, ours: Any, *, even_if_wrapped: bool = False) -> Iterator[None]:
    """Let ours stand in for an attribute; at the end put back what the object itself had.

    What other code has put around ours stays, unless ``even_if_wrapped``.
    """
    original = vars(holder).get(name, _ABSENT)
    setattr(holder, name, ours)
    try:
        yield
    finally:
        if even_if_wrapped or getattr(holder, name) is ours:
            _restore(holder, name, original)


def _restore(holder: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(holder, name)
    else:
        setattr(holder, name, original)


@contextmanager
def step_hooks(began: Callable[..., None], ended: Callable[..., None], guard: Guard) -> Iterator[None]:
    """Call ours when any optimizer's step begins and ends.

    torch walks through its list of hooks while it calls them: ours may only be added and removed
    outside of a step.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    handles = [
        register_optimizer_step_pre_hook(guard.hook(began)),
        register_optimizer_step_post_hook(guard.hook(ended)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def modes_now() -> list[Any]:
    """Return the function modes that are active in this thread, the outermost first."""
    import torch

    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


def change_modes(change: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
    """Replace the stack of modes by what ``change`` makes of it, and return what it was.

    The program's own modes stay in their order, since they end in the order in which they began.
    """
    import torch

    n_modes = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(n_modes)][::-1]
    for mode in change(modes):
        torch._C._push_on_torch_function_stack(mode)
    return modes
