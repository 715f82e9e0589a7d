"""Every format of tables has the rows of the SQLite report, value by value."""

import csv
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from snapconv.cli.app import main
from tests.builders import TraceBuilder, frame

FIXTURES = Path(__file__).parents[4] / "fixtures"
CAPTURE = FIXTURES / "transformer.capture"


def exported(tmp_path, name, source=CAPTURE, *arguments):
    output = tmp_path / f"out.{name}"
    assert main(["export", str(source), "--format", name, "-o", str(output), "--quiet", *arguments]) == 0
    return output


def test_lines_of_json_that_would_be_many_times_the_file_are_refused(tmp_path, capsys):
    # A pickle refers to one of the first 256 things in it by two bytes; a line of JSON has a hundred.
    recursion = [frame("f", "/home/me/project/net.py", i + 1) for i in range(60)] * 33
    trace = TraceBuilder().segment(40 << 20)
    for i in range(80):
        trace.alloc(512, frames=[*recursion, frame("main", "/home/me/project/train.py", i + 1)])
    file, output = trace.write(tmp_path / "x.pickle"), tmp_path / "out.jsonl"
    assert main(["export", str(file), "--format", "jsonl", "-o", str(output)]) == 3
    assert "use --format csv or parquet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The columns and rows of every table of the capture's two SQLite reports."""
    folder = tmp_path_factory.mktemp("reports")
    output = folder / "out.sqlite"
    assert main(["to-sqlite", str(CAPTURE), "--extended", "--quiet", "-o", str(output)]) == 0
    found = {}
    for report in ("memory", "time"):
        with closing(sqlite3.connect(folder / f"out.{report}.sqlite")) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (name,) in names:
                if name.startswith("sqlite_"):
                    continue
                rows = connection.execute(f"SELECT * FROM {name}")
                found[f"{report}.{name}"] = ([column[0] for column in rows.description], rows.fetchall())
    return found


def sorted_rows(rows):
    return sorted(map(tuple, rows), key=repr)


def test_csv_has_every_table_with_null_as_an_empty_field_and_text_in_quotes(tmp_path, tables):
    folder = exported(tmp_path, "csv")
    assert {path.name for path in folder.iterdir()} == {f"{name}.csv" for name in tables}
    for name, (columns, rows) in tables.items():
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            head, *found = csv.reader(file)
        assert head == columns
        as_text = [["" if value is None else str(value) for value in row] for row in rows]
        assert sorted_rows(found) == sorted_rows(as_text)
    text = (folder / "memory.snapconv_pools.csv").read_text(encoding="utf-8")
    assert text == 'id,name\n0,"(0, 0)"\n'


def test_csv_is_safe_for_spreadsheets_where_that_is_wanted(tmp_path):
    starts = ["=", "+", "-", "@", "\t", "\r", "a"]
    trace = TraceBuilder().segment()
    for start in starts:
        trace.alloc(512, frames=[frame(f"{start}f", "/home/me/project/train.py")])
    file = trace.write(tmp_path / "x.pickle")
    for arguments, mark in (((), ""), (("--csv-safe", "--force"), "'")):
        text = (exported(tmp_path, "csv", file, *arguments) / "memory.snapconv_frames.csv").read_bytes()
        for start in starts:
            assert f',"{mark if start != "a" else ""}{start}f",'.encode() in text


def test_every_line_of_json_is_a_row_with_its_report_and_its_table(tmp_path, tables):
    found = {name: [] for name in tables}
    for line in exported(tmp_path, "jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = f"{row.pop('report')}.{row.pop('table')}"
        assert list(row) == tables[name][0]
        found[name].append(tuple(row.values()))
    assert {name: sorted_rows(rows) for name, rows in found.items()} == {
        name: sorted_rows(rows) for name, (_, rows) in tables.items()
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parquet_has_every_table_with_its_types_and_nulls(tmp_path, tables):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = exported(tmp_path, "parquet")
    assert {path.name for path in folder.iterdir()} == {f"{name}.parquet" for name in tables}
    for name, (columns, rows) in tables.items():
        found = parquet.read_table(folder / f"{name}.parquet")
        assert found.column_names == columns
        assert sorted_rows(tuple(row.values()) for row in found.to_pylist()) == sorted_rows(rows)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    output = tmp_path / "tables"
    assert main(["export", str(CAPTURE), "--format", "parquet", "-o", str(output)]) == 5
    assert "pip install '.[parquet]'" in capsys.readouterr().err
    assert not output.exists()


def test_a_folder_that_exists_keeps_what_else_is_in_it_and_needs_force_for_what_is_ours(tmp_path, capsys):
    folder = tmp_path / "out.csv"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    exported(tmp_path, "csv")
    assert main(["export", str(CAPTURE), "--format", "csv", "-o", str(folder)]) == 5
    assert "--force" in capsys.readouterr().err
    exported(tmp_path, "csv", CAPTURE, "--force")
    assert (folder / "mine.txt").read_text() == "mine"


def test_a_snapshot_without_times_has_the_tables_of_memory_alone(tmp_path):
    lines = exported(tmp_path, "jsonl", FIXTURES / "perceptron.pickle").read_text().splitlines()
    assert {json.loads(line)["report"] for line in lines} == {"memory"}
