"""What is Skyline's to the letter in all files of ours: tables, their order, the settings of the file."""

import hashlib

import pytest

from tests.conformance.skyline_files import CASES, memory_file, one, time_file

# sha256[:16] of the SQL text that SQLite keeps in a file of skyline-cli 0.5.0.
MEMORY_SQL = {
    "weight_entries": "b6dfa687db444834",
    "activation_entries": "a3d8699fcd75210c",
    "stack_correlation": "21748d986cf5fd68",
    "entry_type_and_id": "93547468d71fc4a7",
    "stack_frames": "c045520508461bd6",
    "entry_types": "72bb1c4820f5975b",
    "misc_sizes": "b6d59efa20c7a1c9",
}
MEMORY_ORDER = [
    "weight_entries",
    "activation_entries",
    "stack_correlation",
    "sqlite_autoindex_stack_correlation_1",
    "entry_type_and_id",
    "stack_frames",
    "sqlite_autoindex_stack_frames_1",
    "entry_types",
    "misc_sizes",
    "sqlite_autoindex_misc_sizes_1",
]
TIME_SQL = {"run_time_entries": "d853e573a028bff5", "stack_frames": "2b918469e9bd015b"}
TIME_ORDER = ["run_time_entries", "stack_frames", "sqlite_autoindex_stack_frames_1"]
KINDS = {
    "memory": (memory_file, MEMORY_SQL, MEMORY_ORDER),
    "time": (time_file, TIME_SQL, TIME_ORDER),
}


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request):
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def report_file(kind, case, tmp_path):
    with KINDS[kind][0](tmp_path, **case) as connection:
        yield connection


def test_the_sql_text_is_skylines_to_the_letter(kind, report_file):
    skylines = KINDS[kind][1]
    stored = dict(report_file.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    assert {
        name: hashlib.sha256(stored[name].encode()).hexdigest()[:16] for name in skylines
    } == skylines


def test_the_objects_and_their_pages_come_in_skylines_order(kind, report_file):
    order = KINDS[kind][2]
    sql = f"SELECT name, rootpage FROM sqlite_master ORDER BY rowid LIMIT {len(order)}"
    assert report_file.execute(sql).fetchall() == list(
        zip(order, range(2, 2 + len(order)), strict=True)
    )


def test_whatever_else_there_is_has_a_name_of_snapconvs(kind, report_file):
    names = [
        name for (name,) in report_file.execute("SELECT name FROM sqlite_master ORDER BY rowid")
    ]
    others = [
        name for name in names if not name.startswith(("snapconv_", "sqlite_autoindex_snapconv_"))
    ]
    assert others == KINDS[kind][2]


def test_the_settings_of_the_file_are_skylines(report_file):
    numbers = {"user_version": 1, "page_size": 4096, "auto_vacuum": 0, "application_id": 0}
    settings = {**numbers, "encoding": "UTF-8", "journal_mode": "delete"}
    assert {name: one(report_file, f"PRAGMA {name}") for name in settings} == settings


def test_the_orderings_of_an_entry_are_0_1_2_without_a_gap(kind, report_file):
    entry = {"memory": "correlation_id", "time": "entry_id"}[kind]
    sql = f"""SELECT count(*) FROM (
                SELECT min(ordering) AS first, max(ordering) AS last, count(*) AS n
                FROM stack_frames GROUP BY {entry})
              WHERE first != 0 OR last != n - 1"""
    assert one(report_file, sql) == 0


def test_paths_are_relative_and_lines_count_from_1(report_file):
    sql = "SELECT count(*) FROM stack_frames WHERE file_path LIKE '/%' OR line_number < 1"
    assert one(report_file, sql) == 0
