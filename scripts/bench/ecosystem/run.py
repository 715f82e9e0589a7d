"""What recording costs the programs of tests/ecosystem, and whether both modes of the simulation agree.

    python scripts/bench/ecosystem/run.py                      all programs, as tables; needs their
    libraries
    python scripts/bench/ecosystem/run.py nanogpt lightning    some
    python scripts/bench/ecosystem/run.py --write              and into results.json, for the docs

Every program runs in three ways, each a fresh process: plainly on the CPU, recorded with
--simulate, and recorded with --simulate --no-compute. Its seconds are those that the processor
worked for it in user mode. One run of each is the default, since all of them take ten minutes;
--repeat takes more in turn, and keeps the least of each figure. Ends with 1 where a recording
fails. Needs a POSIX system.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.ecosystem.plain import copy_for_the_cpu, plain_environment  # noqa: E402  # the root is on the path only now
from scripts.bench.ecosystem.tables import markdown  # noqa: E402
from tests.ecosystem.catalogue import MODES, PROGRAMS, Program  # noqa: E402
from tests.ecosystem.recorded_program import OFFLINE, Recorded, Run, copy_program  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "lightning", "diffusers", "timm")
PLAIN = "plain"
WAYS = (PLAIN, *MODES)
TIMEOUT_S = 900
# Linux counts ru_maxrss in KiB, macOS in bytes.
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024
# The kernel counts a process's peak from that of the process that started it (Linux does so over
# exec), so a bare interpreter stands between: it is smaller than anything that is measured.
WRAPPER_PROGRAM = """
import json, os, sys
how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
names = {1: "stdout.txt", 2: "stderr.txt"}
files = [(os.POSIX_SPAWN_OPEN, number, name, how, 0o644) for number, name in names.items()]
child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ, file_actions=files)
_, status, usage = os.wait4(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime, usage.ru_stime, usage.ru_maxrss]))
"""
# Figures of which the least of several runs is kept.
LEAST = ("user_s", "system_s", "peak_rss_bytes", "later_steps_s")

Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and with --write keep the figures."""
    parser = argparse.ArgumentParser(
        description="Measure what recording costs the ecosystem's programs."
    )
    parser.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help="by default all that can run here"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs of each, of which the least counts"
    )
    parser.add_argument("--write", action="store_true", help="keep the figures in results.json")
    options = parser.parse_args(arguments)
    named = {program.name: program for program in PROGRAMS}
    if unknown := set(options.programs) - set(named):
        parser.error(
            f"there is no program {', '.join(sorted(unknown))}: choose of {', '.join(named)}"
        )
    chosen = [named[name] for name in options.programs] or list(PROGRAMS)
    measured = dict(_measured(chosen, options.repeat))
    found = {"about": _about(), "n_runs": options.repeat, "programs": measured}
    print(markdown(found))
    if options.write:
        _keep(found)
    return int(any(_has_failed(figures) for figures in measured.values()))


def _measured(programs: Sequence[Program], n_runs: int) -> Iterator[tuple[str, Figures]]:
    for program in programs:
        try:
            __import__(program.needs or "torch")
        except (ImportError, RuntimeError) as error:
            print(
                f"{program.name}: left out, {program.needs} does not import: {error}",
                file=sys.stderr,
            )
            continue
        print(program.name, file=sys.stderr, flush=True)
        runs = [{way: _run(program, way) for way in WAYS} for _ in range(n_runs)]
        yield program.name, {way: _least([run[way] for run in runs]) for way in WAYS}


def _run(program: Program, way: str) -> Figures:
    """Run a program once in one way, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="snapconv-bench-") as temporary:
        folder = Path(temporary) / program.path.parent.name
        if way == PLAIN:
            copy_for_the_cpu(program, folder)
            command, environment = (
                [program.path.name, *program.arguments],
                plain_environment(program),
            )
        else:
            copy_program(program, folder)
            recording = ["-m", "snapconv", "record", *MODES[way], "-o", "it.capture"]
            command, environment = (
                [*recording, program.path.name, *program.arguments],
                program.environment,
            )
        run, figures = _process(command, folder, environment)
        if run.code != 0:
            return {
                **figures,
                "failure": next(iter(run.err.splitlines()[::-1]), f"exit code {run.code}"),
            }
        return figures if way == PLAIN else {**figures, **_of_report(Recorded(run, folder))}


def _process(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[Run, Figures]:
    """Run Python in a folder, and say what it took."""
    wrapped = [sys.executable, "-I", "-S", "-c", WRAPPER_PROGRAM, *command]
    variables = {**os.environ, **OFFLINE, **environment}
    process = subprocess.Popen(
        wrapped,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Run(-1, "", f"not done after {TIMEOUT_S} s", 0), {}
    code, user_s, system_s, max_rss = json.loads(said)
    out, err = (
        (folder / name).read_text(encoding="utf-8") for name in ("stdout.txt", "stderr.txt")
    )
    run = Run(code, out, err, user_s)
    return run, {
        "user_s": round(user_s, 2),
        "system_s": round(system_s, 2),
        "peak_rss_bytes": max_rss * MAXRSS_UNIT_BYTES,
        **_of_steps(run),
    }


def _of_steps(run: Run) -> Figures:
    """Count the steps that a program made, and what all but the first took."""
    used = [count["cpu_s"] for count in run.own_counts]
    return {"n_steps": len(used), "later_steps_s": round(used[-1] - used[0], 3) if used else None}


def _of_report(recorded: Recorded) -> Figures:
    return {
        "peak_bytes": recorded.peak_bytes,
        "unknown_bytes": recorded.at_peak("unknown")["block_bytes"],
        "notes": sorted({note["slug"] for note in recorded.memory["notes"]}),
    }


def _least(runs: Sequence[Figures]) -> Figures:
    """Keep the least of each figure that other work on the machine disturbs, and the rest of the last run."""
    if any("failure" in run for run in runs):
        return next(run for run in runs if "failure" in run)
    least = {key: min(run[key] for run in runs) for key in LEAST if runs[0].get(key) is not None}
    return {**runs[-1], **least}


def _has_failed(figures: Figures) -> bool:
    return any("failure" in figures[mode] for mode in MODES)


def _about() -> Figures:
    """Say what the figures depend on; nothing that names the machine."""
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _keep(found: Figures) -> None:
    """Write the figures, beside those of programs that were measured before and not now."""
    before = json.loads(RESULTS.read_text(encoding="utf-8"))
    known = {**before["programs"], **found["programs"]}
    in_order = {program.name: known[program.name] for program in PROGRAMS if program.name in known}
    versions = {**before["about"]["versions"], **found["about"]["versions"]}
    kept = {**found, "about": {**found["about"], "versions": versions}, "programs": in_order}
    RESULTS.write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")
    print(
        f"wrote {RESULTS.relative_to(ROOT)}; now run: python scripts/make_docs.py", file=sys.stderr
    )


if __name__ == "__main__":
    sys.exit(main())
