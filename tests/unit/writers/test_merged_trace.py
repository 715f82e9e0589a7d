"""A trace of torch.profiler with the memory beside it: its events as they were, ours on its axis."""

import gzip
import json

import pytest

import snapconv
from snapconv.cli.app import main
from tests.builders import MIB, START_US, TraceBuilder

# In microseconds: an annotation of torch, which begins at 50 and ends at 90 of the trace's axis.
SPAN = {"ph": "X", "cat": "user_annotation", "name": "load", "pid": 7, "tid": 7}
LOAD = SPAN | {"ts": 50.25, "dur": 40.5}
MEMORY = {
    "ph": "i",
    "cat": "cpu_instant_event",
    "name": "[memory]",
    "pid": 1,
    "tid": 7,
    "ts": 60.125,
    "args": {"Bytes": 64, "Addr": 140579999854656, "Device Id": 0, "Device Type": 1},
}


def mark(name, stage, time_us):
    return {"name": name, "stage": stage, "device": 0, "time_us": time_us}


@pytest.fixture
def write(tmp_path):
    """Write a snapshot with events at START_US, + 1 and + 2, and a trace beside it."""

    def write(events, annotations=(), *, name="trace.json", **keys):
        memory = TraceBuilder().segment().alloc(MIB).alloc(MIB // 2)
        snapshot = memory.write(
            tmp_path / "run.pickle", external_annotations=[mark(*row) for row in annotations]
        )
        text = json.dumps({"schemaVersion": 1, **keys, "traceEvents": events, "traceName": "t"})
        trace = tmp_path / name
        trace.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return snapshot, trace

    return write


def merged(snapshot, trace):
    output = snapshot.with_name("merged.json")
    code = main(["export", str(snapshot), "--with", str(trace), "-o", str(output), "--force"])
    return json.loads(output.read_text()) if code == 0 else code


def curve(document, name="allocated"):
    events = document["traceEvents"]
    return [(e["ts"], e["args"]["bytes"]) for e in events if (e["ph"], e["name"]) == ("C", name)]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "any.name"])
def test_with_the_clock_of_both_the_memory_moves_to_the_axis_of_the_trace(write, capsys, name):
    """The zero of the axis is 100 us before the first event: events are at 100, 101 and 102."""
    base = (START_US - 100) * 1000 + 999
    late = LOAD | {"ts": 101.5}
    document = merged(*write([LOAD, MEMORY, late], baseTimeNanoseconds=base, name=name))
    assert document["traceEvents"][:3] == [LOAD, MEMORY, late]
    assert document["baseTimeNanoseconds"] == base
    assert document["traceName"] == "t"
    assert curve(document) == [(100, 0), (101, MIB), (102, MIB + MIB // 2)]
    assert "times: aligned by the clock" in capsys.readouterr().out


def test_an_early_trace_has_times_since_1970_and_no_key(write, capsys):
    """Until torch 2.2."""
    document = merged(*write([LOAD | {"ts": START_US - 5, "dur": 6}]))
    assert curve(document)[0] == (START_US, 0)
    assert "aligned by the clock" in capsys.readouterr().out


def test_a_small_axis_without_the_key_is_no_clock(write):
    """A snapshot's times may be small too: that both are near 0 does not show one clock."""
    snapshot, trace = write([LOAD])
    TraceBuilder().event("segment_alloc", addr=512, size=2 * MIB, time_us=60).write(snapshot)
    assert merged(snapshot, trace) == 3


@pytest.mark.parametrize("keys", [{}, {"baseTimeNanoseconds": 5_000_000_000}])
def test_without_a_common_clock_the_annotations_align(write, capsys, keys):
    """The snapshot has load from 20 to 60 us after its start, the trace from 50 to 91: 30 later.

    A load of 300 us before in the snapshot, of another length, and names of one file alone, do not
    mislead.
    """
    annotations = [
        ("load", "START", START_US - 3000),
        ("load", "END", START_US - 2000),
        ("load", "START", START_US + 20),
        ("load", "END", START_US + 60),
        ("save", "START", START_US + 70),
    ]
    document = merged(*write([LOAD, LOAD | {"name": "other", "ts": 1}], annotations, **keys))
    # 50.25 - 20 and 90.75 - 60 are 30.25 and 30.75, of the rounded times 30 and 31: the lower.
    assert curve(document) == [(30, 0), (31, MIB), (32, MIB + MIB // 2)]
    printed = capsys.readouterr().out
    assert "aligned by 2 begins and ends of annotations" in printed


def test_steps_of_equal_length_and_a_part_of_them_are_refused(write, capsys):
    """Either of two may be the one of the trace."""
    steps = [
        ("load", stage, START_US + begin + length)
        for begin in (0, 10_000)
        for stage, length in (("START", 0), ("END", 40))
    ]
    assert merged(*write([LOAD], steps)) == 3
    assert "fit at several offsets" in capsys.readouterr().err


def test_a_recorder_that_was_held_up_aligns_within_a_millisecond(write, capsys):
    """The trace is 30, 330 and 730 us later: no two of them agree within 100 us."""
    names = {"one": 0, "two": 20_000, "three": 50_000}
    begins = [(name, "START", START_US + begin) for name, begin in names.items()]
    lags = (30, 330, 730)
    spans = [
        LOAD | {"name": name, "ts": begin + lag}
        for (name, begin), lag in zip(names.items(), lags, strict=True)
    ]
    assert curve(merged(*write(spans, begins)))[0] == (330, 0)
    assert "aligned by 3 begins and ends of annotations, which agree within 1000 us" in (
        capsys.readouterr().out
    )


def test_of_more_steps_the_offset_wins_at_which_most_coincide(write):
    """Steps at 0, 10,000 and 25,000 in the snapshot; the trace has the last two, 7 us later."""
    begins = (0, 10_000, 25_000)
    steps = [("load", "START", START_US + begin) for begin in begins]
    spans = [LOAD | {"ts": 10_007}, LOAD | {"ts": 25_007}]
    assert curve(merged(*write(spans, steps)))[0] == (7, 0)


@pytest.mark.parametrize("annotations", [(), [("save", "START", START_US)]])
def test_nothing_in_common_is_refused_in_a_sentence(write, capsys, annotations):
    assert merged(*write([LOAD], annotations)) == 3
    error = capsys.readouterr().err
    assert "trace.json: cannot be aligned: " in error
    assert "no annotation (record_function) is in both" in error


def test_our_processes_take_numbers_that_the_trace_has_not(write):
    """A trace of CUDA has the GPUs' own numbers, also as text; 1 and 2 are taken here."""
    spans = [LOAD | {"ts": START_US, "pid": pid} for pid in (1, "2", 4, "Spans", 2.5)]
    document = merged(*write(spans))
    assert {e["pid"] for e in document["traceEvents"] if e["ph"] == "C"} == {3}


def test_a_device_without_events_is_where_the_trace_begins(write):
    snapshot, trace = write([LOAD | {"ts": START_US - 5, "dur": 6}])
    idle = TraceBuilder(1).segment(traced=False).alloc(MIB, traced=False)
    TraceBuilder().segment().alloc(MIB).write(snapshot, idle)
    assert (START_US - 5, MIB) in curve(merged(snapshot, trace))


def test_the_labels_of_our_process_say_how_times_were_aligned(write):
    document = merged(*write([LOAD | {"ts": START_US}]))
    labels = [e["args"] for e in document["traceEvents"] if e["name"] == "process_labels"]
    assert labels == [{"labels": "aligned by the clock, which both files have"}]


def test_a_session_merges_as_the_command_does(write):
    snapshot, trace = write([LOAD | {"ts": START_US}])
    document = merged(snapshot, trace)
    path = snapconv.load(snapshot).export(snapshot.with_name("other.json"), kineto_trace=str(trace))
    assert json.loads(path.read_text()) == document


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "no events with a time"),
        ("text", "traceEvents: expected list"),
        ([LOAD, 7], "traceEvents[1]: expected dict"),
        ([LOAD | {"ts": "50"}], "traceEvents[0].ts: expected int"),
        ([LOAD | {"ts": float("nan")}], "traceEvents[0].ts: expected microseconds"),
        ([LOAD | {"ts": 1 << 61}], "traceEvents[0].ts: expected microseconds"),
        ([LOAD | {"dur": -1}], "traceEvents[0].dur: expected microseconds"),
        ([LOAD, LOAD | {"args": nested(600)}], "traceEvents[1]: nested too deep"),
    ],
)
def test_a_wrong_value_is_named(write, capsys, events, words):
    assert merged(*write(events)) == 3
    error = capsys.readouterr().err
    assert f"trace.json: {words}" in error or words in error


@pytest.mark.parametrize("base", [-1, 1 << 63, 1.5, "0"])
def test_a_wrong_zero_of_the_axis_is_named(write, capsys, base):
    assert merged(*write([LOAD], baseTimeNanoseconds=base)) == 3
    assert "baseTimeNanoseconds: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b'{"traceEvents": [', "breaks off"),
        (b"hello", "no JSON text"),
        (b'{"segments": []}', "this is not a trace of torch.profiler"),
        (b"[]", "this is not a trace of torch.profiler"),
        (gzip.compress(b" " * (64 << 20)), "times its size"),
        (gzip.compress(b"{}", mtime=0)[:-3], "gzip"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(write, capsys, content, words):
    snapshot, trace = write([LOAD])
    trace.write_bytes(content)
    assert merged(snapshot, trace) == 3
    error = capsys.readouterr().err
    assert "trace.json: " in error
    assert words in error


def test_a_trace_is_not_overwritten_by_the_output(write):
    snapshot, trace = write([LOAD | {"ts": START_US}])
    text = trace.read_bytes()
    command = ["export", str(snapshot), "--with", str(trace), "-o", str(trace), "--force"]
    assert main(command) == 5
    assert trace.read_bytes() == text
