import gc
import os
import weakref

import pytest

from snapconv.guest.guard import Guard, fault_note
from snapconv.guest.own_frames import for_program


def test_work_that_succeeds_gives_its_result():
    assert Guard().run(max, 1, 2) == 2


def test_a_failure_is_kept_and_ends_all_further_work():
    guard, done = Guard(), []
    assert guard.run(int, "x") is None
    assert guard.run(done.append, 1) is None
    assert isinstance(guard.failure, ValueError)
    assert done == []


class Held:
    pass


def test_a_failure_keeps_nothing_of_the_program_alive():
    guard = Guard()

    def fail():
        try:
            int("x")
        except ValueError as error:
            raise RuntimeError("ours") from error

    def program():
        held = Held()
        guard.run(fail)
        return weakref.ref(held)

    held = program()
    gc.collect()
    assert held() is None
    assert "Traceback" in guard.report
    assert "invalid literal" in guard.report
    assert str(guard.failure) == "ours"


def test_ctrl_c_goes_through():
    def interrupt():
        raise KeyboardInterrupt

    guard = Guard()
    with pytest.raises(KeyboardInterrupt):
        guard.run(interrupt)
    assert guard.failure is None


def test_a_child_process_does_no_work(monkeypatch):
    guard = Guard()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert guard.is_child
    assert guard.run(max, 1, 2) is None


def test_what_a_handler_raises_in_our_work_passes_and_ends_it():
    guard = Guard()

    def work():
        raise for_program(TimeoutError(), interrupts=True)

    with pytest.raises(TimeoutError):
        guard.run(work)
    assert guard.is_off
    note = fault_note(guard).message
    assert note.startswith("TimeoutError, raised in the midst of snapconv's work, ended one part")
    assert "report" not in note
