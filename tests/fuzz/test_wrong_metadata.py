"""Whatever stands under the key ``snapconv``: the snapshot is read and analysed, with or without it."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from snapconv.analysis import analyze_device
from snapconv.answers.memory_report import build_memory_report
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.project_frames import find_project
from snapconv.stacks.stack_facts import StackFacts
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.drawn_inputs import drawn
from tests.metadata_builder import memory_row, metadata, parameter, phase

WHOLE = metadata(
    simulated={"not_modelled": ["everything"]},
    parameters=[
        parameter("a.weight", ADDR, 512, START_US + 2, frames=[frame()]),
        parameter("a.mean", ADDR + 512, 512, START_US + 3, kind="buffer"),
    ],
    gradients=[memory_row(ADDR + 1024, 512, START_US + 4, parameter=0, iteration=0)],
    optimizer_states=[memory_row(ADDR + 1536, 512, START_US + 5, parameter=0, state="exp_avg")],
    inputs=[
        memory_row(ADDR + 2048, 512, START_US + 6, iteration=0, shape=[2, 64], dtype="float32")
    ],
    saved=[memory_row(ADDR + 2048, 512, START_US + 6, iteration=0, module="a")],
    phases=[phase("forward", START_US, START_US + 3), phase("backward", START_US + 4, None)],
    iterations=[{"iteration": 0, "kind": "memory", "began_us": START_US, "ended_us": None}],
    devices=[{"device": 0, "name": "GPU", "max_memory_allocated": 3072}],
)
ODD = [None, True, -1, 1 << 31, (1 << 62) + 1, 1.5, "", "\ud800", [], [None], {}, {1: 2}]


def paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Every place in nested containers, the whole included."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(path: tuple, value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(WHOLE)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


def write(raw_metadata: Any, file):
    builder = TraceBuilder().segment()
    for _ in range(6):
        builder.alloc(512)
    return builder.free().write(file, snapconv=raw_metadata)


def analyse(file):
    snapshot = load_snapshot(file)
    project = find_project(snapshot.stacks, recorded=snapshot.recorded_project)
    for device in snapshot.devices:
        build_memory_report(analyze_device(snapshot, device, StackFacts(snapshot.stacks, project)))
    return snapshot


PATHS = list(paths(WHOLE))
# In a plain run every place gets a third of the values, in turn.
STEP = len(ODD) // drawn(len(ODD))


@pytest.mark.parametrize(
    ("place", "path"),
    list(enumerate(PATHS)),
    ids=[".".join(map(str, path)) or "whole" for path in PATHS],
)
def test_any_value_in_any_place_is_read_or_left_out(place, path, tmp_path):
    for number, odd in enumerate(ODD[place % STEP :: STEP]):
        snapshot = analyse(write(replaced(path, odd), tmp_path / f"{number}.pickle"))
        left_out = any(note.slug == "metadata-left-out" for note in snapshot.notes)
        assert snapshot.metadata is None if left_out else snapshot.metadata or not path


def test_what_is_right_is_read(tmp_path):
    snapshot = analyse(write(WHOLE, tmp_path / "s.pickle"))
    assert [note.slug for note in snapshot.notes] == ["simulated"]
    assert snapshot.metadata.parameters.names == ("a.weight", "a.mean")


@pytest.mark.parametrize("text", ["module", "name"])
def test_entries_that_are_many_times_the_file_are_left_out(tmp_path, text):
    """A pickle repeats an entry, or a text in it, for two bytes."""
    one = parameter("w", ADDR, 512, START_US + 2) | {text: "m" * 2000}
    for rows in ([one] * 50_000, [{**one} for _ in range(5000)]):
        snapshot = analyse(write(metadata(parameters=rows), tmp_path / "s.pickle"))
        assert snapshot.metadata is None
        (note,) = (note for note in snapshot.notes if note.slug == "metadata-left-out")
        assert "many times the size of the file" in note.message


def test_entries_with_texts_of_their_own_are_read(tmp_path):
    rows = [parameter(f"{i}" + "w" * 1900, ADDR, 512, START_US + 2) for i in range(2000)]
    snapshot = analyse(write(metadata(parameters=rows), tmp_path / "s.pickle"))
    assert len(snapshot.metadata.parameters.names) == 2000
