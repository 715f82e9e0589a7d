"""Our reports against what Skyline and DeepView write, and against how their readers ask.

The queries are our own, written from the description of what those readers return.
"""

import pytest

from tests.conformance.skyline_files import CASES, memory_file, one, time_file
from tests.report_builder import BUILD, FORWARD, STEP

EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.fixture
def report_file(case, tmp_path):
    with memory_file(tmp_path, **case) as connection:
        yield connection


@pytest.fixture
def times(case, tmp_path):
    with time_file(tmp_path, **case) as connection:
        yield connection


@EVERY_CASE
def test_entry_types_are_exactly_the_two(report_file):
    rows = report_file.execute(
        "SELECT entry_type, name FROM entry_types ORDER BY entry_type"
    ).fetchall()
    assert rows == [(1, "Weight"), (2, "Activation")]


@EVERY_CASE
def test_every_frame_belongs_to_a_correlation(report_file):
    sql = """SELECT count(*) FROM stack_frames
             WHERE correlation_id NOT IN (SELECT correlation_id FROM stack_correlation)"""
    assert one(report_file, sql) == 0


@EVERY_CASE
def test_all_numbers_are_stored_as_integers(report_file):
    for table, column in (
        ("weight_entries", "size_bytes"),
        ("weight_entries", "grad_size_bytes"),
        ("activation_entries", "size_bytes"),
        ("misc_sizes", "size_bytes"),
        ("stack_frames", "line_number"),
    ):
        assert (
            one(report_file, f"SELECT count(*) FROM {table} WHERE typeof({column}) != 'integer'")
            == 0
        )


# What the readers return: every entry larger than 0, with the file and the line of its innermost
# frame, NULL where it has none, in the order of file and line (NULL first).
READ_ENTRIES = """
SELECT entry.{columns}, frame.file_path, frame.line_number
FROM {table} AS entry
LEFT JOIN stack_correlation AS correlation
       ON correlation.entry_id = entry.id AND correlation.entry_type = {entry_type}
LEFT JOIN stack_frames AS frame
       ON frame.correlation_id = correlation.correlation_id
      AND frame.ordering = (SELECT min(ordering) FROM stack_frames AS other
                            WHERE other.correlation_id = correlation.correlation_id)
WHERE entry.size_bytes > 0
ORDER BY frame.file_path, frame.line_number
"""


@pytest.fixture(params=[False, True], ids=["plain", "extended"])
def rich_file(request, tmp_path):
    with memory_file(tmp_path, extended=request.param) as connection:
        yield connection


def test_a_reader_sees_every_weight_at_its_innermost_line(rich_file):
    columns = "name, entry.size_bytes, entry.grad_size_bytes"
    sql = READ_ENTRIES.format(columns=columns, table="weight_entries", entry_type=1)
    assert rich_file.execute(sql).fetchall() == [
        ("encoder.weight", 1024, 1024, None, None),
        ("encoder.weight", 1024, 1024, BUILD.file_path, BUILD.line_number),
        ("bias", 1024, 1024, STEP.file_path, STEP.line_number),
    ]


def test_a_reader_sees_every_activation_with_bytes_also_without_a_line(rich_file):
    columns = "operation_name, entry.size_bytes"
    sql = READ_ENTRIES.format(columns=columns, table="activation_entries", entry_type=2)
    assert rich_file.execute(sql).fetchall() == [
        ("relu", 512, None, None),
        ("linear", 2048, FORWARD.file_path, FORWARD.line_number),
    ]


def test_a_reader_finds_the_peak_by_its_key(rich_file):
    assert (
        one(rich_file, "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'") == 3584
    )


@EVERY_CASE
def test_ids_count_from_1_in_the_order_of_the_calls(times):
    ids = [row[0] for row in times.execute("SELECT id FROM run_time_entries ORDER BY rowid")]
    assert ids == list(range(1, len(ids) + 1))


@EVERY_CASE
def test_times_are_reals_and_only_backward_may_be_null(times):
    sql = "SELECT DISTINCT typeof(forward_ms), typeof(backward_ms) FROM run_time_entries"
    assert set(times.execute(sql)) <= {("real", "real"), ("real", "null")}


@EVERY_CASE
def test_every_entry_has_frames_and_every_frame_an_entry(times):
    sql = "SELECT count(*) FROM {} WHERE {} NOT IN (SELECT {} FROM {})"
    assert one(times, sql.format("run_time_entries", "id", "entry_id", "stack_frames")) == 0
    assert one(times, sql.format("stack_frames", "entry_id", "id", "run_time_entries")) == 0


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
