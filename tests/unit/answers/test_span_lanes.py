"""Named spans in lanes: what is within another is below it, what follows it is beside it."""

import pickle

import pytest

from snapconv.answers.span_lanes import find_span_lanes
from snapconv.phases.annotation_spans import find_spans
from snapconv.snapshot.load import load_snapshot
from tests.builders import START_US, TraceBuilder


def mark(name, stage, time):
    return {"name": name, "stage": stage, "time_us": START_US + time, "device": 0}


def ranges(*spans):
    """Starts and ends of ranges, each (name, first event, last event), in the order of time."""
    marks = [mark(n, s, t) for n, first, last in spans for s, t in (("START", first), ("END", last))]
    return sorted(marks, key=lambda m: m["time_us"])


@pytest.fixture
def lanes_of(tmp_path):
    def lanes_of(*spans, most=100):
        builder = TraceBuilder().segment(20 << 20)
        for _ in range(9):
            builder.alloc(512)
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(builder.snapshot(external_annotations=ranges(*spans))))
        snapshot = load_snapshot(path)
        found = find_span_lanes(snapshot, find_spans(snapshot, snapshot.devices[0]), most=most)
        names = [snapshot.texts[i] for i in found.name_id.tolist()]
        columns = (found.first_event, found.last_event, found.lane)
        return list(zip(names, *(column.tolist() for column in columns), strict=True)), found.n_left_out

    return lanes_of


def test_a_span_within_another_is_below_it(lanes_of):
    assert lanes_of(("b", 2, 3), ("a", 1, 5)) == ([("a", 1, 5, 0), ("b", 2, 3, 1)], 0)


def test_a_span_after_another_is_beside_it(lanes_of):
    assert lanes_of(("a", 1, 2), ("b", 3, 5)) == ([("a", 1, 2, 0), ("b", 3, 5, 0)], 0)


def test_a_span_goes_into_the_first_lane_that_is_free(lanes_of):
    spans = (("a", 1, 8), ("b", 2, 3), ("c", 3, 4), ("d", 4, 6), ("e", 5, 7), ("f", 7, 8))
    assert [(name, lane) for name, _, _, lane in lanes_of(*spans)[0]] == [
        ("a", 0), ("b", 1), ("c", 2), ("d", 1), ("e", 2), ("f", 1),
    ]  # fmt: skip


def test_of_too_many_spans_the_longest_are_shown(lanes_of):
    assert lanes_of(("a", 1, 2), ("b", 3, 7), ("c", 8, 9), most=1) == ([("b", 3, 7, 0)], 2)


def test_what_our_recorder_marks_is_no_span_of_the_program(lanes_of):
    assert lanes_of(("snapconv:forward", 1, 2), ("a", 1, 2)) == ([("a", 1, 2, 0)], 0)


def test_a_span_without_events_is_left_out(lanes_of):
    assert lanes_of(("a", 50, 60)) == ([], 0)
