"""Predictions of ``snapconv advise`` against programs that were changed as it says.

    python scripts/bench/advice/run.py FOLDER [NAME ...]

Records every pair before and after its change, on the simulated GPU, and prints a table: the peak
before, the predicted and the measured one after; of reserved memory where the allocator has other
settings or its cache is emptied. Run it where transformers, diffusers, timm, Lightning and
bitsandbytes are. Recordings that FOLDER has already are used again.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from snapconv.analysis import AnalysisOptions, DeviceAnalysis, analyze_file
from snapconv.answers.advice.findings import advise
from snapconv.answers.what_if.setting_trials import Request, try_settings
from snapconv.hypotheses.allocator_calls import CallKind, find_calls
from snapconv.hypotheses.changes import Demand, scaled_batch
from snapconv.hypotheses.trial import try_out
from snapconv.hypotheses.trial_outcome import Outcome, Trial
from snapconv.units import format_bytes

PROGRAM = Path(__file__).with_name("pairs.py")
_RECORD = ("record", "--simulate", "--no-compute", "--warm-up", "0", "-q")
# The collector runs every few iterations.
_ITERATIONS = {"garbage": "9"}
# The kinds whose saving is a replay of lifetimes alone.
_EXACT = ("previous-kept", "gradients-kept", "graphs-kept", "batches-early")


def recorded(folder: Path, name: str, kind: str, when: str) -> Path:
    """Return the recording of one program, made where it is missing."""
    capture = folder / f"{name}.{when}.capture"
    if not capture.exists():
        options = [*_RECORD, "--iterations", _ITERATIONS.get(kind, "3"), "-o", str(capture)]
        command = [sys.executable, "-m", "snapconv", *options, str(PROGRAM), name, when]
        conf = kind if ":" in kind and when == "after" else ""
        environment = {**os.environ, "PYTORCH_ALLOC_CONF": conf}
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)
    return capture


def device_of(capture: Path) -> DeviceAnalysis:
    """Return the analysis of a recording's GPU."""
    return analyze_file(capture, AnalysisOptions()).devices[0]


def is_reserved(kind: str) -> bool:
    """Whether a change saves reserved memory: a setting of the allocator, or an emptied cache."""
    return ":" in kind or kind == "empty_cache"


def replayed(before: DeviceAnalysis, kind: str) -> Outcome:
    """Replay under other settings as ``what-if`` does, or with emptied caches as ``oom`` does."""
    if kind != "empty_cache":
        trials = try_settings(before, Request.read(kind))
        assert trials
        return trials.tried[-1].outcome
    calls = find_calls(before.snapshot, before.device, before.replay)
    ends = [iteration.first_event for iteration in before.iterations[1:]]
    emptied = calls.insert([CallKind.EMPTY_CACHE] * len(ends), [-1] * len(ends), ends)
    return try_out(emptied, Trial(calls.file_settings))


def predicted(before: DeviceAnalysis, kind: str) -> int | None:
    """Return the peak with the change of one kind alone; None where advise has no such finding."""
    if is_reserved(kind):
        return replayed(before, kind).ledger.max_reserved_bytes
    if kind == "batch":
        return Demand(before).replayed([scaled_batch(before, 0.5)]).n_bytes
    changes = [one.change for one in advise(before, trades=True).findings if one.kind == kind]
    return Demand(before).replayed(changes).n_bytes if changes else None


def rows(folder: Path, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows."""
    kinds = {name: pair[0] for name, pair in importlib.import_module("pairs").PAIRS.items()}
    for name in names or kinds:
        kind = kinds[name]
        captures = [recorded(folder, name, kind, when) for when in ("before", "after")]
        if not all(capture.exists() for capture in captures):
            yield name, kind, "not recorded", "", "", "", ""
            continue
        before, after = map(device_of, captures)
        curves = [
            one.replay.reserved if is_reserved(kind) else one.replay.allocated
            for one in (before, after)
        ]
        guess, (peak, measured) = predicted(before, kind), [curve.peak for curve in curves]
        found = "no finding" if guess is None else format_bytes(guess)
        if guess is None:  # right where the change saves nothing
            guess = peak
        error = 100 * (guess / measured - 1)
        holds = abs(error) <= (0.5 if kind in _EXACT else 3)
        yield (
            name,
            kind,
            format_bytes(peak),
            found,
            format_bytes(measured),
            f"{error:+.2f} %",
            ("holds" if holds else "miss"),
        )


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True, parents=True)
    print(
        "| program | kind | before | predicted | measured | error | |\n| - | - | - | - | - | - "
        "| - |"
    )
    for row in rows(folder, sys.argv[2:]):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    sys.path[:0] = [str(PROGRAM.parent), str(PROGRAM.parents[3])]
    main()
