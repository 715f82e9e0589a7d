"""No command shows a negative amount of memory or a share above 100 %, and none fails, on any input.

The inputs are histories of the allocator with and without their segments, fixtures, recordings of
the corpus where it is present, traces with a table emptied, and a trace with its numbers at their
bounds.
"""

import copy
import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from snapconv import session
from tests.builders import ADDR, MIB, START_US, TraceBuilder, frame, write_anew
from tests.drawn_inputs import drawn
from tests.every_command import problems
from tests.metadata_builder import memory_row, metadata, parameter, phase
from tests.property.histories import histories

ROOT = Path(__file__).parents[2]
TORCH = "/venv/lib/python3.11/site-packages/torch"
STEP = [frame("_single_tensor_sgd", f"{TORCH}/optim/sgd.py", 300), frame("main", line=30)]
FORWARD = [frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500), frame("main", line=20)]
every_fixture = sorted((ROOT / "fixtures").glob("*.pickle"))
# Those that all commands read in seconds.
corpus = [
    path
    for path in sorted((ROOT.parent / "shared" / "corpus").rglob("*.pickle.xz"))
    if path.stat().st_size < 40 << 10
]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """What is wrong with any output of a snapshot; all commands share one reading of its file."""
    from fuzzing.limited_try import share_readings  # type: ignore[import-not-found]

    folder, outputs = tmp_path_factory.mktemp("inputs"), tmp_path_factory.mktemp("outputs")

    def wrong(snapshot: Any) -> list[str]:
        file = snapshot
        if not isinstance(snapshot, Path):
            file = folder / "s.pickle"
            write_anew(file, pickle.dumps(snapshot))
        return list(problems(file, outputs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "load", session.load)
        share_readings()
        yield wrong


def training() -> dict[str, Any]:
    """Two steps of a small program with all that a snapshot and its recorder may have."""
    builder = (
        TraceBuilder().segment().segment(20 * MIB).alloc(4096, frames=[frame("build", line=5)])
    )
    for iteration in range(3):
        builder.alloc(3 * MIB, frames=FORWARD).alloc(512, frames=FORWARD).free().free(
            frames=FORWARD
        )
        builder.alloc(512, frames=STEP, time_us=START_US + 20 + 10 * iteration).free(frames=STEP)
    builder.alloc(MIB).free(completed=False).oom(64 * MIB, MIB)
    recorded = metadata(
        parameters=[parameter("a.weight", ADDR, 4096, START_US + 3)],
        gradients=[memory_row(ADDR, 512, START_US + 4, parameter=0, iteration=0)],
        optimizer_states=[memory_row(ADDR, 512, START_US + 5, parameter=0, state="exp_avg")],
        inputs=[memory_row(ADDR, 512, START_US + 6, iteration=0, shape=[2, 64], dtype="float32")],
        saved=[memory_row(ADDR, 512, START_US + 6, iteration=0, module="a")],
        phases=[phase("forward", START_US, START_US + 9), phase("backward", START_US + 10, None)],
        iterations=[{"iteration": 0, "kind": "memory", "began_us": START_US, "ended_us": None}],
        devices=[{"device": 0, "name": "GPU", "total_bytes": 32 * MIB}],
    )
    return builder.snapshot(snapconv=recorded)


def trace_of(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return snapshot["device_traces"][0]


def without_actions(snapshot, *starts):
    trace_of(snapshot)[:] = [
        event for event in trace_of(snapshot) if not event["action"].startswith(starts)
    ]


def without_stacks(snapshot):
    for event in trace_of(snapshot):
        event["frames"] = []
    for block in (block for segment in snapshot["segments"] for block in segment["blocks"]):
        block["frames"] = []


EMPTIED = {
    "events": lambda raw: trace_of(raw).clear(),
    "devices": lambda raw: raw["device_traces"].clear(),
    "allocations": lambda raw: without_actions(raw, "alloc"),
    "frees": lambda raw: without_actions(raw, "free"),
    "requested frees": lambda raw: without_actions(raw, "free_requested"),
    "completed frees": lambda raw: without_actions(raw, "free_completed"),
    "all but frees": lambda raw: without_actions(raw, "alloc", "segment", "oom"),
    "segment events": lambda raw: without_actions(raw, "segment"),
    "stacks": without_stacks,
    "segments": lambda raw: raw["segments"].clear(),
    ("segments and their "
    "events"): lambda raw: (raw["segments"].clear(), without_actions(raw, "segment")),
    "segments and allocations": lambda raw: (raw["segments"].clear(), without_actions(raw, "alloc")),
    "blocks": lambda raw: [segment["blocks"].clear() for segment in raw["segments"]],
    "everything": lambda raw: (raw["segments"].clear(), trace_of(raw).clear()),
    "metadata": lambda raw: raw.pop("snapconv"),
    "iterations": lambda raw: (raw["snapconv"]["iterations"].clear(), without_stacks(raw)),
    **{f"all but event {n}": lambda raw, n=n: trace_of(raw).__setitem__(slice(None), trace_of(raw)[n:][:1])
       for n in (0, 2, -2, -1)},
    **{f"recorded {key}": lambda raw, key=key: raw["snapconv"][key].clear()
       for key in ("parameters", "gradients", "optimizer_states", "inputs", "saved", "phases", "iterations")},
}  # fmt: skip


@pytest.mark.parametrize("table", EMPTIED)
def test_every_command_answers_where_a_table_is_empty(table, wrong):
    snapshot = training()
    if table == "recorded parameters":  # rows of the others point to them
        snapshot["snapconv"]["gradients"], snapshot["snapconv"]["optimizer_states"] = [], []
    EMPTIED[table](snapshot)
    assert wrong(snapshot) == []


@given(history=histories())
@settings(deadline=None, derandomize=True, max_examples=drawn(12))
def test_histories_have_possible_amounts_with_their_segments_and_without(history, wrong):
    assert wrong(history.snapshot) == []
    assert wrong({**history.snapshot, "segments": []}) == []


@pytest.mark.parametrize(
    "fixture", every_fixture[:: 6 if drawn(3) == 1 else 1], ids=lambda path: path.stem
)
def test_fixtures_have_possible_amounts(fixture, wrong):
    assert wrong(fixture) == []


@pytest.mark.skipif(not corpus, reason="the recordings are not here")
@pytest.mark.parametrize(
    "recording", corpus[:: 20 if drawn(3) == 1 else 4], ids=lambda path: path.stem
)
def test_recordings_have_possible_amounts_also_without_their_segments(recording, wrong):
    snapshot = pickle.loads(lzma.decompress(recording.read_bytes()))
    assert wrong(snapshot) == []
    assert wrong({**snapshot, "segments": []}) == []


# Bounds of what the reader takes, and numbers that contradict the others.
NUMBERS = (0, 1, -1, 511, 3 * MIB, (1 << 48) - 1, 1 << 48, 1 << 60, (1 << 62) - 1, -(1 << 62))


def numbers_of(value: Any, path: tuple = ()) -> list[tuple]:
    """The places of all numbers in nested containers, of frames none."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [numbers_of(one, (*path, key)) for key, one in items if key != "frames"]
        return [place for places in inner for place in places]
    return [path] if type(value) is int else []


PLACES = numbers_of(training())


@pytest.mark.parametrize("start", range(0, len(PLACES), 40))
def test_a_number_at_any_bound_gives_possible_amounts_or_an_error(start, wrong):
    for number, path in list(enumerate(PLACES))[start : start + 40 : 20 if drawn(3) == 1 else 1]:
        snapshot: Any = copy.deepcopy(training())
        holder = snapshot
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = NUMBERS[(number * 7 + start) % len(NUMBERS)]
        assert wrong(snapshot) == []
