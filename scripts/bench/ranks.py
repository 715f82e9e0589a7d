"""Measure what reading the files of a whole job costs, beside bare ``pickle.load`` of the same files.

    python scripts/bench/ranks.py --ranks 1000 --events 20000 --cache FOLDER

Every line is a process of its own: its seconds, the processor seconds of it and its workers, its
peak memory, and that of its largest worker. ``bare load`` loads the files one after the other, in
as many processes as there are workers elsewhere. Files are links to a few generated ones, so that
no disk is measured. Needs a POSIX system.
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
N_DIFFERENT = 4

BARE = """
import gc, multiprocessing, pickle, resource, sys, time
from pathlib import Path
def load(paths):
    gc.disable()
    for path in paths:
        with open(path, "rb") as file:
            pickle.load(file)
if __name__ == "__main__":
    folder, n_workers = sys.argv[1], int(sys.argv[2])
    paths = sorted(Path(folder).glob("*.pickle"))
    began = time.perf_counter()
    parts = [multiprocessing.Process(target=load, args=(paths[n::n_workers],)) for n in range(n_workers)]
    for part in parts: part.start()
    for part in parts: part.join()
    seconds = time.perf_counter() - began
"""
RANKS = """
import resource, sys, time
from snapconv.ranks import workers
from snapconv.ranks.job import JobOptions, read_job
if __name__ == "__main__":
    folder, n_workers = sys.argv[1], int(sys.argv[2])
    if sys.argv[3] == "processes":
        workers.has_dask = lambda: False
    first = []
    began = time.perf_counter()
    def note(*_):
        if not first:
            first.append(time.perf_counter())
    report = read_job([folder], JobOptions(workers=n_workers), progress=note)
    seconds = time.perf_counter() - began
    assert len(report.last_dumps) == len(report.files)
    start = first[0] - began
"""
SHOWN = """
    unit = 1 if sys.platform == "darwin" else 1024
    every = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(who) for who in every]
    own, workers = (one.ru_maxrss * unit for one in used)
    print(seconds, own, workers, sum(one.ru_utime + one.ru_stime for one in used), locals().get("start", 0.0))
"""


def main() -> None:
    """Measure every case and print a table of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for generated files; kept"
    )
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} CPUs, CPython {platform.python_version()}, {options.events} events a "
        f"rank"
    )
    print(
        "| ranks | case | workers | seconds | until the first | processor seconds | parent MiB | "
        "worker MiB |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for n_ranks in (max(options.ranks // 10, 1), options.ranks):
        folder = make_job(options.cache, n_ranks, options.events)
        for case, n_workers in cases():
            seconds, own, worker, used, start = measured(folder, case, n_workers)
            figures = f"{seconds:.1f} | {start:.1f} | {used:.1f} | {own >> 20} | {worker >> 20}"
            print(f"| {n_ranks} | {case} | {n_workers} | {figures} |", flush=True)


def cases() -> Iterator[tuple[str, int]]:
    """Yield every case: what reads, and in how many processes."""
    for case in ("bare load", "processes", "dask"):
        yield from ((case, n_workers) for n_workers in (1, 2))


def measured(folder: Path, case: str, n_workers: int) -> tuple[float, int, int, float, float]:
    """Run one case in a process of its own."""
    program = (BARE if case == "bare load" else RANKS) + SHOWN
    script = (
        folder.parent / f"measure_{case.replace(' ', '_')}.py"
    )  # new processes import what started them
    script.write_text(program, encoding="utf-8")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(n_workers), case],
        # Bytecode is kept, as that of an installed package is.
        env={**kept, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")},
        stdout=subprocess.PIPE,
        check=True,
    )
    seconds, own, worker, used, start = done.stdout.split()
    return float(seconds), int(own), int(worker), float(used), float(start)


def make_job(cache: Path, n_ranks: int, n_events: int) -> Path:
    """Generate a few files, and link them as those of so many ranks."""
    folder = cache / f"job-{n_ranks}-{n_events}"
    folder.mkdir(parents=True, exist_ok=True)
    generated = []
    for seed in range(N_DIFFERENT):
        path = cache / f"{n_events}-{seed}.pickle"
        generated.append(path)
        if not path.exists():
            arguments = [
                "--events",
                str(n_events),
                "--stacks",
                "all",
                "--seed",
                str(seed),
                str(path),
            ]
            subprocess.run(
                [sys.executable, str(HERE / "generate.py"), *arguments],
                check=True,
                stdout=subprocess.DEVNULL,
            )
    for rank in range(n_ranks):
        link = folder / f"rank{rank}.pickle"
        if not link.exists():
            link.hardlink_to(generated[rank % N_DIFFERENT])
    return folder


if __name__ == "__main__":
    main()
