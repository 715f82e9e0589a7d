"""The parts of the trace that the program has named: their peaks, what they left behind, and their lanes."""

import pickle

import pytest

import snapconv
from snapconv.answers.program_names import annotated_spans, find_span_lanes, totals_by_annotation
from tests.builders import MIB, START_US, TraceBuilder


def totals_of(tmp_path, trace, marks):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot(external_annotations=marks)))
    session = snapconv.load(path)
    found = annotated_spans(session.devices[0])
    return found, totals_by_annotation(session.snapshot, found)


def marks(name, *spans):
    return [
        {"name": name, "stage": stage, "device": 0, "time_us": START_US + time}
        for span in spans
        for stage, time in zip(("START", "END"), span, strict=True)
    ]


def test_spans_of_a_name_have_their_highest_peak_and_what_they_left_behind_together(tmp_path):
    trace = TraceBuilder().segment(40 * MIB)
    for size in (MIB, 3 * MIB):  # events 1-3, then 4-6: two blocks each time, of which one stays
        trace.alloc(size).alloc(size).free()
        trace.event("snapshot", time_us=START_US + len(trace.events))
    _, (part,) = totals_of(tmp_path, trace, marks("part", (1, 4), (5, 8)))
    assert (part.name, part.kind, part.n_spans) == ("part", "record_function", 2)
    assert (part.peak_bytes, part.change_bytes) == (7 * MIB, 4 * MIB)


def test_the_highest_peak_comes_first_and_a_span_may_free_more_than_it_makes(tmp_path):
    trace = TraceBuilder().segment(40 * MIB).alloc(8 * MIB).alloc(MIB).free().free()  # 1, 2, 3-4, 5-6
    _, rows = totals_of(tmp_path, trace, [*marks("late", (5, 6)), *marks("early", (1, 2))])
    assert [(row.name, row.peak_bytes, row.change_bytes) for row in rows] == [
        ("early", 9 * MIB, 9 * MIB),
        ("late", 8 * MIB, -8 * MIB),
    ]


def test_names_that_torch_and_the_recorder_give_are_in_the_table_alone(tmp_path):
    trace = TraceBuilder().segment(40 * MIB).alloc(MIB)
    names = ("Optimizer.step#SGD.step", "snapconv:forward", "mine")
    given = [mark for name in names for mark in marks(name, (0, 1))]
    found, rows = totals_of(tmp_path, trace, given)
    assert len(found.spans) == 3
    assert [row.name for row in rows] == ["mine"]


def test_a_file_without_events_has_no_spans(tmp_path):
    found, rows = totals_of(tmp_path, TraceBuilder(), marks("a", (0, 1)))
    assert (len(found.spans), rows) == (0, ())


@pytest.fixture
def lanes_of(tmp_path):
    def lanes_of(*spans, most=100):
        builder = TraceBuilder().segment(20 << 20)
        for _ in range(9):
            builder.alloc(512)
        given = [one for name, first, last in spans for one in marks(name, (first, last))]
        given.sort(key=lambda one: one["time_us"])
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(builder.snapshot(external_annotations=given)))
        analysis = snapconv.load(path).devices[0]
        found, lanes, n_left_out = find_span_lanes(analysis, most=most)
        names = [analysis.snapshot.texts[i] for i in found.name_id.tolist()]
        columns = (found.first_event, found.last_event, lanes)
        return list(zip(names, *(column.tolist() for column in columns), strict=True)), n_left_out

    return lanes_of


@pytest.mark.parametrize(
    ("spans", "most", "expected", "n_left_out"),
    [
        pytest.param([("b", 2, 3), ("a", 1, 5)], 9, [("a", 1, 5, 0), ("b", 2, 3, 1)], 0, id="within another"),
        pytest.param([("a", 1, 2), ("b", 3, 5)], 9, [("a", 1, 2, 0), ("b", 3, 5, 0)], 0, id="after another"),
        pytest.param([("a", 1, 2), ("b", 3, 7), ("c", 8, 9)], 1, [("b", 3, 7, 0)], 2, id="the longest"),
        pytest.param([("snapconv:forward", 1, 2), ("a", 1, 2)], 9, [("a", 1, 2, 0)], 0, id="not ours"),
        pytest.param([("a", 50, 60)], 9, [], 0, id="without events"),
    ],
)
def test_spans_have_lanes(lanes_of, spans, most, expected, n_left_out):
    assert lanes_of(*spans, most=most) == (expected, n_left_out)


def test_a_span_goes_into_the_first_lane_that_is_free(lanes_of):
    spans = (("a", 1, 8), ("b", 2, 3), ("c", 3, 4), ("d", 4, 6), ("e", 5, 7), ("f", 7, 8))
    assert [(name, lane) for name, _, _, lane in lanes_of(*spans)[0]] == [
        ("a", 0), ("b", 1), ("c", 2), ("d", 1), ("e", 2), ("f", 1),
    ]  # fmt: skip
