"""What the program's names for parts of the trace say of memory, hand-counted."""

import pickle

import snapconv
from snapconv.answers.annotation_totals import annotated_spans, totals_by_annotation
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
