"""Ctrl-C and the like, deferred while nothing may be interrupted."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Remember signals until the block is over, then hand the first to whoever it was meant for.

    An exception in the middle of torch's import comes out of its C++ code as any other error, or leaves
    half a torch behind. Only the main thread hears signals: in any other nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored, or ends the process at once, does so here as well.
    handlers = [(number, handler) for number in _HELD_BACK if callable(handler := signal.getsignal(number))]
    heard: list[Callable[[], object]] = []
    for number, handler in handlers:
        signal.signal(number, _remembering(heard, handler))
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
        if heard:
            heard[0]()


def _remembering(
    heard: list[Callable[[], object]], handler: Callable[[int, FrameType | None], object]
) -> Callable[[int, FrameType | None], None]:
    return lambda number, frame: heard.append(lambda: handler(number, frame))
