"""A signal handler of the script's that raises, at any line of ours: the script gets it, and just once.

What the interpreter does is done at a chosen line of our package: the handler that is registered is
called with the frame of that line. Which lines is drawn by a seed, always the same unless
SNAPCONV_SEED has another; SNAPCONV_INJECTIONS makes more of them.
"""

import _signal  # type: ignore[import-not-found]
import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from snapconv.cli.app import main
from snapconv.guest import guard

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no SIGALRM here")

PACKAGE = str(Path(guard.__file__).parents[1]) + os.sep
SEED = int(os.environ.get("SNAPCONV_SEED", "1"))
N_INJECTIONS = int(os.environ.get("SNAPCONV_INJECTIONS", "2"))

# What a program may raise in a handler; each says how the program ends that does not catch it.
RAISED = {
    "TimeoutError('watchdog')": 1,
    "Interrupted('theirs')": 1,
    "SystemExit(9)": 9,
    "KeyboardInterrupt()": 130,
}
SCRIPT = """
import signal, sys, time, torch
class Interrupted(KeyboardInterrupt): pass
n_heard = n_caught = 0
def hear(number, frame):
    global n_heard
    n_heard += 1
    raise {raised}
signal.signal(signal.SIGALRM, hear)
assert signal.getsignal(signal.SIGALRM) is hear
def step(batch):
    global model, optimizer
    if batch == 0:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    sys._inject_for_a_test()
    for batch in range(5):
        step(batch)
    sys.settrace(None)
    time.sleep(0.05)
except {caught} as error:
    sys.settrace(None)
    n_caught += 1
    del error
print(n_heard, n_caught)
sys.exit(7)
"""


# Lines of ours that the script comes to, and how often; the same for all, so it is counted once.
LINES: Counter[tuple[str, int]] = Counter()


class AtLine:
    """Does something when the main thread comes to a line of our package for the n-th time."""

    def __init__(self, monkeypatch, action):
        self.line, self.n, self._action = None, 0, action
        self._thread = threading.get_ident()
        monkeypatch.setattr(
            sys, "_inject_for_a_test", lambda: sys.settrace(self._trace), raising=False
        )

    def draw(self, draw):
        """Any line is as likely as any other, and any time that the script comes to it."""
        self.line = draw.choice(sorted(LINES))
        self.n = draw.randint(1, LINES[self.line])
        return SEED, Path(self.line[0]).name, self.line[1], self.n

    def _trace(self, frame, event, _argument):
        if threading.get_ident() != self._thread or not frame.f_code.co_filename.startswith(
            PACKAGE
        ):
            return None
        if event == "line":
            line = frame.f_code.co_filename, frame.f_lineno
            if self.line is None:
                LINES[line] += 1
            elif line == self.line:
                self.n -= 1
                if self.n == 0:
                    self._action(frame)
        return self._trace


def deliver(frame):
    handler = _signal.getsignal(signal.SIGALRM)
    handler(signal.SIGALRM, frame)


@pytest.fixture(autouse=True)
def _as_before():
    trace, handler = sys.gettrace(), _signal.getsignal(signal.SIGALRM)
    yield
    sys.settrace(trace)
    _signal.signal(signal.SIGALRM, handler)


def count_lines(run, script):
    if not LINES:
        for _ in range(2):
            LINES.clear()  # of what is done once in a process, no later run comes to a line
            done = run(script, before="", options=("--force",))
            assert (done.code, done.out) == (7, "0 0\n"), done.err
        assert len(LINES) > 1000


def check_capture(done):
    """See that there is a capture that converts, or none; and nothing beside it."""
    assert set(done.names) <= {"train.capture", "train.memory.sqlite", "train.time.sqlite"}, (
        done.names
    )
    if "train.capture" in done.names:
        assert main(["to-sqlite", "--force", "train.capture"]) == 0
    # Where the interruption came may be a line about defaults.
    assert not re.search(r"\bfault\b", done.err), done.err


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("caught", ["BaseException", "ZeroDivisionError"])
def test_what_a_handler_raises_reaches_the_script_once_wherever_it_comes(
    run, monkeypatch, raised, caught
):
    """And ends it where the script does not catch it."""
    is_caught = caught == "BaseException"
    script = SCRIPT.format(raised=raised, caught=caught)
    at_line = AtLine(monkeypatch, deliver)
    count_lines(run, script)
    draw = random.Random(f"{SEED} {raised}")
    for _ in range(N_INJECTIONS if is_caught else max(1, N_INJECTIONS // 2)):
        where = at_line.draw(draw)
        done = run(script, before="", options=("--force",))
        expected = (7, "1 1\n") if is_caught else (RAISED[raised], "")
        assert (done.code, done.out) == expected, (where, done.err)
        check_capture(done)
