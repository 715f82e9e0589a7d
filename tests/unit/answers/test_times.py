"""Which iteration and which calls are reported, and what they add up to."""

from dataclasses import replace

import pytest

from snapconv.stacks.project_lines import SourceLine
from tests.timing_builder import ROOT, small_trace, time_report

FORWARD = SourceLine("model/net.py", 12, "forward")
ACTIVATE = SourceLine("model/net.py", 13, "forward")
LOSS = SourceLine("train.py", 41, "step")


@pytest.fixture
def report_of(tmp_path):
    def build(root=ROOT, **changes):
        return time_report(tmp_path, root=root, **changes)

    return build


def waited(n):
    """Of ten calls in forward, those that waited for the host."""
    return {"forward": {"n": 10, "n_waited_for": n, "device_ms": 1.0, "host_ms": 1.0}}


@pytest.mark.parametrize(
    ("totals", "reported"),
    [((34, 38, 30), 3), ((30, 38, 34), 5), ((30, 38), 3), ((38, 30), 4), ((7,), 3), ((7, 7, 7), 4)],
)
def test_the_iteration_with_the_median_total_is_reported_the_lower_of_two(
    report_of, totals, reported
):
    iterations = [{"iteration": 3 + i, "forward_ms": ms} for i, ms in enumerate(totals)]
    empty = {name: [] for name in small_trace()["calls"]}
    assert report_of(iterations=iterations, calls=empty).reported.measured.iteration == reported


def test_the_entries_are_the_forward_calls_with_project_lines_in_order(report_of):
    entries = report_of().entries
    assert [(e.operation_name, e.forward_ms, e.backward_ms) for e in entries] == [
        ("linear", 4.0, 12.0),
        ("relu", 5.0, None),
        ("cross_entropy", 0.5, 7.0),
    ]


def test_frames_are_those_in_modules_and_without_any_all_of_the_project(report_of):
    assert [entry.frames for entry in report_of().entries] == [(FORWARD,), (ACTIVATE,), (LOSS,)]


def test_a_call_without_a_line_of_the_project_has_no_entry(report_of):
    trace = small_trace()
    trace["stacks"][0] = trace["stacks"][3]
    assert [e.operation_name for e in report_of(stacks=trace["stacks"]).entries] == [
        "relu",
        "cross_entropy",
    ]


def test_a_frame_without_a_line_number_is_left_out(report_of):
    trace = small_trace()
    trace["stacks"][1][1][1] = 0
    entries = report_of(stacks=trace["stacks"]).entries
    assert entries[1].frames == (SourceLine("train.py", 40, "step"),)


def test_rows_of_an_iteration_add_up_over_phases(report_of):
    first, second, _ = report_of().iterations
    assert (first.forward_rows_ms, first.backward_rows_ms) == (9.5, 19.5)
    assert (second.forward_rows_ms, second.backward_rows_ms) == (19.0, 39.0)
    assert first.coverage == pytest.approx({"forward": 0.95, "backward": 0.975})


def test_rows_that_are_longer_than_their_phase_have_no_part_of_it(report_of):
    """A damaged file's would be 190 %; what clocks round is no damage."""
    times = report_of().iterations[0]
    damaged = replace(times, measured=replace(times.measured, forward_ms=5.0, backward_ms=19.45))
    assert damaged.coverage == {"forward": None, "backward": 1.0}


def test_operations_and_lines_come_with_the_most_time_first(report_of):
    report = report_of()
    assert [(o.name, o.n_calls, o.total_ms) for o in report.operations] == [
        ("linear", 1, 16.0),
        ("cross_entropy", 1, 7.5),
        ("relu", 1, 5.0),
        ("MulBackward0", 1, 0.5),
    ]
    assert [(at.name, at.n_calls, at.total_ms) for at in report.lines] == [
        (FORWARD, 1, 16.0),
        (LOSS, 1, 7.5),
        (ACTIVATE, 1, 5.0),
    ]


def test_calls_of_one_line_are_one_row(report_of):
    trace = small_trace()
    trace["calls"]["stack"][1] = 0
    line = report_of(calls=trace["calls"]).lines[0]
    assert (line.name, line.n_calls, line.forward_ms, line.backward_ms) == (FORWARD, 2, 9.0, 12.0)


def test_every_call_has_its_entry(report_of):
    assert report_of().entry_id.tolist() == [1, 2, 3, -1, -1, *[-1] * 10]


@pytest.mark.parametrize(
    ("changes", "slug"),
    [
        ({}, None),
        ({"clock": "cpu", "simulated": True}, "simulated-times"),
        ({"clock": "cpu"}, "cpu-times"),
        ({"overflowed": True}, "too-many-calls"),
        ({"root": "/somewhere/else"}, "no-timed-lines"),
        ({"launch_bound": waited(5)}, None),
        ({"launch_bound": waited(6)}, "launch-bound"),
    ],
)
def test_what_the_times_are_not_gives_a_note(report_of, changes, slug):
    assert [(note.slug, note.device) for note in report_of(**changes).notes] == [(slug, 1)] * bool(
        slug
    )
