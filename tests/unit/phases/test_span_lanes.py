"""The parts of the trace that the program has named, in lanes."""

import pickle

import pytest

import snapconv
from snapconv.phases.annotation_spans import find_span_lanes
from tests.builders import START_US, TraceBuilder


def marks(name, *spans):
    return [
        {"name": name, "stage": stage, "device": 0, "time_us": START_US + time}
        for span in spans
        for stage, time in zip(("START", "END"), span, strict=True)
    ]


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
        found, lanes, n_left_out = find_span_lanes(
            analysis.snapshot, analysis.device, max_spans=most
        )
        names = [analysis.snapshot.texts[i] for i in found.name_id.tolist()]
        columns = (found.first_event, found.last_event, lanes)
        return list(zip(names, *(column.tolist() for column in columns), strict=True)), n_left_out

    return lanes_of


@pytest.mark.parametrize(
    ("spans", "most", "expected", "n_left_out"),
    [
        pytest.param(
            [("b", 2, 3), ("a", 1, 5)], 9, [("a", 1, 5, 0), ("b", 2, 3, 1)], 0, id="within another"
        ),
        pytest.param(
            [("a", 1, 2), ("b", 3, 5)], 9, [("a", 1, 2, 0), ("b", 3, 5, 0)], 0, id="after another"
        ),
        pytest.param(
            [("a", 1, 2), ("b", 3, 7), ("c", 8, 9)], 1, [("b", 3, 7, 0)], 2, id="the longest"
        ),
        pytest.param(
            [("snapconv:forward", 1, 2), ("a", 1, 2)], 9, [("a", 1, 2, 0)], 0, id="not ours"
        ),
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
