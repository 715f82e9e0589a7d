import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snapconv.answers.memory_report import ActivationEntry, WeightEntry
from snapconv.errors import OutputExistsError, OutputWriteError
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.sqlite import skyline_reports, tables
from tests.report_builder import (
    ACTIVATION,
    BUILD,
    FORWARD,
    STEP,
    WEIGHT,
    small_report,
    write_memory_reports,
)

ROOT = Path(__file__).parents[4]


def query(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def write(tmp_path):
    """Write one report and give its path."""

    def write_one(report, *, name="report.sqlite", extended=False, force=False):
        write_memory_reports([(tmp_path / name, report)], extended=extended, force=force)
        return tmp_path / name

    return write_one


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_weights_keep_their_order_and_count_from_1(write):
    path = write(
        small_report(
            weights=(WEIGHT, replace(WEIGHT, name="bias", size_bytes=16, grad_size_bytes=0))
        )
    )
    assert query(path, "SELECT * FROM weight_entries") == [
        (1, "encoder.weight", 1024, 1024),
        (2, "bias", 16, 0),
    ]


def test_activations_keep_their_order_and_count_from_1(write):
    path = write(small_report())
    assert query(path, "SELECT * FROM activation_entries") == [
        (1, "linear", 2048),
        (2, "relu", 512),
    ]


def test_correlations_count_weights_first_then_activations(write):
    path = write(small_report(weights=(WEIGHT, WEIGHT)))
    assert query(path, "SELECT correlation_id, entry_id, entry_type FROM stack_correlation") == [
        (1, 1, 1),
        (2, 2, 1),
        (3, 1, 2),
        (4, 2, 2),
    ]


def test_frames_count_from_0_innermost_first_and_a_row_without_frames_has_none(write):
    assert query(write(small_report()), "SELECT * FROM stack_frames") == [
        (1, 0, BUILD.file_path, BUILD.line_number),
        (2, 0, FORWARD.file_path, FORWARD.line_number),
        (2, 1, STEP.file_path, STEP.line_number),
    ]


def test_a_frame_whose_line_is_not_known_is_left_out_without_a_gap(write):
    lost = SourceLine("train.py", 0, "lost")
    path = write(
        small_report(weights=(), activations=(replace(ACTIVATION, frames=(FORWARD, lost, STEP)),))
    )
    assert query(path, "SELECT ordering, line_number FROM stack_frames") == [(0, 12), (1, 40)]


def test_the_peak_is_the_only_other_size(write):
    assert query(write(small_report()), "SELECT * FROM misc_sizes") == [("peak_usage_bytes", 3584)]


def test_an_empty_report_is_a_whole_report(write):
    path = write(small_report(weights=(), activations=(), allocated_bytes=0))
    assert query(path, "SELECT * FROM entry_types") == [(1, "Weight"), (2, "Activation")]
    assert query(path, "SELECT * FROM misc_sizes") == [("peak_usage_bytes", 0)]
    assert query(path, "SELECT count(*) FROM stack_correlation") == [(0,)]


def test_numpy_integers_are_stored_as_integers(write):
    line = SourceLine("train.py", np.int32(8), "build")
    path = write(
        small_report(
            allocated_bytes=np.int64(3584),
            weights=(WeightEntry("w", np.int64(8), np.int64(0), (line,)),),
            activations=(ActivationEntry("a", np.int64(8), (line,)),),
        )
    )
    for table in ("weight_entries", "activation_entries", "misc_sizes"):
        assert query(path, f"SELECT DISTINCT typeof(size_bytes) FROM {table}") == [("integer",)]
    assert query(path, "SELECT DISTINCT typeof(line_number) FROM stack_frames") == [("integer",)]


def test_what_is_no_integer_is_refused_rather_than_stored_as_a_blob(write):
    with pytest.raises(TypeError):
        write(small_report(allocated_bytes=b"3584"))


def test_text_that_sqlite_cannot_hold_is_escaped(write):
    line = SourceLine("caf\udce9/\N{SNOWMAN}.py", 1, "f")
    path = write(small_report(weights=(WeightEntry("a\0b\ud800", 1, 0, (line,)),), activations=()))
    assert query(path, "SELECT name FROM weight_entries") == [("a\\x00b\\ud800",)]
    assert query(path, "SELECT file_path FROM stack_frames") == [("caf\\udce9/\N{SNOWMAN}.py",)]


@pytest.mark.parametrize("extended", [False, True])
def test_the_file_is_sound(write, extended):
    path = write(small_report(), extended=extended)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert query(path, "PRAGMA foreign_key_check") == []


def test_a_path_with_signs_that_mean_something_in_a_url_is_only_a_path(write, tmp_path):
    path = write(small_report(), name="a?mode=memory#%41 \N{SNOWMAN}.sqlite")
    assert names_in(tmp_path) == [path.name]
    assert query(path, "SELECT count(*) FROM weight_entries") == [(1,)]


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
def test_a_path_that_is_no_unicode_is_only_a_path(write, tmp_path):
    name = os.fsdecode(b"caf\xe9.sqlite")
    write(small_report(), name=name)
    assert names_in(tmp_path) == [name]


def test_no_lock_is_needed_since_some_file_systems_have_none(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with tables._new_database(tmp_path / "a", output=tmp_path / "a") as connection:
            connection.execute("CREATE TABLE written (column)")


def test_an_existing_report_needs_force(write):
    path = write(small_report())
    before = path.read_bytes()
    with pytest.raises(OutputExistsError, match="--force"):
        write(small_report(weights=()))
    assert path.read_bytes() == before
    write(small_report(weights=()), force=True)
    assert query(path, "SELECT count(*) FROM weight_entries") == [(0,)]


def test_of_several_reports_all_are_written_or_none(tmp_path):
    reports = [
        (tmp_path / "cuda0.sqlite", small_report()),
        (tmp_path / "cuda1.sqlite", small_report(device=1)),
    ]
    (tmp_path / "cuda1.sqlite").write_bytes(b"somebody else's")
    with pytest.raises(OutputExistsError, match="cuda1"):
        write_memory_reports(reports, extended=True, force=False)
    assert names_in(tmp_path) == ["cuda1.sqlite"]
    write_memory_reports(reports, extended=True, force=True)
    assert [query(path, "SELECT device FROM snapconv_report") for path, _ in reports] == [
        [(0,)],
        [(1,)],
    ]


@pytest.mark.parametrize("extended", [False, True])
def test_progress_rises_to_the_total_over_all_reports(tmp_path, monkeypatch, extended):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 2)
    calls = []
    reports = [(tmp_path / "0", small_report()), (tmp_path / "1", small_report(device=1))]
    write_memory_reports(
        reports,
        extended=extended,
        force=False,
        progress=lambda done, total: calls.append((done, total)),
    )
    done, totals = zip(*calls, strict=True)
    assert list(done) == sorted(set(done))
    assert set(totals) == {done[-1]}
    assert len(calls) > 8


def test_a_failing_progress_call_keeps_its_own_error_and_leaves_nothing(tmp_path):
    def progress(done, total):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        write_memory_reports(
            [(tmp_path / "a", small_report())], extended=False, force=False, progress=progress
        )
    assert names_in(tmp_path) == []


def test_a_full_disk_is_an_output_error_and_leaves_nothing(write, tmp_path, monkeypatch):
    pragmas = (*tables._PRAGMAS, "PRAGMA max_page_count = 12")  # the 13th page does not fit
    monkeypatch.setattr(tables, "_PRAGMAS", pragmas)
    with pytest.raises(
        OutputWriteError, match=r"report\.sqlite: SQLite reports 'database or disk is full'; check"
    ):
        write(small_report(weights=(WEIGHT,) * 1000))
    assert names_in(tmp_path) == []


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 does not have SQLite's error code"
)
def test_a_wrong_statement_is_a_bug_of_ours_and_no_output_error(write, monkeypatch):
    wrong = replace(skyline_reports.TABLES[0], index="CREATE NONSENSE")
    monkeypatch.setattr(skyline_reports, "TABLES", (wrong,))
    with pytest.raises(sqlite3.OperationalError, match="NONSENSE"):
        write(small_report())


WRITES_A_LOT = """
import sys
from pathlib import Path
from dataclasses import replace
from tests.report_builder import WEIGHT, small_report, write_memory_reports

def write(path, n_weights=100_000, **options):
    report = small_report(weights=(WEIGHT,) * n_weights)
    write_memory_reports([(Path(path), report)], extended=True, force=True, **options)
"""

LIMITED = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from snapconv.errors import OutputWriteError
try:
    write(sys.argv[1])
except OutputWriteError as error:
    print(error)
"""

KILLED = """
import os, signal
def progress(done, total):
    if done > 150_000:
        os.kill(os.getpid(), signal.SIGKILL)
write(sys.argv[1], progress=progress)
"""


def run_python(code, *arguments):
    command = [sys.executable, "-c", WRITES_A_LOT + code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(os.name != "posix", reason="needs resource limits")
def test_a_file_size_limit_is_an_output_error_and_leaves_the_old_report(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    done = run_python(LIMITED, tmp_path / "a")
    assert "SQLite reports 'disk I/O error'; check the free space, quota" in done.stdout, (
        done.stderr
    )
    assert names_in(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_killed_while_it_writes_leaves_no_half_made_report(tmp_path):
    done = run_python(KILLED, tmp_path / "a")
    assert done.returncode == -9, done.stderr
    (name,) = names_in(tmp_path)
    assert name.startswith(".a.")
    assert name.endswith(".partial")
    assert (tmp_path / name).stat().st_size > 1 << 20, "it was killed in the middle"


def test_two_processes_write_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        run_python("write(sys.argv[1], 5_000)", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
