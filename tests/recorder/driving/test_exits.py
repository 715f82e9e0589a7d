"""How a script ends, and what is left of it, compared with Python alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from snapconv.cli.app import main

pytest.importorskip("torch")

VALUES = """
import sys
class NoText:
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__
class Odd(Exception):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__
class Interrupt(KeyboardInterrupt): pass
class Number(int): pass
if "torch" in sys.modules:  # not where Python is alone; else there would be nothing to record
    import torch
    there = torch.ones(1, device="cuda")
"""
EXITS = [
    *(
        f"sys.exit({value})"
        for value in ("", "0", "-1", "2**31", "True", "1.5", "Number(4)", "''", "NoText()")
    ),
    *(
        "raise SystemExit",
        "raise SystemExit(5, 6)",
        "raise Odd",
        "raise Interrupt",
        "1/0",
        "quit()",
    ),
    "try: 1/0\nexcept ZeroDivisionError: raise Odd",
]


@pytest.mark.parametrize("how", EXITS)
def test_a_script_ends_with_the_code_and_the_text_that_python_gives(run, how):
    done = run(how, before=VALUES)
    plain = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, check=False
    )
    assert (done.code, done.out) == (plain.returncode, plain.stdout), done.err
    if plain.stderr.strip():  # what Python prints comes last
        assert done.err.splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert done.err.count("Traceback") == plain.stderr.count("Traceback"), done.err


def test_an_exception_without_a_text_leaves_its_capture(run):
    done = run("train(2)\n" + VALUES + "raise Odd")
    assert done.code == 1
    assert done.metadata["ended"] == {"how": "exception", "detail": "Odd: <exception str() failed>"}


# --- the capture's place, lost while the script runs

TAKEN = {
    "by a file": "pathlib.Path('train.capture').write_text('theirs')",
    "by a folder": "pathlib.Path('train.capture/theirs').mkdir(parents=True)",
    "by a link": "pathlib.Path('train.capture').symlink_to('nowhere')",
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_capture_whose_place_was_taken_lies_beside_it(run, how):
    done = run(f"import pathlib\n{TAKEN[how]}\ntrain(4)")
    assert done.code == 0, done.err
    assert done.names == ["train-2.capture", "train.capture"]
    assert "note: train.capture could not be written any more" in done.err
    assert "the capture is" in done.err
    assert "train-2.capture (" in done.err
    assert main(["to-sqlite", "train-2.capture"]) == 0


@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "a file now"])
def test_a_capture_whose_folder_vanished_lies_in_the_nearest_one(run, is_replaced):
    script = "import pathlib, shutil\nshutil.rmtree('out')\n"
    script += "pathlib.Path('out').write_text('theirs')\n" if is_replaced else ""
    Path("out").mkdir()  # in the folder of the test, as the fixture made it
    done = run(script + "train(4)", options=("--output", "out/here.capture"))
    assert done.code == 0, done.err
    assert done.names == sorted(["here.capture", *(["out"] if is_replaced else [])])
    assert "note: out/here.capture could not be written any more" in done.err
    assert main(["to-sqlite", "here.capture"]) == 0


def test_a_full_disk_is_an_error_and_no_reason_to_fill_another(run, monkeypatch):
    import errno

    from snapconv.recorder import capture_folder

    def fill(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(capture_folder, "_fill", fill)
    done = run("train(4)")
    assert done.code == 5, done.err
    assert done.names == []
    assert "the disk is full" in done.err


# --- what goes on after the last line

AFTER = """
import atexit, os, sys, threading, time, torch

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()

stop, stopped = threading.Event(), threading.Event()
def last():
    print("atexit", torch.ones(3, device="cuda").sum().item(), model.weight.is_cuda)
    stop.set()
    stopped.wait()
def first():
    print("first", torch.cuda.memory_allocated() > 0)
    raise LookupError("theirs")
atexit.register(last)
atexit.register(first)

def late():
    threading.main_thread().join()
    print("thread", torch.ones(3, device="cuda").device)
def forever():
    while not stop.is_set():
        torch.ones(3, device="cuda")
        time.sleep(0.01)
    stopped.set()  # Python aborts a thread that is inside of torch when the interpreter ends
    time.sleep(3600)
threading.Thread(target=late).start()
threading.Thread(target=forever, daemon=True).start()
sys.exit(5)
"""


def test_threads_and_functions_of_atexit_still_have_the_simulated_devices(tmp_path):
    (tmp_path / "train.py").write_text(AFTER)
    command = [sys.executable, "-m", "snapconv", "record", "--simulate", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (
        5, ["thread cuda:0", "first True", "atexit 3.0 True"],
    ), done.stderr  # fmt: skip
    assert "LookupError: theirs" in done.stderr
    shutil.rmtree(tmp_path / "train.capture")
