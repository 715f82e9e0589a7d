"""Measure what converting a snapshot costs, against a bare ``pickle.load`` of the same file.

    python scripts/bench/run.py --events 100000 1000000 --stacks all python --cache FOLDER
    python scripts/bench/run.py --events 1000000 --stacks --real SNAPSHOT      # its trace, repeated

Every measurement is a process of its own: wall seconds from its start to its end, and its peak
resident memory as the kernel counted it. Needs a POSIX system.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUNNER = Path(__file__).name
# Linux counts ru_maxrss in KiB, macOS in bytes.
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
STDERR_TAIL_LINES = 5
SEED = 0

# The kernel counts a process's peak from that of the process that started it (Linux does so over
# exec), so a bare interpreter stands between: it is smaller than anything that is measured.
WRAPPER_PROGRAM = """
import os, sys, time
silence = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
start = time.perf_counter()
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ, file_actions=silence)
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - start, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
BARE_LOAD, IMPORTS = "bare load", "imports alone"
LOAD_PROGRAM = """
import gc, pickle, sys
gc.disable()
with open(sys.argv[1], "rb") as file:
    pickle.load(file)
"""
# {file} and {output} are filled in; an output is checked against the truth.
COMMANDS: dict[str, tuple[str, ...]] = {
    BARE_LOAD: ("-c", LOAD_PROGRAM, "{file}"),
    # What no conversion does without, and which a small file is compared with.
    IMPORTS: ("-c", "import numpy, typer, orjson, sqlite3"),
    "info": ("-m", "snapconv", "info", "{file}"),
    "to-sqlite": ("-m", "snapconv", "to-sqlite", "{file}", "-o", "{output}", "--force", "-q"),
    "to-sqlite --extended": (
        *("-m", "snapconv", "to-sqlite", "{file}", "-o", "{output}", "--extended", "--force", "-q"),
    ),
}
PEAK_QUERY = "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'"


@dataclass(frozen=True, slots=True)
class Sample:
    """A snapshot and what is true of it, as far as that is known; ``stacks`` is their kind."""

    path: Path
    stacks: str
    n_events: int
    peak_allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """One process that ended well."""

    seconds: float
    peak_rss_bytes: int
    is_correct: bool | None


@dataclass(frozen=True, slots=True)
class Result:
    """A case, one command on one file, over its runs; ``is_correct`` is None without a check.

    ``seconds`` and ``peak_rss_bytes`` are minima, which other work on the machine disturbs least.
    """

    command: str
    stacks: str
    events: int
    file_bytes: int
    seconds: float | None = None
    median_seconds: float | None = None
    peak_rss_bytes: int | None = None
    is_correct: bool | None = None
    failure: str | None = None


class CommandFailed(Exception):
    """A command ended with another exit code than 0."""


def generator_version() -> str:
    """Name the generator's code, so that a kept file is not taken for one that it would write now."""
    sources = sorted(path for path in HERE.glob("*.py") if path.name != RUNNER)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]


def make_sample(folder: Path, n_events: int, *, stacks: str) -> Sample:
    """Generate a snapshot, or take the one that lies in the folder."""
    path = folder / f"{n_events}-{stacks}-{generator_version()}.pickle"
    truth_path = path.with_suffix(".truth.json")
    if not (path.exists() and truth_path.exists()):
        arguments = ["--events", str(n_events), "--stacks", stacks, "--seed", str(SEED)]
        generate = [sys.executable, str(HERE / "generate.py"), *arguments, str(path)]
        if subprocess.run(generate, stdout=subprocess.DEVNULL).returncode != 0:
            raise SystemExit(f"could not generate {n_events} events with stacks={stacks}")
    truth = json.loads(truth_path.read_text(encoding="utf-8"))
    return Sample(path, stacks, truth["events"], truth["peak_allocated_bytes"])


def repeat_real(folder: Path, snapshot: Path, n_events: int) -> Sample:
    """Make a file of the trace of a real snapshot, repeated; nothing says what its peak is."""
    path = folder / f"{n_events}-real.pickle"
    command = [
        sys.executable,
        str(HERE / "repeat.py"),
        "--events",
        str(n_events),
        str(snapshot),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        raise SystemExit(f"could not repeat {snapshot}: {done.stderr}")
    return Sample(path, "real", int(done.stdout.rpartition(": ")[2].split()[0]), None)


def run_process(arguments: Sequence[str]) -> tuple[float, int]:
    """Run Python with these arguments; give its seconds and peak resident bytes."""
    wrapped = [sys.executable, "-I", "-S", "-c", WRAPPER_PROGRAM, *arguments]
    # As when it is installed: compiled modules are kept.
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    wrapper = subprocess.run(
        wrapped, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", errors="replace"
    )
    seconds, peak_rss, exit_code = wrapper.stdout.split()
    if exit_code != "0":
        lines = [line.strip() for line in wrapper.stderr.split("\n") if line.strip()]
        tail = " | ".join(lines[-STDERR_TAIL_LINES:])
        raise CommandFailed(f"exit code {exit_code}: {tail or 'nothing on stderr'}")
    return float(seconds), int(peak_rss) * MAXRSS_UNIT_BYTES


def peak_in_report(path: Path) -> int | None:
    """Read the peak from a report, or None if it has none."""
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(PEAK_QUERY).fetchone()
    return None if row is None else int(row[0])


def measure(command: str, sample: Sample, folder: Path) -> Run:
    """Run a command on a file once, and check its output if it has one."""
    output = folder / "report.sqlite"
    names = {"file": str(sample.path), "output": str(output)}
    program = COMMANDS[command]
    arguments = [names.get(argument.strip("{}"), argument) for argument in program]
    output.unlink(missing_ok=True)
    seconds, peak_rss_bytes = run_process(arguments)
    if "{output}" not in program:
        return Run(seconds, peak_rss_bytes, None)
    try:
        peak = peak_in_report(output)
        known = sample.peak_allocated_bytes
        is_correct = None if known is None else peak == known
    except sqlite3.Error as error:
        raise CommandFailed(f"no readable report: {error}") from error
    return Run(seconds, peak_rss_bytes, is_correct)


def summarise(command: str, sample: Sample, runs: Sequence[Run], *, failure: str | None) -> Result:
    """Take the best of a case's runs; one wrong output makes the case wrong."""
    known = functools.partial(
        Result, command, sample.stacks, sample.n_events, sample.path.stat().st_size
    )
    if failure is not None:
        return known(failure=failure)
    checks = [run.is_correct for run in runs if run.is_correct is not None]
    return known(
        seconds=min(run.seconds for run in runs),
        median_seconds=statistics.median(run.seconds for run in runs),
        peak_rss_bytes=min(run.peak_rss_bytes for run in runs),
        is_correct=all(checks) if checks else None,
    )


def measure_all(samples: Sequence[Sample], n_repeats: int, folder: Path) -> list[Result]:
    """Run every case in turn, all of them again, and so on; a case that fails is not run again."""
    cases = [(command, sample) for sample in samples for command in COMMANDS]
    runs: dict[tuple[str, Sample], list[Run]] = {case: [] for case in cases}
    failures: dict[tuple[str, Sample], str] = {}
    for n_round in range(1, n_repeats + 1):
        print(f"round {n_round} of {n_repeats}", file=sys.stderr)
        for command, sample in cases:
            if (command, sample) in failures:
                continue
            try:
                runs[command, sample].append(measure(command, sample, folder))
            except CommandFailed as error:
                failures[command, sample] = str(error)
                case = f"{command}, {sample.n_events} events, stacks={sample.stacks}"
                print(f"FAILED  {case}: {error}", file=sys.stderr)
    return [
        summarise(command, sample, runs[command, sample], failure=failures.get((command, sample)))
        for command, sample in cases
    ]


def environment() -> dict[str, object]:
    """Say what the figures depend on; nothing that names the machine."""
    try:
        numpy_version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        numpy_version = "absent"
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": numpy_version,
        "snapconv": subprocess.run(
            [sys.executable, "-m", "snapconv", "--version"],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
        ).stdout.strip(),
        "generator": generator_version(),
    }


def table_row(result: Result, bare: Result | None) -> str:
    """Format one case."""
    size = f"{result.file_bytes / 2**20:.1f}"
    cells = [f"{result.command}, stacks={result.stacks}", f"{result.events:,}", size]
    if result.seconds is None or result.median_seconds is None or result.peak_rss_bytes is None:
        return "| " + " | ".join([*cells, "–", "–", "–", "–", "–", "–", "failed"]) + " |"
    seconds_ratio = rss_ratio = "–"
    if bare is not None and bare.seconds and bare.peak_rss_bytes:
        seconds_ratio = f"{result.seconds / bare.seconds:.2f}"
        rss_ratio = f"{result.peak_rss_bytes / bare.peak_rss_bytes:.2f}"
    verdict = {None: "–", True: "yes", False: "NO"}[result.is_correct]
    cells += [f"{result.seconds:.2f}", f"{result.median_seconds:.2f}", seconds_ratio]
    cells += [f"{result.peak_rss_bytes / 2**20:.0f}", rss_ratio]
    return (
        "| " + " | ".join([*cells, f"{result.seconds / result.events * 1e6:.2f}", verdict]) + " |"
    )


def table_lines(results: Sequence[Result], n_repeats: int) -> Iterator[str]:
    """Format everything as Markdown."""
    facts = environment()
    versions = f"CPython {facts['python']}, NumPy {facts['numpy']}"
    yield f"{facts['cpus']} CPUs, {facts['system']}, {versions}; {facts['snapconv']}."
    yield f"Minimum and median of {n_repeats} interleaved runs."
    yield ""
    columns = (
        "case",
        "events",
        "file MiB",
        "seconds",
        "median",
        "× bare load",
        "peak MiB",
        "× bare load",
    )
    yield "| " + " | ".join((*columns, "µs/event", "correct")) + " |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    bare = {(r.events, r.stacks): r for r in results if r.command == BARE_LOAD}
    for result in results:
        yield table_row(result, bare.get((result.events, result.stacks)))
    for result in results:
        if result.failure is not None:
            case = f"{result.command}, {result.events} events, stacks={result.stacks}"
            yield f"\nfailed: {case}: {result.failure}"


def bench(arguments: argparse.Namespace, folder: Path) -> int:
    """Make the files, measure, and report; 1 if a case failed or was wrong."""
    cache = (arguments.cache or folder).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    samples = [
        make_sample(cache, n_events, stacks=stacks)
        for n_events in arguments.events
        for stacks in arguments.stacks
    ]
    if arguments.real:
        samples += [repeat_real(cache, arguments.real, n_events) for n_events in arguments.events]
    results = measure_all(samples, arguments.repeat, folder)
    print("\n".join(table_lines(results, arguments.repeat)))
    if arguments.json:
        document = {
            "environment": environment(),
            "repeat": arguments.repeat,
            "statistic": "minimum",
            "results": [asdict(result) for result in results],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(any(result.failure is not None or result.is_correct is False for result in results))


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure conversions against a bare pickle.load.")
    parser.add_argument(
        "--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N"
    )
    parser.add_argument("--stacks", nargs="*", choices=("all", "python"), default=["all", "python"])
    parser.add_argument(
        "--real", type=Path, metavar="SNAPSHOT", help="repeat the trace of this one, too"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of every case (default: 3)")
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps the generated files for the next time"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures here, too")
    arguments = parser.parse_args()
    if arguments.repeat < 1:
        parser.error("--repeat must be 1 or more")
    with tempfile.TemporaryDirectory(prefix="snapconv-bench-") as folder:
        return bench(arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
