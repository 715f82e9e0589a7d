"""Ctrl-C at a moment that nothing can be broken off in; no test here needs torch."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from snapconv.errors import TorchMissingError
from snapconv.recorder.program.script_signals import held_back


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_what_is_begun_is_brought_to_its_end_before_ctrl_c_is_heard():
    done = []

    def work():
        with held_back():
            interrupt()
            done.append("all of it")
        done.append("what comes after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]


def test_ctrl_c_comes_before_what_went_wrong_meanwhile():
    def work():
        with held_back():
            interrupt()
            raise TorchMissingError("half imported")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_without_a_signal_an_error_is_itself():
    with pytest.raises(TorchMissingError), held_back():
        raise TorchMissingError("no torch")


def test_a_signal_goes_to_whoever_had_it_and_who_keeps_it():
    heard = []

    def hear(number, _frame):
        heard.append(number)

    before = signal.signal(signal.SIGTERM, hear)
    try:
        with held_back():
            interrupt(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is hear
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            interrupt()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_leaves_signals_alone():
    seen = []

    def work():
        with held_back():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


# A torch that answers an interrupt as C++ code does, by an error of its own.
TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    raise ImportError("initialization failed")
"""


def test_ctrl_c_while_torch_is_imported_ends_with_130_and_no_traceback(tmp_path):
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "train.py").write_text("raise AssertionError('it ran')")
    done = subprocess.run(
        [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
