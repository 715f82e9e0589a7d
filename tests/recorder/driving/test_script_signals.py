"""Handlers of the script's wait for the end of our work; no test here needs torch."""

import os
import signal
import time

import pytest

from snapconv.guest import guard, own_frames, script_signals
from snapconv.guest.script_signals import deferred_handlers, program_ends

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")

# What lies in our files: a piece of work, a function in the place of another, and what runs the
# program.
OURS = """
def work(inside):
    inside()
    log.append("worked")

def stands_in(original):
    return original()

def runs(program):
    return program()
"""


@pytest.fixture
def log():
    return []


@pytest.fixture
def ours(log):
    found = {"log": log}
    exec(compile(OURS, own_frames.__file__, "exec"), found)
    own_frames.stands_in(found["stands_in"])
    own_frames.runs_program(found["runs"])
    return found


@pytest.fixture(autouse=True)
def _handlers(log):
    before = signal.signal(signal.SIGALRM, lambda *_: log.append("heard"))
    with deferred_handlers(is_job=True):
        yield
    signal.signal(signal.SIGALRM, before)


def interrupt():
    os.kill(os.getpid(), signal.SIGALRM)


def wait_for(log, n):
    end = time.monotonic() + 20
    while len(log) < n and time.monotonic() < end:
        time.sleep(0.001)


def test_a_handler_waits_until_our_work_is_over_and_runs_once(ours, log):
    ours["work"](interrupt)
    wait_for(log, 2)
    time.sleep(0.02)
    assert log == ["worked", "heard"]


def test_a_handler_of_the_programs_runs_at_once(ours, log):
    interrupt()
    assert log == ["heard"]
    ours["stands_in"](interrupt)
    assert log == ["heard"] * 2
    ours["work"](lambda: ours["runs"](interrupt))
    assert log == ["heard"] * 3 + ["worked"]


def test_what_our_work_calls_through_functions_of_ours_is_still_our_work(ours, log):
    ours["work"](lambda: ours["stands_in"](interrupt))
    wait_for(log, 2)
    assert log == ["worked", "heard"]


def test_the_program_sees_its_own_handlers(log):
    def own(*_):
        log.append("own")

    former = signal.signal(signal.SIGALRM, own)
    assert callable(former)
    former(signal.SIGALRM, None)
    assert log == ["heard"]
    assert signal.getsignal(signal.SIGALRM) is own
    assert signal.signal(signal.SIGALRM, former) is own


def test_a_signal_that_has_come_is_for_the_handler_of_that_time(ours, log, monkeypatch):
    monkeypatch.setattr(script_signals, "_AGAIN_AFTER_S", 0.2)
    ours["work"](interrupt)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which would end this process
    wait_for(log, 2)
    assert log == ["worked", "heard"]


def test_a_handler_does_not_wait_for_ever(ours, log, monkeypatch):
    monkeypatch.setattr(script_signals, "_LONGEST_WAIT_S", 0.05)

    def long():
        interrupt()
        wait_for(log, 1)

    ours["work"](long)
    assert log == ["heard", "worked"]


def test_a_handler_runs_at_the_end_of_the_hook_or_call_in_which_its_signal_came(
    ours, log, monkeypatch
):
    """Waiting for the next time that it is sent took seconds, as a simulated run is nearly all our work."""
    monkeypatch.setattr(script_signals, "_AGAIN_AFTER_S", 0.5)
    monkeypatch.setattr(guard, "is_read_by_torch", lambda: False)
    guard.Guard().hook(lambda: ours["work"](interrupt))()
    assert log == ["worked", "heard"]
    guard.Guard().wrap_call(int, lambda call: ours["work"](interrupt))()
    assert log == ["worked", "heard"] * 2


def test_what_is_left_to_hear_is_heard_when_the_program_ends_and_nothing_after_it(
    ours, log, monkeypatch
):
    monkeypatch.setattr(script_signals, "_AGAIN_AFTER_S", 0.2)
    signal.signal(signal.SIGALRM, lambda *_: log.append("set by the script"))
    ours["work"](interrupt)
    program_ends()
    assert log == ["worked", "set by the script"]
    ours["work"](interrupt)
    time.sleep(0.3)
    assert log == ["worked", "set by the script", "worked"]


def test_afterwards_all_is_as_it_was(log):
    inside = signal.signal
    with deferred_handlers():  # a recording within a recording
        assert signal.signal is inside
    assert signal.signal is inside
