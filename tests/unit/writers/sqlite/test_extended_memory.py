import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapconv.answers.memory_report import CURVES, PEAK_ALLOCATED, Moment
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import take
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.stack_table import StackTable
from snapconv.writers.sqlite import tables
from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS, SCHEMA_VERSION
from snapconv.writers.sqlite.skyline_reports import TABLES
from snapconv.writers.sqlite.tables import CHUNK_ROWS
from tests.report_builder import (
    curve,
    int32,
    int64,
    small_analysis,
    small_frames,
    small_report,
    small_stacks,
    small_table,
    stacks_of,
    write_memory_reports,
)


@pytest.fixture
def ask(tmp_path):
    """Write a report with the extended tables, then answer a query on it."""

    def ask_report(sql, report=None):
        path = tmp_path / "report.sqlite"
        write_memory_reports([(path, report or small_report())], extended=True, force=True)
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql).fetchall()

    return ask_report


def objects(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master"
        ).fetchall()


def test_skylines_tables_are_the_same_with_and_without_the_extended_ones(tmp_path):
    plain, extended = tmp_path / "plain", tmp_path / "extended"
    write_memory_reports([(plain, small_report())], extended=False, force=False)
    write_memory_reports([(extended, small_report())], extended=True, force=False)
    assert objects(extended)[: len(objects(plain))] == objects(plain)
    with closing(sqlite3.connect(plain)) as one, closing(sqlite3.connect(extended)) as other:
        for table in TABLES:
            sql = f"SELECT * FROM {table.name}"
            assert one.execute(sql).fetchall() == other.execute(sql).fetchall()


def test_every_extended_name_begins_with_snapconv(tmp_path):
    write_memory_reports([(tmp_path / "a", small_report())], extended=True, force=False)
    skyline = {table.name for table in TABLES}
    ours = [
        (kind, name) for kind, name, table, *_ in objects(tmp_path / "a") if table not in skyline
    ]
    assert [
        name for _, name in ours if not name.startswith(("snapconv_", "sqlite_autoindex_snapconv_"))
    ] == []
    assert [name for kind, name in ours if kind == "table"] == [
        table.name for table in EXTENDED_TABLES
    ]
    assert [name for kind, name in ours if kind == "view"] == [view.name for view in EXTENDED_VIEWS]


def test_the_report_row_shows_what_it_is_about(ask):
    assert ask("SELECT * FROM snapconv_report") == [
        (
            SCHEMA_VERSION,
            0,
            "cuda",
            3584,
            "truncated",
            "frees without an alloc",
            None,
            "/home/me/project",
        )
    ]
    without_root = small_report(project_root=None)
    assert ask("SELECT project_root FROM snapconv_report", without_root) == [(None,)]


def test_source_and_notes_keep_their_order(ask):
    assert ask("SELECT * FROM snapconv_source") == [
        ("file", "snapshot.pickle"),
        ("format", "pickle"),
    ]
    assert ask("SELECT * FROM snapconv_notes") == [
        ("truncated-history", "The oldest events are lost.", 0),
        ("no-settings", "None found.", None),
    ]


def test_a_moment_before_the_first_event_has_no_event(ask):
    assert ask("SELECT * FROM snapconv_moments") == [
        (PEAK_ALLOCATED, 1, 20, 3584),
        ("start", None, None, 1024),
        ("peak_reserved", 0, 10, 2 << 20),
    ]


def test_growth_without_a_stack_has_none(ask):
    assert ask("SELECT * FROM snapconv_growth") == [
        (0, "never freed", "likely", 0, 0, 1, 8, 4096, 4096),
        (None, "replaced by larger", "likely", 0, 0, 1, 3, 1536, 1536),
    ]


def test_every_allocation_has_its_module_or_none(ask):
    assert ask("SELECT id, module FROM snapconv_allocations_in_words ORDER BY id") == [
        (0, "encoder"),
        (1, "model/net.py:12 < train.py:40"),
        (2, None),
        (3, None),
    ]
    assert ask("SELECT evidence FROM snapconv_modules ORDER BY id") == [("metadata",), ("frames",)]


def test_iterations_and_failed_allocations(ask):
    assert ask("SELECT * FROM snapconv_iterations") == [(0, 0, 6, 3584, 1)]
    assert ask("SELECT * FROM snapconv_oom_events") == [
        (6, None, 1 << 40, 1 << 30, 1024, 2 << 20, None)
    ]


def test_the_timeline_has_a_row_per_event(ask):
    rows = ask("SELECT * FROM snapconv_timeline")
    assert len(rows) == 7
    assert rows[2] == (2, 30, 3000, 3072, 3584, 2 << 20)


def test_a_timeline_without_times_has_none(ask):
    timeless = small_report(analysis=small_analysis(times=None))
    assert ask("SELECT DISTINCT time_us FROM snapconv_timeline", timeless) == [(None,)]


def test_a_time_that_one_event_lacks_is_null(ask):
    report = small_report(analysis=small_analysis(times=int64(10, -1, 30, 40, 50, 60, 70)))
    assert ask("SELECT event FROM snapconv_timeline WHERE time_us IS NULL", report) == [(1,)]


def test_what_an_allocation_lacks_is_null_and_what_it_has_is_kept(ask):
    assert ask("SELECT * FROM snapconv_allocations WHERE id IN (0, 2)") == [
        (
            0,
            *[None] * 4,
            0x7F0000000000,
            0,
            0,
            1000,
            1024,
            1,
            1,
            2,
            3,
            1,
            0,
            0,
            3,
            None,
            None,
            0,
            0,
        ),
        (
            2,
            1,
            2,
            3,
            3,
            0x7F0000000C00,
            -1,
            1,
            500,
            512,
            *[0] * 4,
            None,
            0,
            2,
            1,
            0,
            Phase.FORWARD,
            None,
            0,
        ),
    ]
    assert ask("SELECT id FROM snapconv_allocations WHERE pool_id IS NULL") == [(3,)]


def test_an_address_from_2_to_the_63_on_prints_as_cuda_prints_it(ask):
    assert ask("SELECT address FROM snapconv_allocations_in_words WHERE id IN (0, 3)") == [
        ("0x7f0000000000",),
        ("0xffff800000000000",),
    ]
    ((addr,),) = ask("SELECT addr FROM snapconv_allocations WHERE id = 3")
    assert hex(addr & (1 << 64) - 1) == "0xffff800000000000"


def test_every_value_is_an_integer_a_text_or_null(ask):
    for table in EXTENDED_TABLES:
        for column in table.columns:
            kinds = {
                kind for (kind,) in ask(f"SELECT DISTINCT typeof({column.name}) FROM {table.name}")
            }
            wanted = column.sql_type.split()[0].lower()
            allowed = {wanted} if column.null is None else {wanted, "null"}
            assert kinds <= allowed, f"{table.name}.{column.name}"


def test_words_are_those_of_the_program(ask):
    assert ask("SELECT id, name FROM snapconv_categories") == [(int(c), c.label) for c in Category]
    assert ask("SELECT id, name FROM snapconv_evidence") == [(int(e), e.label) for e in Evidence]
    assert ask("SELECT * FROM snapconv_rules") == [
        (0, "none"),
        (1, "gradients outlive the backward pass"),
        (2, "forward frames"),
    ]
    assert ask("SELECT * FROM snapconv_operations") == [(0, "unknown"), (1, "linear"), (2, "relu")]
    assert ask("SELECT * FROM snapconv_phases WHERE id = 1") == [(Phase.FORWARD, "forward")]
    assert ask("SELECT count(*) FROM snapconv_phases") == [(len(Phase),)]
    assert ask("SELECT * FROM snapconv_pools") == [(0, "(0, 0)"), (1, "(0, 1)")]


def test_frames_are_as_the_snapshot_has_them(ask):
    rows = ask("SELECT * FROM snapconv_frames")
    assert rows[1] == (1, "forward", "/home/me/project/model/net.py", 12, 1)
    assert rows[3] == (3, "at::native::relu", "??", None, 0)


@pytest.mark.parametrize("line", [-(1 << 63), -1, 1, (1 << 63) - 1])
def test_a_line_can_be_any_64_bit_integer_but_0(ask, line):
    stacks = with_frames(lines=int64(line, 12, 40, 0, 8))
    assert ask(
        "SELECT line FROM snapconv_frames WHERE id = 0", small_report(stacks=stacks_of(stacks))
    ) == [(line,)]


def test_text_that_sqlite_cannot_hold_is_escaped(ask):
    stacks = with_frames(names=("a\udc80\0", "\N{SNOWMAN}", "", "\U0001f600", "\\udc80"))
    assert ask("SELECT function FROM snapconv_frames", small_report(stacks=stacks_of(stacks))) == [
        ("a\\udc80\\x00",),
        ("\N{SNOWMAN}",),
        ("",),
        ("\U0001f600",),
        ("\\udc80",),
    ]


def with_frames(**changes):
    return replace(small_stacks(), frames=replace(small_stacks().frames, **changes))


def test_a_stack_names_its_innermost_frame_and_that_of_the_project(ask):
    assert ask("SELECT * FROM snapconv_stacks") == [
        (0, 3, 0, 1),
        (1, 1, 3, None),
        (2, 0, None, None),
        (3, 1, 4, 4),
    ]
    assert ask("SELECT * FROM snapconv_stack_frames") == [
        (0, 0, 0),
        (0, 1, 1),
        (0, 2, 2),
        (1, 0, 3),
        (3, 0, 4),
    ]


def test_the_peak_view_shows_what_was_in_use_in_words_largest_first(ask):
    columns = (
        "id, category, evidence, rule, operation, block_bytes, alloc_time_us, function, file, line"
    )
    net, train = "/home/me/project/model/net.py", "/home/me/project/train.py"
    assert ask(f"SELECT {columns} FROM snapconv_peak_allocations") == [
        (1, "activation", "frames", "forward frames", "linear", 2048, 10, "forward", net, 12),
        (0, "weight", "metadata", "none", "unknown", 1024, None, "build", train, 8),
        (2, "unknown", "none", "none", "relu", 512, 20, None, None, None),
    ]


def test_the_peak_view_shows_how_sure_a_size_is_and_in_which_pool_and_phase_it_was_requested(ask):
    assert ask("SELECT id, is_exact, pool, phase FROM snapconv_peak_allocations") == [
        (1, 1, "(0, 0)", "forward"),
        (0, 1, "(0, 0)", None),
        (2, 0, "(0, 1)", "forward"),
    ]


def test_at_every_event_the_peak_view_would_sum_to_the_timeline(ask):
    timeline = small_analysis().replay.allocated.after.tolist()
    for event, size in enumerate([1024, *timeline], -1):
        report = small_report(moments=(Moment(PEAK_ALLOCATED, event, None, size),))
        assert ask("SELECT sum(block_bytes) FROM snapconv_peak_allocations", report) == [(size,)]


def test_an_allocation_whose_frees_are_lost_is_in_use_until_its_end(ask):
    table = replace(
        small_table(),
        free_requested_event=int64(-1, 4, -1, -1),
        free_completed_event=int64(-1, 5, -1, -1),
        end_event=int64(-1, 5, 1, -1),
    )
    lost = small_report(analysis=small_analysis(table=table))
    ids = ask("SELECT id FROM snapconv_peak_allocations ORDER BY id", lost)
    assert ids == [(0,), (1,)]


def test_a_device_that_never_allocated_is_a_whole_report(ask):
    stacks = StackTable(small_frames((), (), int64()), int64(0), int32())
    analysis = small_analysis(
        table=take(small_table(), int64()), times=int64(), **{name: curve() for name in CURVES}
    )
    report = small_report(analysis=analysis, stacks=stacks_of(stacks, ()), phase=int32())
    assert ask("SELECT count(*) FROM snapconv_peak_allocations", report) == [(0,)]
    assert ask("SELECT count(*) FROM snapconv_stacks", report) == [(0,)]


def test_columns_of_different_lengths_are_refused(tmp_path):
    report = small_report(analysis=small_analysis(active=curve(1, 2)))
    with pytest.raises(ValueError, match="zip"):
        write_memory_reports([(tmp_path / "a", report)], extended=True, force=False)


STACKS = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=12)


@given(
    stacks=STACKS,
    is_project=st.lists(st.booleans(), min_size=5, max_size=5),
    chunk=st.integers(1, 7),
)
def test_stacks_come_out_as_they_went_in_however_they_are_cut(stacks, is_project, chunk):
    table = StackTable(
        small_frames(tuple("abcde"), tuple("abcde"), int64(1, 2, 3, 4, 5)),
        offsets=np.cumsum([0, *map(len, stacks)]),
        frame_ids=int32(*[frame for stack in stacks for frame in stack]),
    )
    report = small_report(stacks=stacks_of(table, is_project))
    wanted_frames = [
        (i, at, frame) for i, stack in enumerate(stacks) for at, frame in enumerate(stack)
    ]
    wanted_stacks = [
        (i, len(stack), next(iter(stack), -1), next((f for f in stack if is_project[f]), -1))
        for i, stack in enumerate(stacks)
    ]
    made = {table.name: table for table in EXTENDED_TABLES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CHUNK_ROWS", chunk)
        for name, wanted in (
            ("snapconv_stack_frames", wanted_frames),
            ("snapconv_stacks", wanted_stacks),
        ):
            n_rows, rows = made[name].rows_of(report)
            assert (n_rows, list(rows)) == (len(wanted), wanted)


@pytest.mark.parametrize("n_rows", [0, 1, 15, 16, 17, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 17])
def test_every_row_arrives_once_and_in_order_whatever_their_number(ask, n_rows):
    values = np.arange(n_rows, dtype=np.int64)
    analysis = small_analysis(times=values, **dict.fromkeys(CURVES, curve(*values)))
    sql = (
        "SELECT count(*), coalesce(sum(event = time_us AND event = reserved_bytes), 0) FROM "
        "snapconv_timeline"
    )
    assert ask(sql, small_report(analysis=analysis)) == [(n_rows, n_rows)]
