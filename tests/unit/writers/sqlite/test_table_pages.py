"""Pages of rows that the compiled core makes are those that SQLite reads, and finds whole."""

import sqlite3
import struct
from contextlib import closing

import numpy as np
import pytest

from snapconv.native.library import core
from snapconv.writers.sqlite import table_pages
from snapconv.writers.sqlite.table_pages import NumberRows, append_rows

pytestmark = pytest.mark.skipif(core() is None, reason="the compiled core is not in use")
# Where a number needs a byte more, and the numbers beside it.
LIMITS = [
    number + step
    for n_bits in (7, 15, 23, 31, 47)
    for number in (1 << n_bits, -(1 << n_bits))
    for step in (-1, 0, 1)
]
INTEGERS = [0, 1, 2, -1, -2, *LIMITS, (1 << 63) - 1, -(1 << 63)]
REALS = [0.5, 1.0, -1.0, float("inf"), 1e-300, float("nan")]


@pytest.fixture
def written(tmp_path):
    """Append rows to an empty table, and return what SQLite reads, and what it says of the file."""

    def write(rows, declaration):
        path = tmp_path / "a.sqlite"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA page_size = 4096")
            connection.execute("CREATE TABLE small (id INTEGER PRIMARY KEY, name TEXT)")
            connection.execute(f"CREATE TABLE big (id INTEGER PRIMARY KEY, {declaration})")
            connection.execute("INSERT INTO small VALUES (7, 'beside it')")
            connection.commit()
            (root,) = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = 'big'"
            ).fetchone()
        n_written = sum(append_rows(core(), path, root, rows))
        assert n_written == rows.n_rows
        with closing(sqlite3.connect(path)) as connection:
            checks = [text for (text,) in connection.execute("PRAGMA integrity_check")]
            assert connection.execute("SELECT * FROM small").fetchall() == [(7, "beside it")]
            return connection.execute("SELECT * FROM big").fetchall(), checks, path

    return write


def repeated(values, n_rows, dtype):
    return np.resize(np.array(values, dtype), n_rows)


def test_numbers_of_every_width_come_out_as_they_went_in(written):
    n_rows = 10_000
    integers = repeated(INTEGERS, n_rows, np.int64)
    reals = repeated(REALS, n_rows, np.float64)
    marks = repeated([True, False, False], n_rows, bool)
    rows = NumberRows([integers, None, reals, marks], [None, None, None, None], n_rows)
    read, checks, _ = written(rows, "a INTEGER, b INTEGER, c REAL, d INTEGER")
    wanted = [
        (i, INTEGERS[i % len(INTEGERS)], None, real if real == real else None, int(i % 3 == 0))
        for i, real in enumerate(REALS[i % len(REALS)] for i in range(n_rows))
    ]
    assert checks == ["ok"]
    assert read == wanted


def test_a_stand_in_becomes_null(written):
    n_rows = 5000
    columns = [repeated([-1, 0, 5], n_rows, np.int32), repeated([0.0, 0.5], n_rows, np.float64)]
    read, checks, _ = written(NumberRows(columns, [-1, 0], n_rows), "a INTEGER, b REAL")
    assert checks == ["ok"]
    assert read[:4] == [(0, None, None), (1, 0, 0.5), (2, 5, None), (3, None, 0.5)]


@pytest.mark.parametrize("most_children", [3, 4, 256])
def test_references_of_several_levels_lead_to_every_row(written, monkeypatch, most_children):
    monkeypatch.setattr(table_pages, "_MOST_CHILDREN", most_children)
    values = np.arange(40_000) * 3
    read, checks, _ = written(NumberRows([values], [None], len(values)), "a INTEGER")
    assert checks == ["ok"]
    assert read == [(i, 3 * i) for i in range(len(values))]


def test_a_key_is_found_by_its_number(written):
    values = np.arange(300_000)
    _, checks, path = written(NumberRows([values], [None], len(values)), "a INTEGER")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO big VALUES (300000, 17)")
        connection.execute("DELETE FROM big WHERE id BETWEEN 10 AND 290000")
        sums = connection.execute("SELECT count(*), sum(a) FROM big").fetchone()
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    remaining = [*range(10), *range(290_001, 300_000), 17]
    assert checks == ["ok"]
    assert sums == (len(remaining), sum(remaining))


def test_the_page_of_the_locks_stays_empty(written, monkeypatch):
    monkeypatch.setattr(table_pages, "_LOCK_PAGE", 20)
    values = np.arange(40_000)
    read, checks, path = written(NumberRows([values], [None], len(values)), "a INTEGER")
    content = path.read_bytes()
    assert read == [(i, i) for i in range(len(values))]
    assert content[19 * 4096 : 20 * 4096] == bytes(4096)
    # SQLite itself has its locks elsewhere.
    assert ["Page 20" in check for check in checks] == [True]
    assert struct.unpack(">I", content[28:32])[0] * 4096 == len(content)
