"""What recording costs: the time of a step alone, with its memory recorded, and with its times taken.

    python scripts/bench/recording.py                        all entries, on a GPU
    python scripts/bench/recording.py --simulate cnn lstm    some, simulated
    python scripts/bench/recording.py --json …               for machines

Each entry runs once, in a fresh process: warm-up, iterations whose memory is recorded, iterations
that are timed, and steps after the recording has ended, which are the baseline. So all ratios come
from one run. "Then" is what the recorder does at the end of such a step, before the next may begin.
Simulated, the baseline is simulated too, and says nothing of the simulation's own cost.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENTRIES = ROOT / "fixtures" / "entries"
N_ITERATIONS = 5
N_AFTER = 8
# Warm-up, memory, the timer's warm-up, timing, the step in which all is switched off, and those
# after.
N_STEPS = 1 + N_ITERATIONS + 1 + N_ITERATIONS + 1 + N_AFTER


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Measure what recording costs a training step.")
    parser.add_argument(
        "entries", nargs="*", default=sorted(path.name for path in ENTRIES.iterdir())
    )
    parser.add_argument("--simulate", action="store_true", help="without a GPU")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(_measure(options.entries[0], simulate=options.simulate)))
        return 0
    cases = [_in_a_process(entry, simulate=options.simulate) for entry in options.entries]
    if options.json:
        print(json.dumps(cases))
    else:
        print("\n".join(_table(cases)))
    return 0 if all(case["is_right"] for case in cases) else 1


def _in_a_process(entry: str, *, simulate: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--here", entry, *["--simulate"] * simulate]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    case: dict[str, Any] = json.loads(done.stdout)
    return case


def _measure(entry: str, *, simulate: bool) -> dict[str, Any]:
    """Record an entry in this process and take the time at the end of every step."""
    import torch

    from snapconv.cli.app import main as snapconv
    from snapconv.recorder.driver import Driver

    if simulate:
        torch.set_num_threads(1)  # two of them wait for each other on a machine that is busy
    began: list[int] = []
    ended: list[int] = []
    own_work = Driver.iteration_ended

    def timed(driver: Driver) -> None:
        torch.cuda.synchronize()
        ended.append(time.perf_counter_ns())
        own_work(driver)
        began.append(time.perf_counter_ns())

    Driver.iteration_ended = timed  # type: ignore[method-assign, assignment]
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "bench.capture"
        options = ["--quiet", "--output", str(capture), "--iterations", str(N_ITERATIONS)]
        script = [str(ENTRIES / entry / "train.py"), "--steps", str(N_STEPS)]
        with redirect_stdout(StringIO()):
            code = snapconv(["record", *["--simulate"] * simulate, *options, *script])
        n_bytes = sum(file.stat().st_size for file in capture.iterdir())
        is_right = code == 0 and _is_right(capture)
    figures = _figures(_ms(began[:-1], ended[1:]), _ms(ended, began))
    return {"entry": entry, **figures, "capture_bytes": n_bytes, "is_right": is_right}


def _is_right(capture: Path) -> bool:
    """Whether the capture's own peak, replayed, is what torch counted."""
    import snapconv

    (device,) = snapconv.load(capture).devices
    metadata = pickle.loads((capture / "snapshot.pickle").read_bytes())["snapconv"]
    peak: int = metadata["devices"][0]["max_memory_allocated"]
    return len(list(capture.iterdir())) == 3 and device.replay.allocated.peak == peak


def _ms(began: list[int], ended: list[int]) -> list[float]:
    return [(end - begin) / 1e6 for begin, end in zip(began, ended, strict=True)]


def _figures(steps: list[float], between: list[float]) -> dict[str, Any]:
    """Take the medians of each part of the run; ``between[i]`` comes before ``steps[i]``.

    The first step has no beginning, so that memory is what comes first.
    """
    memory, timing = slice(0, N_ITERATIONS), slice(N_ITERATIONS + 1, 2 * N_ITERATIONS + 1)
    after = steps[-N_AFTER:]
    alone = statistics.median(after)
    return {
        "step_ms": round(alone, 2),
        "spread": round((max(after) - min(after)) / alone, 2),
        "memory_ratio": round(statistics.median(steps[memory]) / alone, 2),
        "timing_ratio": round(statistics.median(steps[timing]) / alone, 2),
        "between_memory_ms": round(statistics.median(between[memory]), 2),
        "between_timing_ms": round(statistics.median(between[timing]), 2),
    }


def _table(cases: Sequence[dict[str, Any]]) -> list[str]:
    head: tuple[str, ...] = ("entry", "a step alone, ms", "spread", "memory recorded", "then, ms")
    head += ("times taken", "then, ms", "capture, KiB", "right")
    rows = [
        (
            case["entry"],
            case["step_ms"],
            f"{case['spread']:.0%}",
            f"{case['memory_ratio']} ×",
            case["between_memory_ms"],
            f"{case['timing_ratio']} ×",
            case["between_timing_ms"],
            case["capture_bytes"] >> 10,
            "yes" if case["is_right"] else "NO",
        )
        for case in cases
    ]
    return [f"| {' | '.join(map(str, row))} |" for row in (head, "-" * len(head), *rows)]


if __name__ == "__main__":
    sys.exit(main())
