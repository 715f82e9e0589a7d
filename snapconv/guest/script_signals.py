"""The script's signal handlers: run in the script's code, never in the middle of ours.

A handler may raise: a watchdog's TimeoutError, Ctrl-C. Python runs it between any two steps of what
the main thread does, so also in our hooks, where its exception would be lost, or leave the
recording half updated. So while a recording lasts, a handler that finds the main thread in work of
ours waits until that is over: the signal is sent again until then. Only the stack at a signal shows
this, so hooks cost nothing more for it. ``signal.signal`` and ``signal.getsignal`` are replaced
meanwhile: the script sees its own handlers.
"""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from snapconv.guest.own_frames import for_program, is_in_our_work, runs_program
from snapconv.guest.unheard_signals import heard

# (number, interrupted frame)
Handler = Callable[[int, FrameType | None], object]

# Work of ours that hangs, or writes a large capture, must not keep Ctrl-C and watchdogs away for
# ever.
_LONGEST_WAIT_S = 60.0
_AGAIN_AFTER_S = 0.001

_set = signal.signal
_get = signal.getsignal

# The signals whose handlers wait, with the time up to which they do. Empty nearly always, and only
# looked at then: what is called often asks for no more.
waiting: dict[int, float] = {}
# Held while a signal is sent once more, and while a handler is replaced: none must come to the next
# one.
_turn = threading.RLock()
_is_program_over = False


@dataclass(eq=False)
class _Deferred:
    """The function that is registered in the place of a handler."""

    handler: Handler
    is_scripts: bool

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Run the handler, or have the signal come once more."""
        heard()  # the main thread reacts to signals
        is_ours = is_in_our_work(frame)
        if is_ours and _is_program_over and self.is_scripts:
            return  # Python alone would have ended by now
        now = time.monotonic()
        until = waiting.setdefault(number, now + _LONGEST_WAIT_S)
        if is_ours and not _is_program_over and now < until and _come_again(number):
            return
        waiting.pop(number, None)
        self.run(number, frame, interrupts=is_ours)

    @runs_program
    def run(
        self, number: int, frame: FrameType | None, *, interrupts: bool = False
    ) -> None:
        """Run the handler; what it raises is the program's, wherever it comes through."""
        try:
            self.handler(number, frame)
        except BaseException as error:  # noqa: BLE001  # handed on
            raise for_program(error, interrupts=interrupts)  # noqa: B904  # it is the very error


@contextmanager
def deferred_handlers(*, is_job: bool = False) -> Iterator[None]:
    """Let handlers wait for the end of our work, for as long as the context lasts.

    ``is_job``: the program goes on afterwards, and all handlers are put back. Otherwise those of
    the script stay in our hands until the process is over, as it may be reading or writing for us.
    In another than the main thread only handlers that are set later can be had.
    """
    global _is_program_over
    if signal.signal is _signal:  # a recording within a recording
        yield
        return
    for number, handler in _handlers_now():
        _set(number, _Deferred(handler, is_scripts=False))
    signal.signal = _signal
    signal.getsignal = _getsignal
    _is_program_over = False
    try:
        yield
    finally:
        # Somebody may have wrapped them since; what they wrap goes on doing what the originals do.
        if signal.signal is _signal:
            signal.signal = _set
        if signal.getsignal is _getsignal:
            signal.getsignal = _get
        for number, handler in _handlers_now():
            if isinstance(handler, _Deferred) and (is_job or not handler.is_scripts):
                _set(number, handler.handler)


def is_commands(number: int) -> bool:
    """Say whether a signal's handler is still that of the command that runs the script."""
    handler = _get(number)
    return isinstance(handler, _Deferred) and not handler.is_scripts


def deliver_waiting() -> None:
    """Run the handlers that wait, at the end of a piece of our work that is no part of another."""
    if not _is_main_thread():
        return
    caller = sys._getframe(1).f_back
    if not is_in_our_work(caller):
        _deliver(tuple(waiting), caller)


def deliver_now() -> None:
    """Run the handlers that wait: after our import of torch, and when the program ends."""
    if _is_main_thread():
        _deliver(tuple(waiting), sys._getframe())


def program_ends() -> None:
    """Run the handlers that still wait; after this call no handler of the program runs."""
    global _is_program_over
    try:
        deliver_now()
    finally:
        _is_program_over = True


def _deliver(numbers: tuple[int, ...], frame: FrameType | None) -> None:
    for number in numbers:
        handler = _get(number)
        with _turn:
            is_waiting = waiting.pop(number, None) is not None
        if is_waiting and isinstance(handler, _Deferred):
            handler.run(number, frame)


def _signal(signalnum: int, handler: Any) -> Any:
    """Do what signal.signal does; a signal that has come already is for the former handler."""
    if signalnum in waiting and _is_main_thread():
        _deliver((int(signalnum),), sys._getframe(1))
    with _turn:
        if callable(handler):
            handler = _Deferred(handler, is_scripts=True)
        return _original(_set(signalnum, handler))


def _getsignal(signalnum: int) -> Any:
    return _original(_get(signalnum))


def _original(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Deferred) else handler


def _handlers_now() -> list[tuple[int, Handler]]:
    """List the functions that are called at signals; a signal without one stays as it is."""
    if not _is_main_thread():
        return []
    handlers = ((number, _get(number)) for number in signal.valid_signals())
    return [(number, handler) for number, handler in handlers if callable(handler)]


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _come_again(number: int) -> bool:
    """Have a signal come once more in a moment; False where no thread can be started any more."""
    try:
        # No Thread object: the signal may have come in the midst of making another.
        _thread.start_new_thread(_send_again, (number,))
    except RuntimeError:
        return False
    return True


def _send_again(number: int) -> None:
    """Send a signal to the main thread, so that it also ends a wait that has begun since."""
    time.sleep(_AGAIN_AFTER_S)
    with _turn:
        if number not in waiting:
            return
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:  # Windows
            _thread.interrupt_main(signal.Signals(number))


def _forget() -> None:
    """Begin anew in a forked child: the threads that were to send signals are not in it."""
    global _turn  # a lock that another thread held at the fork is held for ever
    _turn = threading.RLock()
    waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
