"""One rank of a job of many, simulated, beside torch's FSDPMemTracker and beside the shapes.

    python scripts/bench/sharded/run.py [SIZE:N_RANKS ...]

Prints a table for each job: the bytes that this rank requested for weights and optimizer states, by the
capture and by the shapes; the most requested at a time, by the capture and by the tracker, which has no
allocator; and what both took, imports included.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from llama import SHAPES, Llama
from torch import device

from snapconv.analysis import AnalysisOptions, analyze_file
from snapconv.answers.peak import summary_totals

HERE = Path(__file__).parent
_JOBS = ("8B:8", "8B:64", "70B:64")
_MICRO_BATCH = "1"
_ITEM_BYTES = 2
_STATES = 2


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


def shard_bytes(size: str, n_ranks: int) -> int:
    """Return the bytes of one rank's rows of all parameters, from their shapes alone."""
    with device("meta"):
        model = Llama(SHAPES[size])
    n_values = 0
    for parameter in model.parameters():
        # The first ranks have whole shares of the rows.
        n_values += -(-len(parameter) // n_ranks) * parameter[0].numel()
    return n_values * _ITEM_BYTES


def main() -> None:
    print(
        "| job | weights: capture, shapes | states: capture, shapes | peak: capture, tracker "
        "| seconds (processor): capture, tracker | MiB: capture, tracker |\n| - | - | - | - | - | - |"
    )
    for job in sys.argv[1:] or _JOBS:
        size, n_ranks = job.split(":")
        with tempfile.TemporaryDirectory() as folder:
            capture = Path(folder, "llama.capture")
            options = ["--simulate", "--no-compute", "--world-size", n_ranks, "--iterations", "2"]
            command = ["-m", "snapconv", "record", "-q", *options, "-o", str(capture)]
            script = [str(HERE / "llama.py"), size, _MICRO_BATCH]
            ours = timed([sys.executable, *command, *script])
            analysis = analyze_file(capture, AnalysisOptions()).devices[0]
        peak_bytes = analysis.replay.requested.peak
        live = analysis.allocations.live_at(analysis.peak_event)
        totals = {row.category: row.requested_bytes for row in summary_totals(analysis, live)}
        torchs = timed([sys.executable, str(HERE / "tracker.py"), *script[1:], n_ranks])
        tracked = json.loads(torchs.output.splitlines()[-1])
        shards = shard_bytes(size, int(n_ranks))
        cells = (
            job,
            f"{totals['weight']:,}, {shards:,}",
            f"{totals['optimizer_state']:,}, {shards * _STATES:,}",
            f"{peak_bytes:,}, {tracked['Total']:,}",
            f"{ours.wall_s:.0f} ({ours.processor_s:.0f}), "
            f"{torchs.wall_s:.0f} ({torchs.processor_s:.0f})",
            f"{ours.peak_mib:,.0f}, {torchs.peak_mib:,.0f}",
        )
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
