"""The tables that --extended adds to a time report."""

import sqlite3
from contextlib import closing

import pytest

from tests.timing_builder import time_report, write_time_report


@pytest.fixture
def extended(tmp_path):
    path = tmp_path / "report.time.sqlite"
    write_time_report(path, time_report(tmp_path), extended=True)
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def rows(connection, sql):
    return connection.execute(sql).fetchall()


def test_every_iteration_is_there_and_one_is_reported(extended):
    sql = (
        "SELECT iteration, is_reported, forward_ms, backward_ms, optimizer_ms FROM "
        "snapconv_iterations"
    )
    assert rows(extended, sql) == [
        (3, 1, 10.0, 20.0, 4.0),
        (4, 0, 12.0, 22.0, 4.0),
        (5, 0, 9.0, 18.0, 3.0),
    ]


def test_the_rows_of_an_iteration_are_the_sums_of_its_calls(extended):
    sql = """SELECT iteration, total(forward_ms) FILTER (WHERE phase = 'forward'), total(backward_ms)
             FROM snapconv_calls GROUP BY iteration"""
    sums = "SELECT iteration, forward_rows_ms, backward_rows_ms FROM snapconv_iterations"
    assert (
        rows(extended, sql)
        == rows(extended, sums)
        == [(3, 9.5, 19.5), (4, 19.0, 39.0), (5, 19.0, 39.0)]
    )


def test_a_time_that_is_not_there_is_null(extended):
    sql = (
        "SELECT operation, module, forward_ms, backward_ms, stack_id FROM snapconv_calls WHERE "
        "iteration = 3"
    )
    assert rows(extended, sql)[1:] == [
        ("relu", "", 5.0, None, 1),
        ("cross_entropy", None, 0.5, 7.0, 2),
        ("_foreach_add_", None, 3.0, None, 3),
        ("MulBackward0", None, None, 0.5, None),
    ]


def test_a_call_leads_to_its_entry(extended):
    sql = """SELECT call.operation, entry.operation_name FROM snapconv_calls AS call
             JOIN run_time_entries AS entry ON entry.id = call.entry_id"""
    assert rows(extended, sql) == [(name, name) for name in ("linear", "relu", "cross_entropy")]


def test_the_frames_of_a_call_are_all_of_its_stack(extended):
    sql = """SELECT frame.function, frame.line, frame.is_project, frame.is_of_module
             FROM snapconv_stack_frames JOIN snapconv_frames AS frame ON frame.id = frame_id
             WHERE stack_id = 0 ORDER BY ordering"""
    assert rows(extended, sql) == [
        ("forward", 116, 0, 1),
        ("forward", 12, 1, 1),
        ("step", 40, 1, 0),
    ]
