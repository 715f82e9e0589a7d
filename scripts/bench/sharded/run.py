"""One rank of a job of many, simulated, beside what torch says of it and beside the shapes.

    python scripts/bench/sharded/run.py [SIZE:N_RANKS ...]

The model is transformers' Llama. Prints what each job needs, by the capture and by two others: the
bytes of weights, gradients and optimizer states as FSDP2's local shards have them; the most
requested at a time by shapes.py, and in torch's FSDPMemTracker, which has no allocator; and what
recording and tracking took, imports included. Ends with 1 where shards differ, or the peak by more
than 1 % from the shapes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from llama import SHAPES
from shapes import peak_terms
from two_ranks import COUNTED, most_of_each_category

from snapconv.analysis import AnalysisOptions, analyze_file

HERE = Path(__file__).parent
_JOBS = ("8B:8", "8B:64", "70B:64")
_MICRO_BATCH = "1"
_LARGEST_DIFFERENCE = 0.01


class Process(NamedTuple):
    """What a process printed, and what it took: seconds of wall and processor time, and MiB."""

    output: str
    wall_s: float
    processor_s: float
    peak_mib: float


def timed(command: list[str]) -> Process:
    begin = os.times().elapsed
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return Process(output, os.times().elapsed - begin, seconds, usage.ru_maxrss / 1024)


class Capture(NamedTuple):
    """What a capture has of one rank, in requested bytes."""

    most: dict[str, int]
    peak_bytes: int


def read(path: Path) -> Capture:
    """Read what each category has at most, and the peak of all."""
    device = analyze_file(path, AnalysisOptions()).devices[0]
    return Capture(most_of_each_category(path), device.replay.requested.peak)


def main() -> int:
    print(
        "| job | weights, gradients, states | FSDP2's shards | peak | from shapes | in the tracker "
        "| s (processor): capture, tracker | MiB: capture, tracker |\n" + "| - " * 8 + "|"
    )
    has_failed = False
    for job in sys.argv[1:] or _JOBS:
        size, n_ranks = job.split(":")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "llama.capture")
            options = ["--simulate", "--no-compute", "--world-size", n_ranks]
            command = ["-m", "snapconv", "record", "-q", *options, "-o", str(path)]
            script = [str(HERE / "transformers_llama.py"), size, _MICRO_BATCH]
            ours = timed([sys.executable, *command, *script])
            capture = read(path)
        torchs = timed([sys.executable, str(HERE / "tracker.py"), *script[1:], n_ranks])
        tracked = json.loads(torchs.output.splitlines()[-1])
        # Buffers are weights in a capture, and are not sharded.
        held = [capture.most[category] for category in COUNTED]
        held[0] -= tracked["buffers"]
        shards = [tracked[category] for category in COUNTED]
        from_shapes = sum(peak_terms(SHAPES[size], int(n_ranks)).values())
        difference = capture.peak_bytes / from_shapes - 1
        has_failed |= held != shards or abs(difference) > _LARGEST_DIFFERENCE
        cells = (
            job,
            ", ".join(f"{n:,}" for n in held),
            "the same" if held == shards else ", ".join(f"{n:,}" for n in shards),
            f"{capture.peak_bytes:,}",
            f"{from_shapes:,} ({difference:+.3%})",
            f"{tracked['peak'] - capture.peak_bytes:+,}",
            f"{ours.wall_s:.0f} ({ours.processor_s:.0f}), "
            f"{torchs.wall_s:.0f} ({torchs.processor_s:.0f})",
            f"{ours.peak_mib:,.0f}, {torchs.peak_mib:,.0f}",
        )
        print("|", " | ".join(cells), "|", flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
