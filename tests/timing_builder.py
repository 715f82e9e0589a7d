"""A small timing.json in which every number can be checked by hand.

Three iterations of the same four calls and one node that no call made; the totals (forward,
backward and optimizer) are 34, 38 and 30 ms, so that iteration 3 is the median.

    call            phase      from                 forward  backward  (iteration 3; in the others ×
    2)
    linear          forward    net.py in forward       4.0      12.0
    relu            forward    net.py in forward       5.0      none
    cross_entropy   forward    train.py only           0.5       7.0
    MulBackward0    backward   nowhere                none       0.5
    _foreach_add_   optimizer  torch only              3.0      none
"""

import copy
import json
from pathlib import Path
from typing import Any

from snapconv.answers.times import TimeReport, build_time_report
from snapconv.snapshot.recorded.timing_file import load_timing
from snapconv.stacks.project_frames import find_project
from snapconv.writers.sqlite.skyline_reports import time_database
from snapconv.writers.sqlite.tables import write_databases

ROOT = "/home/me/project"
TORCH = "/venv/lib/python3.11/site-packages/torch"

FUNCTIONAL = [f"{TORCH}/nn/functional.py", 2300, "relu", False]
LINEAR = [f"{TORCH}/nn/modules/linear.py", 116, "forward", True]
FORWARD = [f"{ROOT}/model/net.py", 12, "forward", True]
ACTIVATE = [f"{ROOT}/model/net.py", 13, "forward", True]
STEP = [f"{ROOT}/train.py", 40, "step", False]
LOSS = [f"{ROOT}/train.py", 41, "step", False]
ADAM = [f"{TORCH}/optim/adam.py", 500, "step", False]

_STACKS = [[LINEAR, FORWARD, STEP], [FUNCTIONAL, ACTIVATE, STEP], [LOSS], [ADAM]]

# name, phase, module, stack, forward, backward, host
_CALLS = (
    ("linear", "forward", "encoder", 0, 4.0, 12.0, 0.5),
    ("relu", "forward", "", 1, 5.0, None, 0.25),
    ("cross_entropy", "forward", None, 2, 0.5, 7.0, 0.125),
    ("_foreach_add_", "optimizer", None, 3, 3.0, None, 0.5),
    ("MulBackward0", "backward", None, -1, None, 0.5, 0.0),
)
_COLUMNS = "name phase module stack forward_ms backward_ms host_ms".split()


def small_trace(**changes: Any) -> dict[str, Any]:
    """The trace above, with some of its top-level values replaced."""
    calls: dict[str, list[Any]] = {"iteration": [], **{name: [] for name in _COLUMNS}}
    for iteration, factor in ((3, 1), (4, 2), (5, 2)):
        for row in _CALLS:
            calls["iteration"].append(iteration)
            for name, value in zip(_COLUMNS, row, strict=True):
                calls[name].append(
                    value * factor if name.endswith("_ms") and value is not None else value
                )
    trace = {
        "version": 1,
        "snapconv": "0.1.0",
        "torch": "2.13.0",
        "clock": "cuda",
        "simulated": False,
        "device": 1,
        "device_name": "A GPU",
        "project_root": ROOT,
        "iterations": [
            _iteration(3, 10.0, 20.0, 4.0),
            _iteration(4, 12.0, 22.0, 4.0),
            _iteration(5, 9.0, 18.0, 3.0),
        ],
        "stacks": _STACKS,
        "calls": calls,
        "launch_bound": {
            "forward": {"n": 9, "n_waited_for": 4},
            "backward": {"n": 9, "n_waited_for": 0},
        },
        "overflowed": False,
    }
    return copy.deepcopy({**trace, **changes})


def _iteration(number: int, forward: float, backward: float, optimizer: float) -> dict[str, Any]:
    return {
        "iteration": number,
        "forward_ms": forward,
        "backward_ms": backward,
        "optimizer_ms": optimizer,
    }


def write_trace(path: Path, **changes: Any) -> Path:
    """Write the trace to a file and return its path."""
    path.write_bytes(json.dumps(small_trace(**changes)).encode())
    return path


def time_report(folder: Path, *, root: str = ROOT, **changes: Any) -> TimeReport:
    """The report of the trace, which is written into a folder."""
    timing, _ = load_timing(write_trace(folder / "timing.json", **changes))
    assert timing
    return build_time_report(timing, find_project(timing.stacks, root=root))


def write_time_report(path: Path, report: TimeReport, *, extended: bool) -> None:
    """Write a report to its file."""
    write_databases([time_database(path, report, extended=extended)], force=False)
