"""Our memory reports against what Skyline and DeepView write, and against how their readers ask.

The queries are our own, written from the description of what those readers return.
"""

import pytest

from tests.conformance.skyline_files import CASES, memory_file, one
from tests.report_builder import BUILD, FORWARD, STEP


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def report_file(request, tmp_path):
    with memory_file(tmp_path, **request.param) as connection:
        yield connection


def test_entry_types_are_exactly_the_two(report_file):
    rows = report_file.execute("SELECT entry_type, name FROM entry_types ORDER BY entry_type").fetchall()
    assert rows == [(1, "Weight"), (2, "Activation")]


def test_ids_count_from_1(report_file):
    for table in ("weight_entries", "activation_entries"):
        ids = [row[0] for row in report_file.execute(f"SELECT id FROM {table} ORDER BY id")]
        assert ids == list(range(1, len(ids) + 1))


def test_correlations_number_the_weights_and_then_the_activations(report_file):
    n_weights = one(report_file, "SELECT count(*) FROM weight_entries")
    n_activations = one(report_file, "SELECT count(*) FROM activation_entries")
    rows = report_file.execute(
        "SELECT correlation_id, entry_id, entry_type FROM stack_correlation"
    ).fetchall()
    assert rows == [(i, i, 1) for i in range(1, n_weights + 1)] + [
        (n_weights + i, i, 2) for i in range(1, n_activations + 1)
    ]


def test_every_frame_belongs_to_a_correlation(report_file):
    sql = """SELECT count(*) FROM stack_frames
             WHERE correlation_id NOT IN (SELECT correlation_id FROM stack_correlation)"""
    assert one(report_file, sql) == 0


def test_there_is_exactly_one_other_size(report_file):
    assert report_file.execute("SELECT key, size_bytes FROM misc_sizes").fetchall() == [
        ("peak_usage_bytes", 3584)
    ]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("weight_entries", "size_bytes"),
        ("weight_entries", "grad_size_bytes"),
        ("activation_entries", "size_bytes"),
        ("misc_sizes", "size_bytes"),
        ("stack_frames", "line_number"),
    ],
)
def test_all_numbers_are_stored_as_integers(report_file, table, column):
    assert one(report_file, f"SELECT count(*) FROM {table} WHERE typeof({column}) != 'integer'") == 0


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
    assert one(rich_file, "SELECT size_bytes FROM misc_sizes WHERE key = 'peak_usage_bytes'") == 3584
