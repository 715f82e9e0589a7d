"""What docs/ says of a run time report is what the program makes."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.docs.time_schema_page import TIME_EXAMPLES, time_schema_page
from snapconv.reports.build_time import build_time_report
from snapconv.reports.sqlite.database import write_databases
from snapconv.reports.sqlite.extended_time_schema import EXTENDED_TIME_TABLES, EXTENDED_TIME_VIEWS
from snapconv.reports.sqlite.skyline_time import TIME_TABLES, time_database
from snapconv.reports.sqlite.table_schema import View
from snapconv.reports.text.summary import summary_values
from snapconv.snapshot.recorded.timing_file import load_timing
from snapconv.stacks.project_frames import find_project
from tests.timing_builder import ROOT as PROJECT
from tests.timing_builder import write_trace

DOCS = Path(__file__).parents[2] / "docs"
OBJECTS = (*TIME_TABLES, *EXTENDED_TIME_TABLES, *EXTENDED_TIME_VIEWS)


@pytest.fixture
def report(tmp_path):
    timing, _ = load_timing(write_trace(tmp_path / "timing.json", clock="cpu", simulated=True))
    return build_time_report(timing, find_project(timing.stacks, root=PROJECT))


@pytest.fixture
def report_file(report, tmp_path):
    path = tmp_path / "report.time.sqlite"
    write_databases([time_database(path, report, extended=True)], force=False)
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def test_the_page_describes_every_table_and_view_of_the_file(report_file):
    sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    in_file = {name for (name,) in report_file.execute(sql)}
    assert set(re.findall(r"^### `(\w+)`$", time_schema_page(), re.MULTILINE)) == in_file


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.name)
def test_the_described_columns_are_those_of_the_file(report_file, item):
    info = report_file.execute(f"PRAGMA table_info({item.name})").fetchall()
    assert [column.name for column in item.columns] == [name for _, name, *_ in info]
    if not isinstance(item, View):
        assert [column.sql_type.split()[0] for column in item.columns] == [kind for _, _, kind, *_ in info]
        may_be_null = [column.null is not None for column in item.columns]
        assert may_be_null == [not not_null and not in_key for *_, not_null, _, in_key in info]


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.name)
def test_a_column_that_is_said_to_be_never_null_never_is(report_file, item):
    for column in item.columns:
        if column.null is None:
            sql = f"SELECT count(*) FROM {item.name} WHERE {column.name} IS NULL"
            assert report_file.execute(sql).fetchone() == (0,), column.name


@pytest.mark.parametrize(
    ("question", "query"), TIME_EXAMPLES, ids=[question for question, _ in TIME_EXAMPLES]
)
def test_every_query_on_the_page_has_an_answer(report_file, question, query):
    assert query in time_schema_page()
    assert report_file.execute(query).fetchall()


def test_the_first_query_needs_nothing_that_skyline_would_not_write(report, tmp_path):
    path = tmp_path / "plain.time.sqlite"
    write_databases([time_database(path, report, extended=False)], force=False)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(TIME_EXAMPLES[0][1]).fetchall() == [
            ("model/net.py", 12, 1, 4.0, 12.0),
            ("train.py", 41, 1, 0.5, 7.0),
            ("model/net.py", 13, 1, 5.0, 0.0),
        ]


def flat(value, path):
    """All paths of a JSON value, as docs/cli.md writes them."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from set(flat(item, f"{path}[]")) - {f"{path}[]"}


def test_the_described_json_is_that_of_the_program(report):
    values = json.loads(json.dumps(summary_values((), (Path("r.time.sqlite"), report))["time"]))
    described = re.findall(r"^\| `(time\b[\w.\[\]]*)` \|", (DOCS / "cli.md").read_text("utf-8"), re.MULTILINE)
    assert set(described) == set(flat(values, "time"))
