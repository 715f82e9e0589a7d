"""Record an entry on a simulated device: the snapshot, and everything that is known of its memory.

Names and purposes come from the recorder's observer; what it cannot see, the entry tells itself. Ranges in
which modules run inside of backward (a checkpoint computes again) are recorded by hooks of our own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from entries import ENTRIES
from setups import Known, Setup
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.recorder_clock import now_us
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.observe.record_rows import Row, shape_and_type, where_memory_lies
from snapconv.recorder.program import own_frames
from snapconv.recorder.simulation import SimulationOptions, simulated

Range = tuple[int, int]
_MAX_ENTRIES = 1_000_000
# What torch.compile makes of a program is simulated where nothing is computed.
WITHOUT_VALUES = frozenset(("compiled",))
# Of some entries only: next to models as small as these, the workspace of a GPU would be most of the memory.
WITH_WORKSPACE = frozenset(("cnn", "transformer", "amp"))
# A step of these is one word: where other entries have a step, a recording is cut between some of them.
STEPS_OF_A_PART = {"cached-inference": 4}
# torch's default before Hopper; no tensor of an entry has that size.
_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_WORKSPACE_CONFIG = ":4096:2:16:8"
WORKSPACE_BYTES = 8_519_680
_COPY_FRAME = {"name": "at::_ops::_to_copy::call(at::Tensor const&)", "filename": "??", "line": 0}


@dataclass(slots=True)
class Recording:
    """One run: torch's snapshot with the metadata in it, and times (us) on the clock of its trace.

    ``step_ends`` are the ends of steps at which it may be cut, ``recomputed`` the ranges of forward within
    backward.
    """

    raw: dict[str, Any]
    step_ends: list[int] = field(default_factory=list)
    recomputed: list[Range] = field(default_factory=list)


def record(entry: str, setup: Setup) -> Recording:
    """Run an entry from its first line on, with every event and all its stacks recorded.

    The snapshot is taken at the end of the last step, when everything is still in its place.
    """
    torch.manual_seed(0)
    recorded = Recording({})
    observer = Observer()
    with device_of(entry), _recomputation(recorded.recomputed):
        memory_history.start(stacks="all", context="all", max_entries=_MAX_ENTRIES)
        observer.start()
        try:
            _run(entry, setup, observer, recorded)
        finally:
            observer.stop()
            memory_history.stop()
    if observer.failure:
        raise observer.failure
    return recorded


@contextmanager
def device_of(entry: str) -> Iterator[None]:
    """Simulate an entry's device, with cuBLAS's workspaces as large as in the real snapshots."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = _WORKSPACE_CONFIG
    options = SimulationOptions(cublas_workspace=entry in WITH_WORKSPACE, compute=entry not in WITHOUT_VALUES)
    try:
        with simulated(options):
            yield
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before


def _run(entry: str, setup: Setup, observer: Observer, recorded: Recording) -> None:
    steps = ENTRIES[entry](setup)
    told: dict[str, list[Row]] = {"inputs": [], "optimizer_states": [], "saved": [], "parameters": []}
    for step in range(setup.n_steps):
        observer.iteration_began(step)
        known = own_frames.call_user(next, steps)
        observer.iteration_ended(step)
        _note(told, known, step)
        del known
        if (step + 1) % STEPS_OF_A_PART.get(entry, 1) == 0:
            recorded.step_ends.append(now_us())
    observer.stop()
    raw = memory_history.take_snapshot()
    metadata = observer.facts(raw)
    own_frames.clean_snapshot(raw)
    _complete_stacks(raw)
    for key, rows in told.items():
        metadata[key] = [*metadata[key], *rows]
    recorded.raw = {**raw, "snapconv": {"version": 1, **metadata}}


def _complete_stacks(raw: dict[str, Any]) -> None:
    """Add the functions that a GPU's stacks have, as of torch 2.5 to 2.7, and simulated ones have not."""
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    for holder in (*raw["device_traces"][0], *blocks):
        if holder.get("frames") and holder.get("action", "alloc") == "alloc":
            holder["frames"] = _with_call_of_copy(holder["frames"])


def _with_call_of_copy(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A copy to the device is called by at::native::to, where the simulation dispatches it itself."""
    names = [frame["name"] for frame in frames]
    if any(name.startswith("at::_ops::_to_copy::call") for name in names):
        return frames
    place = next(
        (i for i, name in enumerate(names) if "VariableType" in name and "::_to_copy(" in name), None
    )
    return frames if place is None else [*frames[: place + 1], _COPY_FRAME, *frames[place + 1 :]]


@contextmanager
def _recomputation(ranges: list[Range]) -> Iterator[None]:
    """Note when modules run while the engine does."""
    began: list[int] = []

    def before(*_: object) -> None:
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            began.append(now_us())

    def after(*_: object) -> None:
        if began:
            start = began.pop()
            if not began:
                ranges.append((start, now_us()))

    handles = register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(told: dict[str, list[Row]], known: Known, step: int) -> None:
    """Note where the tensors lie that an entry tells of."""
    for key, tensors in (
        ("inputs", known.inputs),
        ("optimizer_states", known.states),
        ("saved", known.activations),
        ("parameters", known.weights),
    ):
        for tensor in tensors:
            about = {"iteration": step, "name": "told", **shape_and_type(tensor)}
            told[key] += [about | row for row in where_memory_lies(tensor)]
