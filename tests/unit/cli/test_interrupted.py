"""Ctrl-C in the middle of long work, in the compiled core above all: it ends soon, and nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snapconv.native.library import core

ROOT = Path(__file__).parents[3]
# Seconds of the processor from the signal to the end; all that is loaded is freed in them, too.
MOST_SECONDS = 0.2

# Sends the signal from another thread, which can run only while the core lets it.
PROGRAM = """
import importlib, os, signal, sys, threading, time
from snapconv.cli.app import main
place, *line = sys.argv[1:]
module, name = place.split(":")
target = importlib.import_module(module)
whole, sent = getattr(target, name), []
def interrupt():
    sent[0] = time.process_time()
    os.kill(os.getpid(), signal.SIGINT)
def interrupted(*values, **named):
    if not sent:
        sent.append(None)
        threading.Timer(0.005, interrupt).start()
    return whole(*values, **named)
setattr(target, name, interrupted)
code = main(line)
print(code, time.process_time() - sent[0])
"""
STAGES = {
    "the reader": "snapconv.snapshot.readers.compiled_pickle:_feed",
    "the ids of stacks": "snapconv.snapshot.load:bound_stacks",
    "pairing": "snapconv.replay.lifetimes:pair_compiled",
    "the walk": "snapconv.replay.block_sizes:walk_compiled",
    "curves": "snapconv.replay.device_replay:_block_curve",
    "classification": "snapconv.findings.device_analysis:classify",
    "naming": "snapconv.findings.device_analysis:name_allocations",
    "writing": "snapconv.convert:write_databases",
}
OF_THE_CORE = {"the reader", "pairing", "the walk"}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file that takes a while."""
    file = tmp_path_factory.mktemp("large") / "large.pickle"
    generate = [
        str(ROOT / "scripts/bench/generate.py"),
        "--events",
        "300000",
        "--stacks",
        "python",
        "--seed",
        "0",
    ]
    subprocess.run([sys.executable, *generate, str(file)], check=True, capture_output=True, timeout=300)
    return file


@pytest.mark.skipif(sys.platform == "win32", reason="there a signal comes from the console alone")
@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_ends_it_soon_and_leaves_nothing_behind(large, stage, tmp_path):
    if stage in OF_THE_CORE and core() is None:
        pytest.skip("a stage of the compiled core, which is not in use")
    line = ["to-sqlite", str(large), "-o", str(tmp_path / "report.sqlite"), "--extended", "-q"]
    command = [sys.executable, "-c", PROGRAM, STAGES[stage], *line]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(4):  # NumPy clears what comes while it looks up an attribute
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == 0, done.stderr
        code, seconds = done.stdout.split()
        if code == "130" and float(seconds) < MOST_SECONDS:
            break
        (tmp_path / "report.sqlite").unlink(missing_ok=True)
    assert code == "130"
    assert done.stderr == "stopped: no unfinished file is left behind\n"
    assert float(seconds) < MOST_SECONDS
    assert list(tmp_path.iterdir()) == []
