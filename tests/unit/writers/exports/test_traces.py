"""A trace has the figures of the file: counters at every event, slices where the program did something."""

import json
import pickle
from itertools import pairwise
from pathlib import Path

import pytest

import snapconv
from snapconv.classification.categories import Category
from snapconv.cli.app import main
from snapconv.writers.exports.protobuf_fields import number_field, packed_field, text_field, varint

FIXTURES = Path(__file__).parents[4] / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"


def exported(tmp_path, source, name):
    output = tmp_path / f"out.{name}"
    assert main(["export", str(source), "--format", name, "-o", str(output), "--quiet"]) == 0
    return output


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory):
    """The packets as Perfetto's own definitions read them."""
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace()
    trace.ParseFromString(exported(tmp_path_factory.mktemp("trace"), CAPTURE, "perfetto").read_bytes())
    return trace


def tracks(trace):
    """The names of tracks by their uuid, and the name of the process that each is below."""
    about = {
        p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")
    }
    return {
        uuid: (about[one.parent_uuid].process.process_name, one.name)
        for uuid, one in about.items()
        if one.parent_uuid
    }


def counter(trace, name):
    (uuid,) = [uuid for uuid, (_, track) in tracks(trace).items() if track == name]
    return [
        (p.timestamp, p.track_event.counter_value)
        for p in trace.packet
        if p.track_event.track_uuid == uuid and p.HasField("track_event")
    ]


def slices(trace, name):
    """Name, beginning and end of what is on the tracks of a name; a slice ends before the next begins."""
    found = []
    for uuid in [uuid for uuid, (_, track) in tracks(trace).items() if track == name]:
        events = [p for p in trace.packet if p.HasField("track_event") and p.track_event.track_uuid == uuid]
        for begin, end in zip(events[::2], events[1::2], strict=True):
            assert (begin.track_event.type, end.track_event.type) == (1, 2)
            found.append((begin.track_event.name, begin.timestamp, end.timestamp))
    return found


@pytest.mark.parametrize("name", ["allocated", "active", "reserved"])
def test_a_counter_has_every_change_of_a_curve_and_its_peak(perfetto, name):
    (analysis,) = snapconv.load(CAPTURE).devices
    curve = getattr(analysis.replay, name)
    found = counter(perfetto, f"{name} bytes")
    times = analysis.device.events.time_us.tolist()
    changed, before = [], curve.start
    for time, value in zip(times, curve.after.tolist(), strict=True):
        if value != before:
            changed.append((time * 1000, value))
        before = value
    assert found == [(times[0] * 1000, curve.start), *changed]
    assert max(value for _, value in found) == curve.peak


def test_the_categories_sum_to_the_allocated_bytes_at_the_peak(perfetto):
    (analysis,) = snapconv.load(CAPTURE).devices
    peak = analysis.peak_event
    live = analysis.allocations.live_at(peak)
    n_events = {}
    for category in Category:
        mine = analysis.classification.category == category
        if not mine.any():
            continue
        values = [value for _, value in counter(perfetto, f"allocated: {category.label}")]
        freed = analysis.allocations.freed_event[mine]
        allocs = analysis.allocations.alloc_event[mine]
        n_changes = int(((allocs >= 0) & (allocs <= peak)).sum() + ((freed >= 0) & (freed <= peak)).sum())
        n_events[category] = values[n_changes]
        assert values[n_changes] == analysis.allocations.block_bytes[mine & live].sum()
    assert sum(n_events.values()) == analysis.replay.allocated.peak


def test_iterations_phases_and_annotations_are_slices_at_the_times_of_their_events(perfetto):
    (analysis,) = snapconv.load(CAPTURE).devices
    times = analysis.device.events.time_us
    assert slices(perfetto, "iterations") == [
        (f"iteration {i}", int(times[one.first_event]) * 1000, int(times[one.last_event]) * 1000)
        for i, one in enumerate(analysis.iterations)
    ]
    names = [name for name, _, _ in slices(perfetto, "phases")]
    assert names == ["other", "forward", "backward", "optimizer", "other", "forward", "backward", "optimizer"]
    assert "Optimizer.step#AdamW.step" in {name for name, _, _ in slices(perfetto, "annotations")}


def test_operations_of_a_capture_have_their_measured_lengths_end_to_end(perfetto):
    timing = json.loads((CAPTURE / "timing.json").read_text())
    calls = [
        (name, ms)
        for name, phase, ms in zip(
            timing["calls"]["name"], timing["calls"]["phase"], timing["calls"]["forward_ms"], strict=True
        )
        if phase == "forward"
    ]
    found = slices(perfetto, "forward")
    assert [name for name, _, _ in found] == [name for name, _ in calls]
    # A time of 64 bits of floating point since 1970 is exact to a quarter of a microsecond.
    assert [(end - begin) / 1e6 for _, begin, end in found] == pytest.approx(
        [ms for _, ms in calls], abs=0.0006
    )
    assert all(one[2] == other[1] for one, other in pairwise(found))


def test_the_chrome_trace_has_the_same_counters_and_slices(tmp_path, perfetto):
    events = json.loads(exported(tmp_path, CAPTURE, "chrome").read_text())["traceEvents"]
    memory = [(e["ts"] * 1000, e["args"]["bytes"]) for e in events if e["name"] == "allocated bytes"]
    assert memory == counter(perfetto, "allocated bytes")
    (iterations,) = [e["tid"] for e in events if e["ph"] == "M" and e["args"]["name"] == "iterations"]
    shown = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (1, iterations)]
    assert [(e["name"], e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000) for e in shown] == slices(
        perfetto, "iterations"
    )


def test_a_failed_allocation_is_on_a_track_of_its_own(tmp_path):
    source = FIXTURES / "out_of_memory.pickle"
    events = json.loads(exported(tmp_path, source, "chrome").read_text())["traceEvents"]
    (trace,) = pickle.loads(source.read_bytes())["device_traces"]
    (failed,) = [event for event in trace if event["action"] == "oom"]
    (shown,) = [e for e in events if e["ph"] == "X" and e["name"].startswith("out of memory")]
    assert shown["ts"] == failed["time_us"]
    assert shown["name"] == f"out of memory: {failed['size'] / 2**20:.2f} MiB requested"


@pytest.mark.parametrize("name", ["missing_trace", "missing_times", "several_devices", "empty_snapshot"])
@pytest.mark.parametrize("format", ["perfetto", "chrome"])
def test_a_file_without_events_or_times_has_a_trace_too(tmp_path, name, format):
    assert exported(tmp_path, FIXTURES / f"{name}.pickle", format).stat().st_size > 0


@pytest.mark.parametrize(
    ("number", "content"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (-1, b"\xff" * 9 + b"\x01"),
    ],
)
def test_a_number_is_written_as_the_wire_format_has_it(number, content):
    # 300 is the example of protobuf's own documentation; -1 has ten bytes there.
    assert varint(number) == content


def test_a_field_has_its_number_its_kind_and_its_length():
    assert number_field(1, 150) == b"\x08\x96\x01"  # both are examples of protobuf's documentation
    assert text_field(2, "testing") == b"\x12\x07testing"
    assert packed_field(6, [3, 270, 86942]) == b"\x32\x06\x03\x8e\x02\x9e\xa7\x05"
    assert text_field(1, "\ud800") == b"\x0a\x06\\ud800"
