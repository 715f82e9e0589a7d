"""Measure what converting a snapshot costs, against a bare ``pickle.load`` of the same file.

    python scripts/bench/run.py --events 100000 1000000 --stacks all python --cache FOLDER
    python scripts/bench/run.py --events 1000000 --stacks --real SNAPSHOT      # its trace, repeated
    python scripts/bench/run.py --cases info advise --peer "theirs=/opt/bin/theirs import {file}"

Every measurement is a process of its own: wall seconds from its start to its end, and its seconds
of the processor and peak resident memory as the kernel counted them. Where torch is installed, its
own ``_memory_viz`` is measured too. Needs a POSIX system.
"""

import argparse
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
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
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=silence)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - start
processor_seconds = usage.ru_utime + usage.ru_stime
print(seconds, processor_seconds, usage.ru_maxrss, os.waitstatus_to_exitcode(status))
"""
BARE_LOAD, IMPORTS = "bare load", "imports alone"
LOAD_PROGRAM = """
import gc, pickle, sys
gc.disable()
with open(sys.argv[1], "rb") as file:
    pickle.load(file)
"""
# A request that fails at the end of the trace; the sizes are those of the generator's device.
FAILING_PROGRAM = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
trace = snapshot["device_traces"][0]
last = next(event for event in reversed(trace) if event["action"] == "alloc")
failed = {**last, "action": "oom", "device_free": 64 << 20, "size": 4 << 30}
del failed["addr"]
trace.append(failed)
with open(sys.argv[2], "wb") as file:
    pickle.dump(snapshot, file, 4)
"""
# {file}, {failing} (the file with a request that fails), {output} and {other} are filled in. An
# {output} is a report, and checked against the truth.
COMMANDS: dict[str, tuple[str, ...]] = {
    BARE_LOAD: ("-c", LOAD_PROGRAM, "{file}"),
    # What no conversion does without, and which a small file is compared with.
    IMPORTS: ("-c", "import numpy, typer, orjson, sqlite3"),
    "info": ("-m", "snapconv", "info", "{file}"),
    "to-sqlite": ("-m", "snapconv", "to-sqlite", "{file}", "-o", "{output}", "--force", "-q"),
    "to-sqlite --extended": (
        *("-m", "snapconv", "to-sqlite", "{file}", "-o", "{output}", "--extended", "--force", "-q"),
    ),
    "what-if --search": ("-m", "snapconv", "what-if", "--search", "{file}"),
    "advise": ("-m", "snapconv", "advise", "{file}"),
    "oom": ("-m", "snapconv", "oom", "{failing}"),
    "export": ("-m", "snapconv", "export", "{file}", "-o", "{other}", "--force"),
    "view": ("-m", "snapconv", "view", "{file}", "-o", "{other}", "--force"),
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
    processor_seconds: float
    peak_rss_bytes: int
    is_correct: bool | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A case, one command on one file, over its runs; ``is_correct`` is None without a check.

    Seconds and ``peak_rss_bytes`` are minima, which other work on the machine disturbs least.
    """

    command: str
    stacks: str
    events: int
    file_bytes: int
    seconds: float | None = None
    median_seconds: float | None = None
    processor_seconds: float | None = None
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


def failing_file(sample: Sample) -> Path:
    """Make the file with a request that fails, or take the one that lies beside it."""
    path = sample.path.with_suffix(".oom.pickle")
    if not path.exists():
        program = [sys.executable, "-c", FAILING_PROGRAM, str(sample.path), str(path)]
        subprocess.run(program, check=True)
    return path


def torchs_commands() -> dict[str, tuple[str, ...]]:
    """Return the commands of torch's own reader of snapshots; none where torch is not installed."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return {}
    program = str(Path(torch.origin).parent / "cuda" / "_memory_viz.py")
    return {
        "torch: stats": (sys.executable, program, "stats", "{file}"),
        "torch: trace_plot": (sys.executable, program, "trace_plot", "{file}", "-o", "{other}"),
    }


def run_process(arguments: Sequence[str]) -> Run:
    """Run a program, and return its seconds and peak resident bytes."""
    wrapped = [sys.executable, "-I", "-S", "-c", WRAPPER_PROGRAM, *arguments]
    # As when it is installed: compiled modules are kept.
    environment = {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    }
    wrapper = subprocess.run(
        wrapped, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", errors="replace"
    )
    *figures, exit_code = wrapper.stdout.split() or ["unknown"]
    if exit_code != "0":
        lines = [line.strip() for line in wrapper.stderr.split("\n") if line.strip()]
        tail = " | ".join(lines[-STDERR_TAIL_LINES:])
        raise CommandFailed(f"exit code {exit_code}: {tail or 'nothing on stderr'}")
    seconds, processor_seconds, peak_rss = map(float, figures)
    return Run(seconds, processor_seconds, int(peak_rss) * MAXRSS_UNIT_BYTES)


def peak_in_report(path: Path) -> int | None:
    """Read the peak from a report, or None if it has none."""
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(PEAK_QUERY).fetchone()
    return None if row is None else int(row[0])


def measure(program: Sequence[str], sample: Sample, folder: Path) -> Run:
    """Run a command on a file once, and check its report if it writes one."""
    output = folder / "report.sqlite"
    names = {"{file}": sample.path, "{output}": output, "{other}": folder / "other"}
    if "{failing}" in program:
        names["{failing}"] = failing_file(sample)
    arguments = [str(names.get(argument, argument)) for argument in program]
    for path in (output, folder / "other"):
        path.unlink(missing_ok=True)
    run = run_process(arguments)
    if "{output}" not in program:
        return run
    try:
        peak = peak_in_report(output)
        known = sample.peak_allocated_bytes
        is_correct = None if known is None else peak == known
    except sqlite3.Error as error:
        raise CommandFailed(f"no readable report: {error}") from error
    return replace(run, is_correct=is_correct)


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
        processor_seconds=min(run.processor_seconds for run in runs),
        peak_rss_bytes=min(run.peak_rss_bytes for run in runs),
        is_correct=all(checks) if checks else None,
    )


def measure_all(
    programs: Mapping[str, Sequence[str]],
    samples: Sequence[Sample],
    n_repeats: int,
    folder: Path,
) -> list[Result]:
    """Run every case in turn, all of them again, and so on; a case that fails is not run again."""
    cases = [(command, sample) for sample in samples for command in programs]
    runs: dict[tuple[str, Sample], list[Run]] = {case: [] for case in cases}
    failures: dict[tuple[str, Sample], str] = {}
    for n_round in range(1, n_repeats + 1):
        print(f"round {n_round} of {n_repeats}", file=sys.stderr)
        for command, sample in cases:
            if (command, sample) in failures:
                continue
            try:
                runs[command, sample].append(measure(programs[command], sample, folder))
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
    seconds, processor_seconds = result.seconds, result.processor_seconds
    peak_rss_bytes = result.peak_rss_bytes
    if not (seconds and processor_seconds and peak_rss_bytes):
        return "| " + " | ".join([*cells, *["–"] * 8, "failed"]) + " |"
    ratios = ["–"] * 3
    if bare and bare.seconds and bare.processor_seconds and bare.peak_rss_bytes:
        shares = (
            seconds / bare.seconds,
            processor_seconds / bare.processor_seconds,
            peak_rss_bytes / bare.peak_rss_bytes,
        )
        ratios = [f"{share:.2f}" for share in shares]
    verdict = {None: "–", True: "yes", False: "NO"}[result.is_correct]
    cells += [f"{seconds:.2f}", f"{result.median_seconds:.2f}", ratios[0]]
    cells += [f"{processor_seconds:.2f}", ratios[1], f"{peak_rss_bytes / 2**20:.0f}", ratios[2]]
    return "| " + " | ".join([*cells, f"{seconds / result.events * 1e6:.2f}", verdict]) + " |"


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
        "processor",
        "× bare load",
        "peak MiB",
        "× bare load",
    )
    yield "| " + " | ".join((*columns, "µs/event", "correct")) + " |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    bare = {(r.events, r.stacks): r for r in results if r.command == BARE_LOAD}
    for result in results:
        yield table_row(result, bare.get((result.events, result.stacks)))
    for result in results:
        if result.failure is not None:
            case = f"{result.command}, {result.events} events, stacks={result.stacks}"
            yield f"\nfailed: {case}: {result.failure}"


def chosen_programs(
    cases: Sequence[str], peers: Sequence[str]
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the commands to measure, and their names; a peer is NAME=COMMAND."""
    for case in cases:
        yield case, (sys.executable, *COMMANDS[case])
    yield from torchs_commands().items()
    for peer in peers:
        name, _, command = peer.partition("=")
        yield name, shlex.split(command)


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
    programs = dict(chosen_programs(arguments.cases, arguments.peer))
    results = measure_all(programs, samples, arguments.repeat, folder)
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
    parser.add_argument("--cases", nargs="+", choices=tuple(COMMANDS), default=list(COMMANDS))
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="measure another program, which gets {file} and may write {other}; may be repeated",
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
