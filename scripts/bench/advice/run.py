"""Predictions of ``snapconv advise`` against programs that were changed as it says.

    python scripts/bench/advice/run.py FOLDER [NAME ...]

Records every pair of pairs.py before and after its change, on the simulated GPU, and prints a table: the
peak before, the predicted and the measured peak after. Run it where transformers and diffusers are.
Recordings that FOLDER has already are used again.
"""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from snapconv.analysis import AnalysisOptions, DeviceAnalysis, analyze_file
from snapconv.answers.advice.changes import Demand, scaled_batch
from snapconv.answers.advice.findings import advise
from snapconv.units import format_bytes

PROGRAM = Path(__file__).with_name("pairs.py")
_RECORD = ("record", "--simulate", "--no-compute", "--warm-up", "0", "--iterations", "3", "-q")
# The kinds whose saving is a replay of lifetimes alone.
_EXACT = ("previous-kept", "gradients-kept", "graphs-kept", "batches-early")


def recorded(folder: Path, name: str, when: str) -> Path:
    """Return the recording of one program, made where it is missing."""
    capture = folder / f"{name}.{when}.capture"
    if not capture.exists():
        command = [sys.executable, "-m", "snapconv", *_RECORD, "-o", str(capture), str(PROGRAM), name, when]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    return capture


def device_of(capture: Path) -> DeviceAnalysis:
    """Return the analysis of a recording's GPU."""
    return analyze_file(capture, AnalysisOptions()).devices[0]


def predicted(before: DeviceAnalysis, kind: str) -> int | None:
    """Return the peak with the change of one kind alone; None where advise has no such finding."""
    if kind == "batch":
        return Demand(before).replayed([scaled_batch(before, 0.5)]).n_bytes
    changes = [one.change for one in advise(before, trades=True).findings if one.kind == kind]
    return Demand(before).replayed(changes).n_bytes if changes else None


def rows(folder: Path, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows."""
    kinds = {name: pair[0] for name, pair in importlib.import_module("pairs").PAIRS.items()}
    for name in names or kinds:
        kind = kinds[name]
        captures = [recorded(folder, name, when) for when in ("before", "after")]
        if not all(capture.exists() for capture in captures):
            yield name, kind, "not recorded", "", "", "", ""
            continue
        before, after = map(device_of, captures)
        guess, measured = predicted(before, kind), after.replay.allocated.peak
        peak = format_bytes(before.replay.allocated.peak)
        found = "no finding" if guess is None else format_bytes(guess)
        if guess is None:  # right where the change saves nothing
            guess = before.replay.allocated.peak
        error = 100 * (guess / measured - 1)
        holds = abs(error) <= (0.5 if kind in _EXACT else 3)
        yield (
            name,
            kind,
            peak,
            found,
            format_bytes(measured),
            f"{error:+.2f} %",
            ("holds" if holds else "miss"),
        )


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True, parents=True)
    print("| program | kind | before | predicted | measured | error | |\n| - | - | - | - | - | - | - |")
    for row in rows(folder, sys.argv[2:]):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(PROGRAM.parent), str(PROGRAM.parents[3])]
    main()
