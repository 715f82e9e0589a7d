"""A trace has the figures of the file: counters at every event, slices where the program did something."""

import json
import pickle
from itertools import pairwise
from pathlib import Path

import pytest

import snapconv
from snapconv.classification.categories import Category
from snapconv.cli.app import main

FIXTURES = Path(__file__).parents[3] / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"


def exported(folder, source):
    output = folder / "out.json"
    assert main(["export", str(source), "-o", str(output), "--quiet"]) == 0
    return json.loads(output.read_text())["traceEvents"]


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("trace"), CAPTURE)


@pytest.fixture(scope="module")
def analysis():
    return snapconv.load(CAPTURE).devices[0]


def counter(events, name):
    return [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["name"] == name]


def slices(events, name):
    """Name, beginning and length of what is on the tracks of a name."""
    named = {"ph": "M", "name": "thread_name", "args": {"name": name}}
    tracks = {(e["pid"], e["tid"]) for e in events if named.items() <= e.items()}
    assert tracks
    return [
        (e["name"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) in tracks
    ]


@pytest.mark.parametrize("name", ["allocated", "active", "reserved"])
def test_a_counter_has_every_change_of_a_curve_and_its_peak(events, analysis, name):
    curve = getattr(analysis.replay, name)
    times, values = analysis.device.events.time_us.tolist(), [curve.start, *curve.after.tolist()]
    changed = [
        (times[i], after) for i, (before, after) in enumerate(pairwise(values)) if after != before
    ]
    found = counter(events, name)
    assert found == [(times[0], curve.start), *changed]
    assert max(value for _, value in found) == curve.peak


def test_the_categories_sum_to_the_allocated_bytes_at_the_peak(events, analysis):
    peak, rows, total = analysis.peak_event, analysis.allocations, 0
    for category in Category:
        mine = analysis.classification.category == category
        if mine.any():
            changes = [rows.alloc_event[mine], rows.freed_event[mine]]
            n_changes = sum(int(((column >= 0) & (column <= peak)).sum()) for column in changes)
            _, value = counter(events, f"allocated: {category.label}")[n_changes]
            assert value == rows.block_bytes[mine & rows.live_at(peak)].sum()
            total += value
    assert total == analysis.replay.allocated.peak


def test_iterations_phases_and_annotations_are_slices_at_the_times_of_their_events(
    events, analysis
):
    times = analysis.device.events.time_us
    assert slices(events, "iterations") == [
        (f"iteration {i}", times[one.first_event], times[one.last_event] - times[one.first_event])
        for i, one in enumerate(analysis.iterations)
    ]
    names = [name for name, _, _ in slices(events, "phases")]
    assert names == [
        "other",
        "forward",
        "backward",
        "optimizer",
        "other",
        "forward",
        "backward",
        "optimizer",
    ]
    assert "Optimizer.step#AdamW.step" in {name for name, _, _ in slices(events, "annotations")}


def test_a_failed_allocation_is_on_a_track_of_its_own(tmp_path):
    source = FIXTURES / "out_of_memory.pickle"
    (trace,) = pickle.loads(source.read_bytes())["device_traces"]
    (failed,) = [event for event in trace if event["action"] == "oom"]
    text = f"out of memory: {failed['size'] / 2**20:.2f} MiB requested"
    assert slices(exported(tmp_path, source), "out of memory") == [(text, failed["time_us"], 0)]


@pytest.mark.parametrize(
    "name", ["missing_trace", "missing_times", "several_devices", "empty_snapshot"]
)
def test_a_file_without_events_or_times_has_a_trace_too(tmp_path, name):
    assert exported(tmp_path, FIXTURES / f"{name}.pickle")
