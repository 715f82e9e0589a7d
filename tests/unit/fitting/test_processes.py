"""Processes side by side: how many at once, how they end, and that none is left."""

import os
import signal
import sys
import time
from contextlib import closing

import pytest

from snapconv.fitting import processes
from snapconv.fitting.processes import Limits, Run, run_all

GIB = 1 << 30


def python(folder, *texts):
    return [
        Run((sys.executable, "-c", text), folder / f"{number}.txt")
        for number, text in enumerate(texts)
    ]


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(file):
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text())


def test_every_run_ends_with_its_code_and_its_text_and_reads_nothing(tmp_path):
    runs = python(tmp_path, "print(input())", "import sys; print('two'); sys.exit(3)")
    codes = {ended.number: ended.exit_code for ended in run_all(runs, os.environ)}
    assert codes == {0: 1, 1: 3}
    assert "EOFError" in runs[0].printed.read_text()
    assert runs[1].printed.read_text() == "two\n"


def test_the_seconds_of_a_run_end_with_it_however_long_others_are_looked_at(tmp_path):
    seconds = []
    for ended in run_all(python(tmp_path, "", ""), os.environ, n_workers=2):
        seconds.append(ended.n_seconds)
        time.sleep(8)
    assert len(seconds) == 2
    assert max(seconds) < 8


def test_no_more_run_at_once_than_there_are_workers(tmp_path):
    running = tmp_path / "running"
    running.mkdir()
    text = (
        f"import os, time; os.chdir({str(running)!r}); own = str(os.getpid()); "
        "open(own, 'w').close(); time.sleep(0.3); print(len(os.listdir())); os.remove(own)"
    )
    runs = python(tmp_path, text, text, text)
    assert len(list(run_all(runs, os.environ, n_workers=1))) == 3
    assert [run.printed.read_text() for run in runs] == ["1\n"] * 3


@pytest.mark.parametrize(
    ("n_most", "free", "needed", "n"),
    [(8, 20 * GIB, 3 * GIB, 6), (4, 20 * GIB, 3 * GIB, 4), (8, GIB, 3 * GIB, 1)],
)
def test_as_many_run_as_the_largest_so_far_leaves_memory_for(n_most, free, needed, n, monkeypatch):
    monkeypatch.setattr(processes, "_needed_bytes", lambda: needed)
    assert Limits(n_most, free).n_processes() == n


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_run_that_the_system_kills_beside_others_runs_again_alone(tmp_path):
    # The first time it dies as by the kernel when memory is short, the second time it is done.
    mark = tmp_path / "died"
    text = (
        f"import os, signal, pathlib; mark = pathlib.Path({str(mark)!r})\n"
        "if not mark.exists(): mark.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    runs = python(tmp_path, "import time; time.sleep(1)", text)
    assert {e.number: e.exit_code for e in run_all(runs, os.environ, n_workers=2)} == {0: 0, 1: 0}
    mark.unlink()
    # The one that was started first is beside others too.
    runs = python(tmp_path, f"import time; time.sleep(1)\n{text}", "import time; time.sleep(3)")
    assert {e.number: e.exit_code for e in run_all(runs, os.environ, n_workers=2)} == {0: 0, 1: 0}
    mark.unlink()
    (alone,) = run_all(python(tmp_path, text), os.environ)
    assert alone.exit_code == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="sessions of POSIX")
def test_in_the_end_no_process_is_left_nor_what_it_started(tmp_path):
    child = tmp_path / "child"
    text = (
        "import pathlib, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(child)!r}).write_text(str(other.pid)); time.sleep(600)\n"
    )
    with closing(run_all(python(tmp_path, "", text), os.environ, n_workers=2)) as endings:
        assert next(endings).number == 0
        pid = wait_for(child)
        assert is_running(pid)
    deadline = time.monotonic() + 20  # the system buries it
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)
