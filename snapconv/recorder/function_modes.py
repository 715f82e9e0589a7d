"""torch's stack of function modes, read and replaced as a whole: the outermost mode first."""

from collections.abc import Callable, Iterable
from typing import Any


def modes_now() -> list[Any]:
    """Return the function modes that are active in this thread."""
    import torch

    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


def change_modes(change: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
    """Replace the stack by what ``change`` makes of it, and return what it was.

    The program's own modes stay in their order, since they end in the order in which they began.
    """
    import torch

    n_modes = torch._C._len_torch_function_stack()
    modes = [torch._C._pop_torch_function_stack() for _ in range(n_modes)][::-1]
    for mode in change(modes):
        torch._C._push_on_torch_function_stack(mode)
    return modes
