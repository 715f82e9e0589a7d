"""Signals to end a program whose main thread waits in C++, where Python runs no handler.

Python's handler in C writes the number of every signal into a pipe. A thread reads it there, and
ends the program in the main thread's place if that does not run the handler of the signal within
some seconds.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from snapconv.stop_signals import BY_SIGNAL, STOPPING

# So long may the main thread take to come back from C++; a scheduler kills after 30 s (torchrun,
# Slurm).
_PATIENCE_S = 3.0
# In the place of a signal's number: the main thread runs a handler.
_HEARD = 0
# The writing end of the pipe, while there is one.
_pipe: list[int] = []


def heard() -> None:
    """Take note that the main thread runs the handler of a signal."""
    for writer in _pipe:
        with suppress(OSError):  # it is full, or closed
            os.write(writer, bytes([_HEARD]))


@contextmanager
def ended_in_place(
    finish: Callable[[BaseException], object], is_ours: Callable[[int], bool]
) -> Iterator[None]:
    """Call ``finish`` and end the process from another thread if the main one hears no signal.

    Another stopping signal meanwhile ends it at once. ``is_ours`` says whether a signal is still to
    raise an exception: if the program has a handler of its own, it waits for that as without us.
    """
    # Windows sends no such signals.
    if os.name == "nt" or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Whichever thread ends the program keeps it.
    turn = threading.Lock()

    def end(number: int) -> None:
        turn.acquire()
        try:
            finish(SystemExit(BY_SIGNAL + number))
            sys.stdout.flush()
        finally:
            os._exit(BY_SIGNAL + number)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _pipe.append(writer)
    # No Thread object: the program's count of threads stays as it is.
    _thread.start_new_thread(_listen, (reader, end, is_ours))
    try:
        yield
    finally:
        turn.acquire()
        _forget()
        os.close(writer)  # which ends the listening


def _listen(
    reader: int, end: Callable[[int], object], is_ours: Callable[[int], bool]
) -> None:
    """Read the pipe until it is closed."""
    timer = threading.Timer(_PATIENCE_S, end)
    for (number,) in iter(lambda: os.read(reader, 1), b""):
        if number == _HEARD:
            timer.cancel()
        elif number in STOPPING and is_ours(number):
            if timer.is_alive():
                os._exit(BY_SIGNAL + number)
            timer = threading.Timer(_PATIENCE_S, end, (number,))
            timer.daemon = True
            timer.start()


def _forget() -> None:
    """Leave the pipe: in a forked child too, whose signals are not its parent's."""
    if _pipe:
        _pipe.clear()
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
