"""Record programs of public repositories, unchanged, in both modes, and compare with their own count.

    python scripts/bench/ecosystem/public.py CHECKOUTS [NAME...] [--write]

public.json has the repository, commit, folder and command of each. CHECKOUTS has a folder
OWNER+NAME of every repository, with small data where a program wants some, or in a folder `data`: a
model of 64 units, texts of made-up words, noise as pictures. What the programs import is installed
for this Python; `torch` and `shown` say for the table with which release, where it is not the
newest, and which of a program's ways it is. The count is that of own_count after the second step,
which is the one that is recorded: bytes of weights, gradients and optimizer state, and torch's peak
of allocated memory. For the cost of recording each also runs alone on the CPU up to that step,
`cuda` in its command being `cpu`; what asks for CUDA in its code has none. --write keeps the
figures, for the docs.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.ecosystem.catalogue import MODES  # noqa: E402  # the root is on the path only now
from tests.ecosystem.recorded_program import Recorded, Run  # noqa: E402

PROGRAMS = Path(__file__).with_name("public.json")
OWN_COUNT = Path(__file__).with_name("own_count")
ALONE = "alone"
RECORDED_STEP = 2
TIMEOUT_S = 600
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "WANDB_MODE": "disabled",
    "MPLBACKEND": "Agg",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, print a line for each mode, and with --write keep the figures; 1 where one differs."""
    parser = argparse.ArgumentParser(
        description="Record public programs and compare with their own count."
    )
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--write", action="store_true", help="keep the figures in public.json")
    options = parser.parse_args(arguments)
    found = json.loads(PROGRAMS.read_text(encoding="utf-8"))
    chosen = options.names or list(found["programs"])
    for name in chosen:
        program = found["programs"][name]
        for mode in (*MODES, ALONE):
            program[mode] = run(program, mode, options.checkouts.resolve())
            print(name, mode, json.dumps(program[mode]), flush=True)
        if options.write:
            PROGRAMS.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
    return int(
        any(found["programs"][name][mode].get("differs", True) for name in chosen for mode in MODES)
    )


def run(program: dict[str, Any], mode: str, checkouts: Path) -> dict[str, Any]:
    """Run a program in a mode: its exit code, processor seconds and peak, and the counts that differ."""
    folder = checkouts / program["repository"].replace("/", "+") / program["folder"]
    given = [argument.replace("{checkouts}", str(checkouts)) for argument in program["command"]]
    environment = program.get("environment", {})
    environment = {
        name: value.replace("{checkouts}", str(checkouts)) for name, value in environment.items()
    }
    with tempfile.TemporaryDirectory(prefix="snapconv-public-") as temporary:
        own = Path(temporary) / "own.json"
        variables = {"OWN_COUNT": str(own)}
        if mode == ALONE:
            given = [one.replace("cuda", "cpu") for one in (*given, *program.get("on_cpu", ()))]
            variables["OWN_COUNT_STEPS"] = str(RECORDED_STEP)
        else:
            command = [
                "-m",
                "snapconv",
                "record",
                *MODES[mode],
                "--stop",
                "-o",
                f"{temporary}/it.capture",
            ]
            given = [*command, *given]
        paths = [str(OWN_COUNT), str(ROOT), str(folder / program.get("path", "."))]
        variables |= {**QUIET, "PYTHONPATH": os.pathsep.join(paths), **environment}
        before = processor_seconds()
        done = run_python(given, folder, variables)
        if done is None:
            return {"failure": f"not done after {TIMEOUT_S} s"}
        figures = {"exit_code": done.returncode, "seconds": round(processor_seconds() - before, 1)}
        if done.returncode or not own.exists():
            return {**figures, "failure": exception(done.stderr) or "it counted no step"}
        if mode == ALONE:
            return figures
        counts = json.loads(own.read_text(encoding="utf-8"))
        capture = Recorded(Run(done.returncode, done.stdout, done.stderr, 0), Path(temporary))
        return {**figures, **agreement(capture, counts[min(RECORDED_STEP, len(counts)) - 1])}


def run_python(
    arguments: Sequence[str], folder: Path, variables: dict[str, str], timeout_s: int = TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """Run Python in a folder, with more variables of the environment; None if it takes too long."""
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def exception(printed: str) -> str:
    """Return the last line of what a program printed that names an exception, or ours; else the last line."""
    lines = printed.strip().splitlines()
    named = [
        line for line in lines if re.match(r"snapconv: error:|[\w.]*(Error|Exception|Exit)\b", line)
    ]
    return (named or lines or [""])[-1][:200]


def processor_seconds() -> float:
    """Return what processes below this one took, without others on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def agreement(capture: Recorded, own: dict[str, int]) -> dict[str, Any]:
    """Compare a report with what the program counted of itself; a report has frozen weights too."""
    sql = "SELECT sum(size_bytes), sum(grad_size_bytes) FROM weight_entries"
    ((weights, gradients),) = capture.query(sql)
    found = {"gradients": gradients or 0, "peak": capture.peak_bytes}
    if weights < own["weights"]:
        found["weights"] = weights
    states = capture.at_peak("optimizer_state")["requested_bytes"]
    if states:  # the peak may lie before the first step
        found["states"] = states
    return {
        "peak_bytes": capture.peak_bytes,
        "unknown_bytes": capture.at_peak("unknown")["block_bytes"],
        "differs": {key: [value, own[key]] for key, value in found.items() if value != own[key]},
    }


if __name__ == "__main__":
    sys.exit(main())
