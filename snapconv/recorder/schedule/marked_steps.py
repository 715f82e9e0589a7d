"""``snapconv.step()``: the end of an iteration, marked by the script itself; counters subscribe to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
