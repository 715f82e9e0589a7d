"""Signals that should end the program while its main thread waits in C++, where Python runs no handler.

Python's handler in C writes the number of every signal into a pipe. A thread reads it there, and ends the
program in the main thread's place if that does not run the handler of the signal within some seconds.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from select import select

from snapconv.stop_signals import BY_SIGNAL, STOPPING

# So long may the main thread take to come back from C++; a scheduler kills after 30 s (torchrun, Slurm).
_PATIENCE_S = 3.0
# In the place of a signal's number: the main thread runs a handler.
_HEARD = b"\0"
# The writing end of the pipe, while there is one.
_pipe: list[int] = []


def heard() -> None:
    """Take note that the main thread runs the handler of a signal."""
    for writer in _pipe:
        with suppress(OSError):  # it is full, or closed
            os.write(writer, _HEARD)


@contextmanager
def ended_in_place(end: Callable[[int], object], is_ours: Callable[[int], bool]) -> Iterator[None]:
    """Have ``end`` called from another thread with a stopping signal that the main thread does not hear.

    It must end the process; another such signal meanwhile does so at once. ``is_ours`` says whether a signal
    is still to raise an exception: if the program has a handler of its own, it waits for that as without us.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _pipe.append(writer)
    # No Thread object: the program's count of threads stays as it is.
    _thread.start_new_thread(_listen, (reader, end, is_ours))
    try:
        yield
    finally:
        _forget()
        os.close(writer)  # which ends the thread


def _listen(reader: int, end: Callable[[int], object], is_ours: Callable[[int], bool]) -> None:
    """Read the pipe until it is closed."""
    unheard, until, is_ending = 0, 0.0, False
    while True:
        patience_s = max(until - time.monotonic(), 0) if unheard and not is_ending else None
        if not select([reader], [], [], patience_s)[0]:
            is_ending = True
            _thread.start_new_thread(end, (unheard,))
            continue
        received = os.read(reader, 1)
        if not received:
            return
        if received == _HEARD and not is_ending:
            unheard = 0
        elif (number := received[0]) in STOPPING and (unheard or is_ours(number)):
            if unheard:
                os._exit(BY_SIGNAL + number)
            unheard, until = number, time.monotonic() + _PATIENCE_S


def _forget() -> None:
    """Leave the pipe: in a forked child too, whose signals are not its parent's."""
    if _pipe:
        _pipe.clear()
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
