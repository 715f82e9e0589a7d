"""Files of a small job: every rank has a model of 10 MiB and activations of 4 MiB, and what a test adds."""

import pickle
from pathlib import Path
from typing import Any

from tests.builders import MIB, TraceBuilder, frame

MODEL, FORWARD, LEAK = (
    "/home/me/project/model.py",
    "/home/me/project/net.py",
    "/home/me/project/leak.py",
)


def rank_trace(
    *, leak: int = 0, forward: int = 4 * MIB, free_at_oom: int | None = None
) -> TraceBuilder:
    """One rank's trace; ``leak`` bytes are allocated at leak.py:7, ``free_at_oom``: memory runs out there."""
    trace = TraceBuilder().segment(64 * MIB)
    trace.alloc(10 * MIB, frames=[frame("build", MODEL, 12), frame()])
    trace.alloc(forward, frames=[frame("forward", FORWARD, 35), frame()])
    if leak:
        trace.alloc(leak, frames=[frame("log", LEAK, 7), frame()])
    if free_at_oom is not None:
        trace.event(
            "oom",
            size=80 * MIB,
            device_free=free_at_oom,
            frames=[frame("forward", FORWARD, 36), frame()],
        )
    return trace


def write_rank(path: Path, trace: TraceBuilder | None = None, **fields: Any) -> Path:
    """Write a rank's snapshot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((trace or rank_trace()).snapshot(**fields)))
    return path


def write_job(folder: Path, n_ranks: int, *, leaks: dict[int, int] | None = None) -> list[Path]:
    """Write ``rankN.pickle`` for every rank; some leak so many bytes."""
    leak = leaks or {}
    return [
        write_rank(folder / f"rank{rank}.pickle", rank_trace(leak=leak.get(rank, 0)))
        for rank in range(n_ranks)
    ]
