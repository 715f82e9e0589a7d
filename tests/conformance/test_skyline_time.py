"""Our run time reports against what Skyline and DeepView write, and against how their readers ask.

The queries are our own, written from the description of what those readers return.
"""

import pytest

from tests.conformance.skyline_files import CASES, one, time_file


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def report_file(request, tmp_path):
    with time_file(tmp_path, **request.param) as connection:
        yield connection


def test_ids_count_from_1_in_the_order_of_the_calls(report_file):
    ids = [row[0] for row in report_file.execute("SELECT id FROM run_time_entries ORDER BY rowid")]
    assert ids == list(range(1, len(ids) + 1))


def test_times_are_reals_and_only_backward_may_be_null(report_file):
    sql = "SELECT DISTINCT typeof(forward_ms), typeof(backward_ms) FROM run_time_entries"
    assert set(report_file.execute(sql)) <= {("real", "real"), ("real", "null")}


def test_every_entry_has_frames_and_every_frame_an_entry(report_file):
    sql = "SELECT count(*) FROM {} WHERE {} NOT IN (SELECT {} FROM {})"
    assert one(report_file, sql.format("run_time_entries", "id", "entry_id", "stack_frames")) == 0
    assert one(report_file, sql.format("stack_frames", "entry_id", "id", "run_time_entries")) == 0


@pytest.mark.parametrize("extended", [False, True])
def test_a_reader_sees_every_call_at_its_innermost_line(tmp_path, extended):
    sql = """SELECT entry.operation_name, entry.forward_ms, entry.backward_ms,
                    frame.file_path, frame.line_number
             FROM run_time_entries AS entry
             JOIN stack_frames AS frame ON frame.entry_id = entry.id
             WHERE frame.ordering = (SELECT min(ordering) FROM stack_frames WHERE entry_id = entry.id)
             ORDER BY frame.file_path, frame.line_number"""
    with time_file(tmp_path, extended=extended) as connection:
        assert connection.execute(sql).fetchall() == [
            ("linear", 4.0, 12.0, "model/net.py", 12),
            ("relu", 5.0, None, "model/net.py", 13),
            ("cross_entropy", 0.5, 7.0, "train.py", 41),
        ]
