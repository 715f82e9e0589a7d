"""Signals while the script waits in C++, where Python runs no handler: it ends as under plain Python."""

import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGTERM")

# The other rank never comes; torch waits for it in C++ for five minutes, without Python's lock.
WAITING = """
import torch
from datetime import timedelta

held = torch.ones(1 << 20, device="cuda")
print("waiting", flush=True)
torch.distributed.TCPStore(
    "127.0.0.1", 0, world_size=2, is_master=True, timeout=timedelta(minutes=5), wait_for_workers=True
)
"""
# It lasts longer than the main thread is waited for.
SLEEP_IN_C = """
import ctypes, time
ends = time.monotonic() + 5
while time.monotonic() < ends:
    ctypes.CDLL(None).usleep(900_000)
"""


def ignore_hangups():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def hear_hangups():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Job:
    """A script that runs under a command of snapconv, in a process of its own."""

    def __init__(self, folder, script, *command, before=hear_hangups):
        (folder / "train.py").write_text(script)
        self.folder = folder
        self.output = folder / "output.txt"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snapconv", *command, "train.py"],
                cwd=folder,
                stdout=output,
                stderr=output,
                preexec_fn=before,
            )

    def wait_for(self, text, timeout_s=120):
        """Wait until a text is printed; return the seconds that it took."""
        began = time.monotonic()
        while text not in self.output.read_text():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < began + timeout_s, self.output.read_text()
            time.sleep(0.02)
        return time.monotonic() - began

    @property
    def ended(self):
        """How the capture says that the program ended."""
        return pickle.loads((self.folder / "train.capture" / "snapshot.pickle").read_bytes())[
            "snapconv"
        ]["ended"]


@pytest.fixture
def job(tmp_path):
    jobs = []

    def start(*arguments, **options):
        jobs.append(Job(tmp_path, *arguments, **options))
        return jobs[-1]

    yield start
    for started in jobs:
        started.process.kill()
        started.process.wait()


RECORD = ("record", "--simulate")


@pytest.mark.parametrize("before", [hear_hangups, ignore_hangups], ids=["terminal", "nohup"])
def test_a_script_that_waits_in_cpp_is_written_within_five_seconds_of_sigterm_and_ends(job, before):
    started = job(WAITING, *RECORD, before=before)
    started.wait_for("waiting")
    started.process.terminate()
    assert started.wait_for("taking the snapshot") < 5
    assert started.process.wait(timeout=60) == 143
    assert started.ended == {"how": "interrupted", "detail": "SIGTERM"}
    said = started.output.read_text()
    assert "train.py was terminated (SIGTERM)" in said
    assert "snapconv:     snapconv train.capture" in said


@pytest.mark.long
def test_a_terminal_that_is_closed_ends_it_too(job):
    started = job(WAITING, *RECORD)
    started.wait_for("waiting")
    started.process.send_signal(signal.SIGHUP)
    assert started.process.wait(timeout=60) == 129
    assert started.ended == {"how": "interrupted", "detail": "SIGHUP"}


def test_under_nohup_a_closed_terminal_ends_nothing(job):
    started = job(WAITING, *RECORD, before=ignore_hangups)
    started.wait_for("waiting")
    started.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(timeout=5)


@pytest.mark.long
def test_a_second_sigterm_ends_at_once(job):
    started = job(WAITING, *RECORD)
    started.wait_for("waiting")
    started.process.terminate()
    time.sleep(0.5)
    began = time.monotonic()
    started.process.terminate()
    assert started.process.wait(timeout=60) == 143
    assert time.monotonic() - began < 2
    assert not (started.folder / "train.capture").exists()


def test_watch_ends_within_five_seconds(job):
    started = job(WAITING, "watch", "--simulate")
    started.wait_for("waiting")
    began = time.monotonic()
    started.process.terminate()
    assert started.process.wait(timeout=60) == 143
    assert time.monotonic() - began < 5


def test_a_forked_child_that_is_terminated_does_not_end_its_parent(job):
    script = f"""
import multiprocessing, time
import torch
held = torch.ones(1 << 20, device="cuda")
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
child.start()
time.sleep(0.3)
child.terminate()
child.join()
{SLEEP_IN_C}
print("came to its end", flush=True)
"""
    started = job(script, *RECORD)
    assert started.process.wait(timeout=120) == 0, started.output.read_text()
    assert "came to its end" in started.output.read_text()
    assert started.ended["how"] == "finished"


def test_a_handler_of_the_scripts_own_is_waited_for_as_without_us(job):
    script = f"""
import signal
import torch
held = torch.ones(1 << 20, device="cuda")
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
print("waiting", flush=True)
{SLEEP_IN_C}
print("came to its end", flush=True)
"""
    started = job(script, *RECORD)
    started.wait_for("waiting")
    started.process.terminate()
    assert started.process.wait(timeout=120) == 0, started.output.read_text()
    said = started.output.read_text()
    assert "heard" in said
    assert "came to its end" in said
