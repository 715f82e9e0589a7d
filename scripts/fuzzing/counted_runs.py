"""A campaign that counts its runs in a folder, each run one command on one changed input in a child.

All runs of an input are written at once, so a campaign that is stopped at any moment loses at most
the input that it was at, and goes on from there when it is started again. campaign.tsv keeps the
tables of campaigns; a run that failed is fixed afterwards, and tried again.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

from fuzzing.file_targets import Target
from fuzzing.limited_try import changed_input, most_bytes, most_seconds, run_in_child, try_input

# Of the same mistake, so many inputs are kept.
MOST_OF_A_PLACE = 3
# In the campaign's folder: a line for each run.
_RUNS = "runs.jsonl"
_SAID_EVERY = 1000


@dataclass(frozen=True, slots=True)
class CountedRun:
    """A run as the campaign's file has it; ``number`` is that of its input, from 0."""

    number: int
    target: str
    command: str
    n_bytes: int
    seconds: float
    peak_bytes: int
    failures: list[str]


def count_runs(folder: Path, n_runs: int, targets: Sequence[Target], seed: str) -> None:
    """Try changed inputs, of every target in turn, until the folder has so many runs, or until Ctrl-C."""
    shutil.rmtree(folder / "trial", ignore_errors=True)  # of an input at which it was stopped
    n_done, number = 0, 0
    for run in runs_of(folder):  # no list of them: all that is kept here is memory of every child
        n_done, number = n_done + 1, run.number + 1
    print(
        f"{n_done:,} of {n_runs:,} runs are done, the next input is number {number:,}", flush=True
    )
    with (folder / _RUNS).open("a", encoding="ascii") as lines, suppress(KeyboardInterrupt):
        while n_done < n_runs:
            target = targets[number % len(targets)]
            runs = _runs_of_input(number, target, folder, seed)
            lines.write("".join(f"{json.dumps(asdict(run))}\n" for run in runs))
            lines.flush()
            if (n_done + len(runs)) // _SAID_EVERY > n_done // _SAID_EVERY:
                print(f"{n_done + len(runs):,} runs", flush=True)
            n_done, number = n_done + len(runs), number + 1


def runs_of(folder: Path) -> Iterator[CountedRun]:
    """Yield the runs of a campaign; a line that a full disk or a power cut left unfinished is removed."""
    file = folder / _RUNS
    data = file.read_bytes() if file.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        file.write_bytes(whole)
    yield from (CountedRun(**json.loads(line)) for line in BytesIO(whole))


def _runs_of_input(number: int, target: Target, folder: Path, seed: str) -> list[CountedRun]:
    data = changed_input(target, f"{seed} {number}", folder / "input")
    counted = []
    for run in try_input(target, data, folder / "trial", run_in_child):
        failures = [failure.place for failure in run.failures]
        for failure in run.failures:
            path = put_aside(folder / target.name / "failed", data, failure.place, failure.text)
            print(f"FAILED {path or 'again'}: {failure.place}\n{failure.text[-2000:]}", flush=True)
        counted.append(
            CountedRun(
                number, target.name, run.command, run.n_bytes, run.seconds, run.peak_bytes, failures
            )
        )
    return counted


def put_aside(failed: Path, data: bytes, place: str, text: str) -> Path | None:
    """Keep an input that failed in a folder, unless there are enough of its kind; return where it is."""
    failed.mkdir(parents=True, exist_ok=True)
    kind = hashlib.sha256(place.encode()).hexdigest()[:8]
    path = failed / f"{kind}-{hashlib.sha256(data).hexdigest()[:8]}"
    if len(list(failed.glob(f"{kind}-*.txt"))) >= MOST_OF_A_PLACE:
        return None
    path.write_bytes(data)
    path.with_suffix(".txt").write_text(f"{place}\n{text}\n", errors="backslashreplace")
    return path


def table_lines(runs: Sequence[CountedRun]) -> Iterator[str]:
    """Yield what ran, by command and target, and the most that a run of each command took of its bounds."""
    targets = sorted({run.target for run in runs})
    widths = [max(len(target), 7) for target in targets]
    heads = [f"{target:>{width}}" for target, width in zip(targets, widths, strict=True)]
    yield (
        f"{'command':<14}{'runs':>8}{'failed':>7}{'most s':>8}{'of bound':>9}{'MiB':>5}{'of bound':>9}"
        + (f"  {' '.join(heads)}")
    )
    for command in [*sorted({run.command for run in runs}), "all"]:
        chosen = [run for run in runs if command in (run.command, "all")]
        if not chosen:
            continue
        seconds = max(run.seconds for run in chosen)
        share_of_seconds = max(run.seconds / most_seconds(run.n_bytes) for run in chosen)
        peak = max(run.peak_bytes for run in chosen) >> 20
        share_of_bytes = max(run.peak_bytes / most_bytes(run.n_bytes) for run in chosen)
        n_failed = sum(bool(run.failures) for run in chosen)
        numbers = Counter(run.target for run in chosen)
        counts = [
            f"{numbers[target]:>{width},}" for target, width in zip(targets, widths, strict=True)
        ]
        yield (
            f"{command:<14}{len(chosen):>8,}{n_failed:>7,}{seconds:>8.2f}{share_of_seconds:>9.0%}"
            f"{peak:>5}{share_of_bytes:>9.0%}  {' '.join(counts)}"
        )
