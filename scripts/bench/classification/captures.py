"""Measure how much of a capture stays unknown: of every program of the benchmark, or of given captures.

    python scripts/bench/classification/captures.py                       record all programs, as a
    table
    python scripts/bench/classification/captures.py --entry cnn --lines   one, with the lines that
    are unknown
    python scripts/bench/classification/captures.py a.capture b.capture   of these captures
    python scripts/bench/classification/captures.py --corpus COMMIT       the programs that a commit
    has

Each program runs as an unmodified script under ``snapconv record --simulate``, in a process of its
own: what the benchmark's programs name themselves elsewhere is not used. Ends with 1 where more
than LIMIT of the block bytes at the peak of allocated is unknown. Needs torch; a GPU is simulated.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from entries import ENTRIES, FOLDERS, use
from past_programs import NoSuchCorpusError, programs_at
from recording import STEPS_OF_A_PART, WITH_WORKSPACE, WITHOUT_VALUES

import snapconv
from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.units import format_bytes

LIMIT = 0.005
_SCRIPT = Path(__file__).with_name("as_script.py")
# Several backward passes make one iteration, and no optimizer of torch's says which: the script
# marks it.
_MARKED = {"world-model": _SCRIPT.with_name("as_marked_script.py")}
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Share:
    """The peak of one device of a capture, what of it is unknown, and the lines that allocated that."""

    name: str
    peak_bytes: int
    by_category: dict[str, int]
    lines: tuple[tuple[str, int], ...]

    @property
    def unknown(self) -> float:
        """The share of the peak that has no category."""
        return self.by_category.get("unknown", 0) / max(self.peak_bytes, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen captures and return the exit code."""
    options = _options(argv)
    if options.corpus:
        try:
            use(programs_at(options.corpus))
        except NoSuchCorpusError as error:
            sys.exit(str(error))
    is_over, failed = False, list[str]()
    print("| capture | peak | unknown | share |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        given = options.captures or _recorded(options.entry or list(ENTRIES), Path(folder), failed)
        for path in given:
            for share in shares(path):
                is_over |= share.unknown > LIMIT
                unknown = format_bytes(share.by_category.get("unknown", 0))
                row = (
                    f"| {share.name} | {format_bytes(share.peak_bytes)} | {unknown} | "
                    f"{share.unknown:.3%} |"
                )
                print(row, flush=True)
                for line, n_bytes in share.lines if options.lines else ():
                    print(f"    {format_bytes(n_bytes)}  {line}", flush=True)
    print("\n".join(failed), file=sys.stderr)
    return int(is_over or bool(failed))


def shares(path: Path) -> Iterator[Share]:
    """Find what is known of the peak of every device of a capture."""
    session = snapconv.load(path)
    for found in session.devices:
        live = np.flatnonzero(found.allocations.live_at(found.peak_event))
        n_bytes = found.allocations.block_bytes
        categories = found.classification.category[live]
        yield Share(
            name=path.stem,
            peak_bytes=found.replay.allocated.peak,
            by_category={
                category.name.lower(): int(n_bytes[live[categories == category]].sum())
                for category in Category
            },
            lines=_lines(session, found, live[categories == Category.UNKNOWN]),
        )


def _lines(
    session: "snapconv.Session",
    found: DeviceAnalysis,
    rows: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> tuple[tuple[str, int], ...]:
    """Return the innermost lines of Python that allocated these, most bytes first."""
    frames = session.snapshot.stacks.frames
    counted: Counter[str] = Counter()
    for row in rows.tolist():
        there = session.snapshot.stacks.frames_of(int(found.allocations.stack_id[row])).tolist()
        python = [i for i in there if frames.filenames[i].endswith(".py")]
        mine = [i for i in python if "site-packages" not in frames.filenames[i]] or python
        text = " < ".join(f"{Path(frames.filenames[i]).name}:{frames.lines[i]}" for i in mine[:2])
        counted[
            f"{text or 'no frames'} ({format_bytes(int(found.allocations.requested_bytes[row]))})"
        ] += int(found.allocations.block_bytes[row])
    return tuple(counted.most_common(10))


def _recorded(entries: Sequence[str], folder: Path, failed: list[str]) -> Iterator[Path]:
    """Record the programs one by one; what went wrong with the others is added to ``failed``."""
    for entry in entries:
        output = folder / f"{entry}.capture"
        done = subprocess.run(
            _command(entry, output), env=_environment(), capture_output=True, text=True
        )
        if done.returncode:
            failed.append(
                f"{entry} was not recorded: exit code {done.returncode}\n{done.stderr[-2000:]}"
            )
        else:
            yield output


def _command(entry: str, output: Path) -> list[str]:
    options = ["--simulate", "--project-root", str(_SCRIPT.parent), "--output", str(output)]
    options += ["--no-compute"] if entry in WITHOUT_VALUES else []
    options += ["--cublas-workspace"] if entry in WITH_WORKSPACE else []
    n_steps = 3 * STEPS_OF_A_PART.get(entry, 1)
    return [
        sys.executable,
        "-m",
        "snapconv",
        "record",
        *options,
        str(_MARKED.get(entry, _SCRIPT)),
        str(FOLDERS[0]),
        entry,
        str(n_steps),
    ]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "captures", nargs="*", type=Path, help="captures; without any, programs are recorded"
    )
    parser.add_argument("--corpus", metavar="COMMIT", help="record the programs of a commit")
    parser.add_argument(
        "--entry", action="append", metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument(
        "--lines", action="store_true", help="list the lines that allocated what is unknown"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
