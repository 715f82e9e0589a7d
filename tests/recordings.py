"""Entries recorded by the command line, in this process or one of their own, and what came of it.

    python -m tests.recordings record cnn train FOLDER --simulate
    python -m tests.recordings watch cnn train FOLDER --simulate

The first makes a recording, the second has torch's own history watch the same steps, without
snapconv.
"""

import json
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from snapconv.cli.app import main
from tests.entries import ENTRIES, FOLDER, Step, arguments_of, file_of, forget_entry, run, witness

# Run the tests of tests/gpu with a simulated GPU: a rehearsal of the tests themselves.
IS_REHEARSAL = os.environ.get("SNAPCONV_REHEARSE") == "1"

# The iterations of a recording whose memory is in its snapshot, by default.
N_MEMORY_STEPS = 2


@dataclass(frozen=True)
class Recording:
    """A recording that is over, and the steps that a witness saw meanwhile."""

    entry: str
    kind: str
    capture: Path
    code: int
    said: str
    steps: tuple[Step, ...]

    @property
    def snapshot(self) -> dict[str, Any]:
        values: dict[str, Any] = pickle.loads((self.capture / "snapshot.pickle").read_bytes())
        return values

    @property
    def metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = self.snapshot["snapconv"]
        return values

    @property
    def timing(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads((self.capture / "timing.json").read_bytes())
        return values


def record(
    entry: str,
    kind: str,
    folder: Path,
    *,
    options: Sequence[str] = ("--simulate",),
    batch_size: int | None = None,
) -> Recording:
    """Record an entry into ``folder/NAME.capture``, in this process."""
    import torch

    capture = folder / f"{entry}_{kind}.capture"
    arguments = [str(file_of(entry, kind)), *arguments_of(kind, batch_size)]
    if kind == "providers":
        arguments.append(arguments.pop(0))  # their batch size is our option
    where = ["--output", str(capture), "--project-root", str(FOLDER / entry)]
    said = StringIO()
    torch.manual_seed(0)
    forget_entry()
    with witness() as steps, redirect_stdout(StringIO()), redirect_stderr(said):
        code = main(["record", *options, *where, *arguments])
    forget_entry()
    return Recording(entry, kind, capture, code, said.getvalue(), tuple(steps))


@dataclass(frozen=True)
class Watched:
    """What torch alone says of the steps whose memory a recording holds, and what a witness saw in all."""

    sequence: list[tuple[Any, ...]]
    max_memory_allocated: int
    steps: tuple[Step, ...]


def watch(
    entry: str, kind: str, *, is_simulated: bool = True, batch_size: int | None = None
) -> Watched:
    """Run an entry with nothing but torch's history on; a real GPU's addresses are left out."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: list[tuple[dict[str, Any], int]] = []
    n_steps = 0

    def note(*_: object) -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == N_MEMORY_STEPS:
            seen.append((torch.cuda.memory._snapshot(), torch.cuda.max_memory_allocated()))
            torch.cuda.memory._record_memory_history(enabled=None)

    with _simulated() if is_simulated else nullcontext():
        hook = register_optimizer_step_post_hook(note)
        torch.cuda.memory._record_memory_history(stacks="python")
        try:
            steps = run(entry, kind, batch_size=batch_size)
        finally:
            hook.remove()
    ((snapshot, peak),) = seen
    return Watched(sequence(snapshot, with_addresses=is_simulated), peak, steps)


def _simulated() -> Any:
    from snapconv.simulation import SimulationOptions, simulated

    return simulated(SimulationOptions())


def sequence(snapshot: dict[str, Any], *, with_addresses: bool) -> list[tuple[Any, ...]]:
    """What was allocated and freed, in order, but not when and from where.

    Frees without an allocation between them are sorted: autocast drops its cache of weights in the
    order of a hash table of pointers, which differs between any two runs.
    """
    trace = next(trace for trace in snapshot["device_traces"] if trace)
    keys = ("action", "size", "addr") if with_addresses else ("action", "size")
    events: list[tuple[Any, ...]] = []
    frees: list[tuple[Any, ...]] = []
    for event in trace:
        values = tuple(event.get(key) for key in keys)
        if event["action"].startswith("free"):
            frees.append(values)
        elif event["action"] != "snapshot":
            events += [*sorted(frees), values]
            frees.clear()
    return events  # without the frees after the last allocation: they belong to the next step


def coverage(timing: dict[str, Any]) -> tuple[float, float]:
    """The part of the measured forward and backward times that the rows account for."""
    calls = timing["calls"]
    forward = sum(
        ms
        for ms, phase in zip(calls["forward_ms"], calls["phase"], strict=True)
        if phase == "forward"
    )
    backward = sum(ms for ms in calls["backward_ms"] if ms is not None)
    return (
        forward / sum(iteration["forward_ms"] for iteration in timing["iterations"]),
        backward / sum(iteration["backward_ms"] for iteration in timing["iterations"]),
    )


@dataclass(frozen=True)
class Reports:
    """What ``to-sqlite --extended --json`` makes of a capture."""

    memory: Path
    time: Path | None
    values: dict[str, Any]

    def rows(self, sql: str, *, of: str = "memory") -> list[tuple[Any, ...]]:
        """Ask one of the reports."""
        path = getattr(self, of)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql).fetchall()


@cache
def convert(capture: Path) -> Reports:
    """Convert a capture where it lies, once."""
    said = StringIO()
    output = capture.with_suffix(".memory.sqlite")
    with redirect_stdout(said), redirect_stderr(StringIO()) as complained:
        code = main(
            ["to-sqlite", "--extended", "--json", "--force", "-o", str(output), str(capture)]
        )
    assert code == 0, complained.getvalue()
    (memory,) = capture.parent.glob(f"{capture.stem}*.memory.sqlite")
    times = list(capture.parent.glob(f"{capture.stem}*.time.sqlite"))
    return Reports(memory, times[0] if times else None, json.loads(said.getvalue()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: two of them wait for each other on a machine that is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _main(what: str, entry: str, kind: str, folder: str, *options: str) -> None:
    """Do what the arguments name; the results go to WHAT.json beside the capture."""
    import torch

    is_simulated, batch_size = "--simulate" in options, None
    if is_simulated:
        torch.set_num_threads(1)
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)
        batch_size = ENTRIES[entry].gpu_batch_size
    place = Path(folder)
    if what == "record":
        recording = record(entry, kind, place, options=options, batch_size=batch_size)
        values = {"code": recording.code, "said": recording.said, "steps": recording.steps}
    else:
        values = asdict(watch(entry, kind, is_simulated=is_simulated, batch_size=batch_size))
    (place / f"{what}.json").write_text(json.dumps(values), encoding="utf-8")


def in_a_process(what: str, entry: str, kind: str, folder: Path, *options: str) -> dict[str, Any]:
    """Do it in a process of its own, as a GPU's allocator and its counters are one for a process."""
    subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.recordings",
            what,
            entry,
            kind,
            folder,
            *options,
        ],
        cwd=FOLDER.parents[1],
        env={
            **os.environ,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        },  # without it cuBLAS may vary from run to run
        check=True,
        timeout=300,
    )
    values: dict[str, Any] = json.loads((folder / f"{what}.json").read_bytes())
    values["steps"] = tuple(Step(*map(tuple, step)) for step in values["steps"])
    return values


if __name__ == "__main__":
    _main(*sys.argv[1:])
