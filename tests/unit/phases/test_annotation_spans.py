"""Named spans: what record_function, user metadata and annotated tensors leave in a file, as events."""

import pickle

import pytest

from snapconv.phases.annotation_spans import SpanKind, annotations_at, find_spans
from snapconv.snapshot.load import load_snapshot
from tests.builders import START_US, TraceBuilder


def loaded(tmp_path, trace, **fields):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(trace.snapshot(**fields)))
    snapshot = load_snapshot(path)
    return snapshot, snapshot.devices[0]


def spans_of(tmp_path, trace, **fields):
    snapshot, device = loaded(tmp_path, trace, **fields)
    spans = find_spans(snapshot, device)
    columns = (
        spans.kind.tolist(),
        spans.name_id.tolist(),
        spans.first_event.tolist(),
        spans.last_event.tolist(),
    )
    rows = zip(*columns, strict=True)
    return [
        (SpanKind(kind).name.lower(), snapshot.texts[name], first, last)
        for kind, name, first, last in rows
    ]


def mark(name, stage, time, device=0):
    return {"name": name, "stage": stage, "device": device, "time_us": START_US + time}


def five_events():
    return TraceBuilder().segment().alloc(512).alloc(512).alloc(512).alloc(512)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([mark("a", "START", 1), mark("a", "END", 3)], [("a", 1, 3)]),
        ([mark("a", "END", 2)], [("a", 0, 2)]),
        ([mark("a", "START", 2)], [("a", 2, 4)]),
        ([mark("a", "START", 9)], [("a", 5, 4)]),
        (
            [
                mark("a", "START", 0),
                mark("a", "START", 1),
                mark("a", "END", 2),
                mark("a", "END", 3),
            ],
            [("a", 0, 3), ("a", 1, 2)],
        ),
        (
            [
                mark("a", "START", 0),
                mark("b", "START", 1),
                mark("a", "END", 2),
                mark("b", "END", 3),
            ],
            [("a", 0, 2), ("b", 1, 3)],
        ),
    ],
    ids=["whole", "began before", "ends later", "after the trace", "within itself", "crossing"],
)
def test_a_range_of_record_function_is_the_events_within_its_times(tmp_path, marks, expected):
    found = spans_of(tmp_path, five_events(), external_annotations=marks)
    assert found == [("record_function", *span) for span in expected]


def test_a_range_whose_start_is_lost_stands_not_around_later_ones_of_other_names(tmp_path):
    marks = [mark("b", "END", 1), mark("a", "START", 2), mark("b", "START", 2)]
    spans = spans_of(tmp_path, five_events(), external_annotations=marks)
    assert [(name, first, last) for _, name, first, last in spans] == [
        ("b", 0, 1),
        ("a", 2, 4),
        ("b", 2, 4),
    ]


def test_a_device_has_its_own_ranges_where_it_has_any(tmp_path):
    marks = [
        mark("a", "START", 1),
        mark("a", "END", 2),
        mark("b", "START", 1, 1),
        mark("b", "END", 2, 1),
    ]
    assert [
        name for _, name, _, _ in spans_of(tmp_path, five_events(), external_annotations=marks)
    ] == ["a"]
    others = spans_of(tmp_path, five_events(), external_annotations=marks[2:])
    assert [name for _, name, _, _ in others] == ["b"]


def test_a_range_without_a_name_names_nothing(tmp_path):
    nameless = {"stage": "START", "device": 0, "time_us": START_US + 1}
    snapshot, device = loaded(tmp_path, five_events(), external_annotations=[nameless])
    assert annotations_at(snapshot, device, 2) == ()
    marks = [nameless, mark("a", "START", 1), mark("a", "END", 3)]
    snapshot, device = loaded(tmp_path, five_events(), external_annotations=marks)
    assert annotations_at(snapshot, device, 2) == ("a",)
    assert len(find_spans(snapshot, device).kind) == 1


def test_a_run_of_events_with_one_metadata_is_a_span(tmp_path):
    trace = TraceBuilder().segment(user_metadata="")
    for text in ("load", "load", "", "step", "load"):
        trace.alloc(512, user_metadata=text)
    expected = [("load", 1, 2), ("step", 4, 4), ("load", 5, 5)]
    assert spans_of(tmp_path, trace) == [("user_metadata", *span) for span in expected]


def test_an_annotated_tensor_is_a_span_of_its_event_and_no_metadata(tmp_path):
    trace = five_events().event("annotate", addr=1, user_metadata="logits")
    assert spans_of(tmp_path, trace) == [("tensor", "logits", 5, 5)]


def test_without_times_or_events_there_are_no_ranges(tmp_path):
    marks = [mark("a", "START", 1), mark("a", "END", 3)]
    snapshot, device = loaded(tmp_path, TraceBuilder(), external_annotations=marks)
    assert len(find_spans(snapshot, device).kind) == 0
    trace = five_events()
    for event in trace.events:
        del event["time_us"]
    assert spans_of(tmp_path, trace, external_annotations=marks) == []
