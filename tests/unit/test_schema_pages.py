"""The pages about the tables of reports say what is in their files, and their queries have answers."""

import pickle
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.docs.schema_pages import (
    MEMORY_EXAMPLES,
    RANKS_EXAMPLES,
    TIME_EXAMPLES,
    memory_schema_page,
    ranks_schema_page,
    time_schema_page,
)
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.analysis import Iteration
from snapconv.answers.ranks.job_report import report_job
from snapconv.answers.ranks.rank_file import RankFile, rank_file
from snapconv.replay.history_verdict import Verdict
from snapconv.session import load
from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.writers.sqlite.extended_times import EXTENDED_TIME_TABLES
from snapconv.writers.sqlite.job_database import JOB_TABLES, write_job_database
from snapconv.writers.sqlite.skyline_reports import TABLES, TIME_TABLES
from snapconv.writers.sqlite.tables import View
from tests.job_builder import rank_trace, write_rank
from tests.report_builder import small_analysis, small_report, write_memory_reports
from tests.timing_builder import time_report, write_time_report

ROOT = Path(__file__).parents[2]
ALL_PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGES = {"memory": memory_schema_page(), "time": time_schema_page(), "ranks": ranks_schema_page()}
OBJECTS = [
    *(("memory", item) for item in (*TABLES, *EXTENDED_TABLES, *EXTENDED_VIEWS)),
    *(("time", item) for item in (*TIME_TABLES, *EXTENDED_TIME_TABLES)),
    *(("ranks", item) for item in JOB_TABLES),
]
EXAMPLES = [
    *(("memory", *example) for example in MEMORY_EXAMPLES),
    *(("time", *example) for example in TIME_EXAMPLES),
    *(("ranks", *example) for example in RANKS_EXAMPLES),
]


@pytest.fixture(scope="module")
def report_files(tmp_path_factory):
    """A report of each kind; allocation 1 is made in the first iteration and outlives the second."""
    folder = tmp_path_factory.mktemp("reports")
    report = small_report(
        analysis=small_analysis(iterations=(Iteration(0, 1, 1, 3584), Iteration(2, 3, 2, 3072)))
    )
    write_memory_reports([(folder / "memory", report)], extended=True, force=False)
    times = time_report(folder, clock="cpu", simulated=True)
    write_time_report(folder / "time", times, extended=True)
    write_job_database(folder / "ranks", job_report(folder), force=False)
    with (
        closing(sqlite3.connect(folder / "memory")) as memory,
        closing(sqlite3.connect(folder / "time")) as time,
        closing(sqlite3.connect(folder / "ranks")) as ranks,
    ):
        yield {"memory": memory, "time": time, "ranks": ranks}


def job_report(folder):
    """A job with a rank that ran out of memory, one that leaks, and a file that could not be read."""
    traces = [rank_trace(), rank_trace(), rank_trace(leak=9 << 20), rank_trace(free_at_oom=1 << 20)]
    files = [RankFile("gone.pickle", error="is not there", exit_code=3)]
    for rank, trace in enumerate(traces):
        path = write_rank(folder / f"rank{rank}.pickle", trace)
        files.append(
            rank_file(load(path).analysis, RankFile(path.name, rank, coordinates={"dp": rank}))
        )
    return report_job(files)


@pytest.mark.parametrize("kind", PAGES)
def test_the_page_describes_every_table_and_view_of_the_file(report_files, kind):
    sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    in_file = {name for (name,) in report_files[kind].execute(sql)}
    assert set(re.findall(r"^### `(\w+)`$", PAGES[kind], re.MULTILINE)) == in_file


def described(item):
    """All columns of a table or view, those of the view that continues it included."""
    continued_by = item.continued_by if isinstance(item, View) else None
    return [*item.columns, *(described(continued_by) if continued_by else [])]


@pytest.mark.parametrize(
    ("kind", "item"), OBJECTS, ids=[f"{kind}-{item.name}" for kind, item in OBJECTS]
)
def test_the_described_columns_are_those_of_the_file_and_one_that_is_never_null_never_is(
    report_files, kind, item
):
    info = report_files[kind].execute(f"PRAGMA table_info({item.name})").fetchall()
    assert [column.name for column in described(item)] == [name for _, name, *_ in info]
    if not isinstance(item, View):
        types = [column.sql_type.split()[0] for column in item.columns]
        assert types == [sql_type for _, _, sql_type, *_ in info]
        may_be_null = [column.null is not None for column in item.columns]
        assert may_be_null == [not not_null and not in_key for *_, not_null, _, in_key in info]
    for column in described(item):
        if column.null is None:
            sql = f"SELECT count(*) FROM {item.name} WHERE {column.name} IS NULL"
            assert report_files[kind].execute(sql).fetchone() == (0,), column.name


@pytest.mark.parametrize(
    ("kind", "question", "query"), EXAMPLES, ids=[question for _, question, _ in EXAMPLES]
)
def test_every_query_on_the_page_has_an_answer(report_files, kind, question, query):
    assert query in PAGES[kind]
    assert report_files[kind].execute(query).fetchall()


def test_a_leak_is_what_is_still_in_use_when_the_next_iteration_ends(report_files):
    """Allocation 1 lives from event 0 to event 4; 2 from event 1 to event 2."""
    memory = sqlite3.connect(":memory:")
    report_files["memory"].backup(memory)
    (query,) = [query for question, query in MEMORY_EXAMPLES if "leak" in question]
    memory.execute("DELETE FROM snapconv_allocations WHERE id = 3")  # made after both iterations
    assert memory.execute(query).fetchall() == [(0, "activation", 1, 2048)]
    memory.execute("UPDATE snapconv_iterations SET last_event = 4 WHERE iteration = 1")
    assert memory.execute(query).fetchall() == []
    memory.execute(
        "UPDATE snapconv_allocations SET free_requested_event = NULL, end_event = NULL WHERE id = 1"
    )
    assert memory.execute(query).fetchall() == [(0, "activation", 1, 2048)]
    memory.close()


@pytest.mark.parametrize("path", ALL_PAGES, ids=lambda path: path.name)
def test_every_query_of_a_page_runs_as_it_stands(report_files, path):
    kind = {"time-schema.md": "time", "ranks-schema.md": "ranks", "ranks.md": "ranks"}.get(
        path.name, "memory"
    )
    for query in re.findall(r"```sql\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        # The program sqlite3 takes what begins with a dash for an option.
        assert query.startswith("SELECT")
        report_files[kind].execute(query).fetchall()


def test_the_first_query_needs_nothing_that_skyline_would_not_write(tmp_path):
    path = tmp_path / "plain.time.sqlite"
    write_time_report(path, time_report(tmp_path), extended=False)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(TIME_EXAMPLES[0][1]).fetchall() == [
            ("model/net.py", 12, 1, 4.0, 12.0),
            ("train.py", 41, 1, 0.5, 7.0),
            ("model/net.py", 13, 1, 5.0, 0.0),
        ]


@pytest.fixture
def built_report(tmp_path):
    """A report as the program makes it, of a device that allocated once."""
    model = RecordedAllocator()
    model.malloc(1000)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(model.snapshot()))
    return load(tmp_path / "run.pickle").report()


def values_on_the_page(table, column):
    part = (
        PAGES["memory"]
        .split(f"### `{table}`\n")[1]
        .split(f"| `{column}` | is |\n")[1]
        .split("\n\n")[0]
    )
    cells = re.findall(r"^\| (`.*?`) \|", part, re.MULTILINE)
    return [word.strip("`") for cell in cells for word in cell.split(", ")]


def test_the_described_moments_are_those_of_a_report(built_report):
    described = values_on_the_page("snapconv_moments", "name")
    assert sorted(described) == sorted(moment.name for moment in built_report.moments)


def test_the_described_verdicts_are_those_of_the_program():
    described = values_on_the_page("snapconv_report", "history_verdict")
    assert described == [verdict.value for verdict in Verdict]
