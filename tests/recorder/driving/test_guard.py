import ctypes
import gc
import os
import threading
import weakref

import pytest

from snapconv.recorder import guard as guard_module
from snapconv.recorder.guard import Guard, fault_note


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


class FromOutside(Exception):
    """What another thread raises in this one; no code of ours knows it."""


@pytest.mark.parametrize("kind", [FromOutside, TimeoutError])
def test_what_another_thread_raises_in_our_work_passes_and_ends_it(kind):
    guard, began, here = Guard(), threading.Event(), threading.get_ident()
    of_ours = {"began": began}
    exec(
        compile("def work():\n    began.set()\n    while True: pass", guard_module.__file__, "exec"), of_ours
    )

    def raise_there():
        began.wait()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(kind))

    thread = threading.Thread(target=raise_there)
    thread.start()
    with pytest.raises(kind):
        guard.run(of_ours["work"])
    thread.join()
    assert guard.is_off
    note = fault_note(guard).message
    assert note.startswith(f"{kind.__name__}, raised in the midst of snapconv's work, ended one part")
    assert "report" not in note


def test_an_error_of_a_library_in_our_work_is_a_fault():
    guard = Guard()

    def work():
        raise FromOutside  # its own line, and not one of ours

    assert guard.run(work) is None
    assert isinstance(guard.failure, FromOutside)
    assert "Please report FromOutside" in fault_note(guard).message
