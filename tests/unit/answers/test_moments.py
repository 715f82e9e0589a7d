"""Every moment that can be named is the event that it should be, and what is no moment has a clear error."""

import pickle
import random
from pathlib import Path

import pytest

import snapconv
from snapconv.answers.moments import find_moment, parse_moment
from snapconv.errors import InputError
from snapconv.phases.annotation_spans import find_spans
from tests.builders import MIB, START_US, TraceBuilder, frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
STEP = [
    frame("step", "/site-packages/torch/optim/sgd.py"),
    frame("main", "/home/me/project/a.py", 1),
]


def session_of(tmp_path, raw):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    return snapconv.load(path)


def event_of(session, text):
    (analysis,) = session.devices
    return find_moment(analysis, text).event


def four_blocks():
    """Events: 0 segment, 1 alloc 1, 2 alloc 2, 3-4 free 2, 5 oom, 6 alloc 3, 7 oom."""
    trace = TraceBuilder().segment(20 * MIB).alloc(MIB).alloc(3 * MIB).free()
    return trace.oom(30 * MIB).alloc(512).oom(40 * MIB)


@pytest.mark.parametrize(
    ("text", "kind", "number", "name"),
    [
        ("peak", "peak", 1, ""),
        (" largest   activations ", "largest activations", 1, ""),
        ("oom", "oom", 1, ""),
        ("oom:3", "oom", 3, ""),
        ("iteration:0", "iteration", 0, ""),
        ("annotation:step 2:forward", "annotation", 1, "step 2:forward"),
        ("1234", "event", 1234, ""),
        ("#1234", "event", 1234, ""),
    ],
)
def test_a_moment_is_read_as_it_is_written(text, kind, number, name):
    assert parse_moment(text) == (kind, number, name)


@pytest.mark.parametrize(
    "text", ["", "Peak", "oom:0", "oom:x", "iteration", "iteration:-1", "-1", "annotation:"]
)
def test_what_is_no_moment_is_refused_with_those_that_there_are(text):
    with pytest.raises(ValueError, match=r"expected peak, start, end, .*; got "):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("start", -1),
        ("peak", 2),
        ("end", 7),
        ("worst", 0),
        ("oom", 5),
        ("oom:2", 7),
        ("3", 3),
        ("#0", 0),
    ],
)
def test_a_moment_is_its_event(tmp_path, text, event):
    assert event_of(session_of(tmp_path, four_blocks().snapshot()), text) == event


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8", "cuda:0 has no event 8; it has 8 events"),
        ("oom:3", "cuda:0 has no oom:3; it has 2 failed allocations"),
        ("iteration:1", "cuda:0 has no iteration 1; it has iteration 0"),
        ("annotation:forward", "cuda:0 has no annotation 'forward'; it has no annotations"),
    ],
)
def test_a_moment_that_is_not_there_is_an_error_that_says_what_is(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        event_of(session_of(tmp_path, four_blocks().snapshot()), text)


def test_an_iteration_is_its_own_peak(tmp_path):
    trace = TraceBuilder().segment(20 * MIB)
    for size in (5 * MIB, MIB):
        trace.alloc(size).free().alloc(512, frames=STEP).free(frames=STEP)
    session = session_of(tmp_path, trace.snapshot())
    assert [event_of(session, f"iteration:{i}") for i in (0, 1)] == [1, 7]


def annotated(name, since, until, device=0):
    times = (("START", since), ("END", until))
    return [
        {"name": name, "stage": stage, "device": device, "time_us": START_US + time}
        for stage, time in times
    ]


def test_an_annotation_is_its_own_peak_at_its_highest_span(tmp_path):
    trace = TraceBuilder().segment(20 * MIB)
    for size in (MIB, 5 * MIB, 2 * MIB):  # events 1-3, 4-6, 7-9
        trace.alloc(size).free()
    spans = [*annotated("part", 1, 3), *annotated("part", 4, 6), *annotated("other", 7, 9)]
    session = session_of(tmp_path, trace.snapshot(external_annotations=spans))
    assert event_of(session, "annotation:part") == 4
    assert event_of(session, "annotation:other") == 7
    with pytest.raises(InputError, match="it has the annotations part, other"):
        event_of(session, "annotation:parts")


def test_what_was_there_before_an_annotation_counts_as_its_peak(tmp_path):
    trace = TraceBuilder().segment(20 * MIB).alloc(MIB).free()
    session = session_of(tmp_path, trace.snapshot(external_annotations=annotated("late", 2, 3)))
    assert event_of(session, "annotation:late") == 1


@pytest.mark.parametrize("seed", range(5))
def test_of_spans_within_each_other_the_first_highest_moment_is_meant(tmp_path, seed):
    chosen, trace = random.Random(seed), TraceBuilder().segment(200 * MIB)
    for size in (chosen.choice((1, 2, 3)) for _ in range(12)):
        trace.alloc(size * MIB)
        if chosen.random() < 0.5:
            trace.free()
    ranges = [sorted(chosen.sample(range(1, len(trace.events)), 2)) for _ in range(4)]
    spans = [mark for first, last in sorted(ranges) for mark in annotated("part", first, last)]
    session = session_of(tmp_path, trace.snapshot(external_annotations=spans))
    (analysis,) = session.devices
    found = find_spans(analysis.snapshot, analysis.device)
    inside = {
        event
        for first, last in zip(found.first_event.tolist(), found.last_event.tolist(), strict=True)
        for event in range(first - 1, last + 1)
    }
    highest = max(inside, key=lambda event: (analysis.replay.allocated.at(event), -event))
    assert event_of(session, "annotation:part") == highest


def test_a_file_without_a_trace_has_its_dump_at_every_moment_that_needs_none(tmp_path):
    raw = TraceBuilder().segment().alloc(512).snapshot()
    raw["device_traces"] = [[]]
    session = session_of(tmp_path, raw)
    assert [event_of(session, text) for text in ("peak", "start", "end", "worst")] == [-1] * 4


@pytest.mark.parametrize(
    "moment", ["peak", "end", "start", "2000", "iteration:1", "largest activations"]
)
def test_the_state_of_a_moment_has_the_sums_of_the_curves(moment):
    (state,) = snapconv.load(FIXTURES / "training_step.pickle").at(moment)
    assert sum(row.block_bytes for row in state.categories) == state.allocated_bytes
    assert sum(row.block_bytes for row in state.operations) == state.allocated_bytes
    assert sum(row.block_bytes for row in state.pools) == state.allocated_bytes
    assert sum(row.block_bytes for row in state.lines) <= state.allocated_bytes


def test_the_state_of_an_event_is_what_was_live_just_then(tmp_path):
    session = session_of(tmp_path, four_blocks().snapshot())
    (state,) = session.at("2")
    assert (state.allocated_bytes, state.reserved_bytes, state.n_allocations) == (
        4 * MIB,
        20 * MIB,
        2,
    )
    (row,) = state.lines
    assert (row.line.place, row.n_allocations, row.block_bytes) == ("train.py:7", 2, 4 * MIB)
    assert session.at("3")[0].allocated_bytes == MIB


def test_the_state_says_which_annotations_it_is_in(tmp_path):
    trace = TraceBuilder().segment().alloc(512).alloc(512).alloc(512)
    spans = [*annotated("step", 0, 3), *annotated("inner", 2, 2), *annotated("after", 3, 3)]
    session = session_of(tmp_path, trace.snapshot(external_annotations=spans))
    assert session.at("2")[0].annotations == ("step", "inner")
    assert session.at("start")[0].annotations == ()


def test_a_pool_that_events_do_not_name_is_that_of_the_segment(tmp_path):
    trace = TraceBuilder().segment(20 * MIB, segment_pool_id=(0, 4)).alloc(MIB).free()
    (state,) = session_of(tmp_path, trace.snapshot()).at("1")
    assert [row.pool for row in state.pools] == [(0, 4)]
