"""Our run time reports against the schema that Skyline and DeepView write, and against how their readers ask.

The queries are our own, written from the description of what those readers return.
"""

import hashlib
import sqlite3
from contextlib import closing

import pytest

from snapconv.reports.build_time import build_time_report
from snapconv.reports.sqlite.database import write_databases
from snapconv.reports.sqlite.skyline_time import time_database
from snapconv.snapshot.recorded.timing_file import load_timing
from snapconv.stacks.project_frames import find_project
from tests.timing_builder import ROOT, small_trace, write_trace

# sha256[:16] of the SQL text that SQLite keeps in a file of skyline-cli 0.5.0.
SKYLINE_SQL = {"run_time_entries": "d853e573a028bff5", "stack_frames": "2b918469e9bd015b"}
SKYLINE_ORDER = ["run_time_entries", "stack_frames", "sqlite_autoindex_stack_frames_1"]

NO_CALLS = {"calls": {name: [] for name in small_trace()["calls"]}}


@pytest.fixture(
    params=[({}, False), ({}, True), (NO_CALLS, False)], ids=["plain", "extended", "without rows"]
)
def report_file(request, tmp_path):
    changes, extended = request.param
    timing, _ = load_timing(write_trace(tmp_path / "timing.json", **changes))
    report = build_time_report(timing, find_project(timing.stacks, root=ROOT))
    path = tmp_path / "report.time.sqlite"
    write_databases([time_database(path, report, extended=extended)], force=False)
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def one(connection, sql):
    ((value,),) = connection.execute(sql).fetchall()
    return value


def test_the_sql_text_is_skylines_to_the_letter(report_file):
    stored = dict(report_file.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    assert {
        name: hashlib.sha256(stored[name].encode()).hexdigest()[:16] for name in SKYLINE_SQL
    } == SKYLINE_SQL


def test_the_objects_and_their_pages_come_in_skylines_order(report_file):
    rows = report_file.execute("SELECT name, rootpage FROM sqlite_master ORDER BY rowid LIMIT 3").fetchall()
    assert rows == list(zip(SKYLINE_ORDER, range(2, 5), strict=True))


def test_without_extended_there_is_nothing_else(report_file):
    names = [name for (name,) in report_file.execute("SELECT name FROM sqlite_master ORDER BY rowid")]
    others = [name for name in names if not name.startswith(("snapconv_", "sqlite_autoindex_snapconv_"))]
    assert others == SKYLINE_ORDER


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("user_version", 1),
        ("page_size", 4096),
        ("encoding", "UTF-8"),
        ("journal_mode", "delete"),
        ("auto_vacuum", 0),
        ("application_id", 0),
    ],
)
def test_the_settings_of_the_file_are_skylines(report_file, pragma, value):
    assert one(report_file, f"PRAGMA {pragma}") == value


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


def test_the_orderings_of_an_entry_are_0_1_2_without_a_gap(report_file):
    sql = """SELECT count(*) FROM (
               SELECT min(ordering) AS first, max(ordering) AS last, count(*) AS n
               FROM stack_frames GROUP BY entry_id)
             WHERE first != 0 OR last != n - 1"""
    assert one(report_file, sql) == 0


def test_paths_are_relative_and_lines_count_from_1(report_file):
    sql = "SELECT count(*) FROM stack_frames WHERE file_path LIKE '/%' OR line_number < 1"
    assert one(report_file, sql) == 0


@pytest.mark.parametrize("extended", [False, True])
def test_a_reader_sees_every_call_at_its_innermost_line(tmp_path, extended):
    timing, _ = load_timing(write_trace(tmp_path / "timing.json"))
    report = build_time_report(timing, find_project(timing.stacks, root=ROOT))
    path = tmp_path / "report.time.sqlite"
    write_databases([time_database(path, report, extended=extended)], force=False)
    sql = """SELECT entry.operation_name, entry.forward_ms, entry.backward_ms,
                    frame.file_path, frame.line_number
             FROM run_time_entries AS entry
             JOIN stack_frames AS frame ON frame.entry_id = entry.id
             WHERE frame.ordering = (SELECT min(ordering) FROM stack_frames WHERE entry_id = entry.id)
             ORDER BY frame.file_path, frame.line_number"""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(sql).fetchall() == [
            ("linear", 4.0, 12.0, "model/net.py", 12),
            ("relu", 5.0, None, "model/net.py", 13),
            ("cross_entropy", 0.5, 7.0, "train.py", 41),
        ]
