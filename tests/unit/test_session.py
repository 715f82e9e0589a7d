"""A snapshot in a notebook: ``snapconv.load``."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.cli.app import main
from snapconv.errors import InputError
from tests.builders import TraceBuilder, frame

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def two_devices(tmp_path):
    """A file with 512 bytes on device 0 and 2,048 on device 2."""
    first = TraceBuilder().segment().alloc(512).event("no_such_action")
    second = TraceBuilder(device=2).segment().alloc(2048)
    return first.write(tmp_path / "run.pickle", second)


def test_every_device_of_the_file_is_analysed(two_devices):
    session = snapconv.load(str(two_devices))
    assert [analysis.device.device for analysis in session.devices] == [0, 2]
    assert [analysis.replay.allocated.peak for analysis in session.devices] == [512, 2048]
    assert session.snapshot.path == two_devices


def test_a_report_is_about_the_first_device_by_default(two_devices):
    session = snapconv.load(two_devices)
    assert [session.report(device).peak.allocated_bytes for device in (None, 0, 2)] == [
        512,
        512,
        2048,
    ]
    with pytest.raises(InputError, match="nothing of device 1; it has: 0, 2"):
        session.report(1)


def test_notes_of_the_whole_file_stand_once(two_devices):
    notes = snapconv.load(two_devices).notes
    assert [note.slug for note in notes].count("unknown-action") == 1
    assert len(set(notes)) == len(notes)


def test_a_notebook_shows_the_verdict_of_every_device_and_nothing_that_a_file_could_run(tmp_path):
    trace = (
        TraceBuilder()
        .segment(4 << 20)
        .alloc(1 << 20, frames=[frame("<script>", "/home/me/<b>.py", 3)])
    )
    shown = snapconv.load(trace.write(tmp_path / "run.pickle"))._repr_html_()
    assert shown.startswith("<pre>cuda:0  peak 1.00 MiB")
    assert "&lt;b&gt;.py:3 in &lt;script&gt;" in shown
    assert shown.count("<") == 2


def test_a_session_and_all_in_it_have_a_representation_of_a_line(two_devices):
    session = snapconv.load(two_devices)
    assert repr(session) == (
        f"Session({str(two_devices)!r}: cuda:0 peak 512 B, 1 allocation; cuda:2 peak 2.00 KiB, 1 "
        f"allocation)"
    )
    for value in (session.analysis, session.snapshot, *session.devices, *session.snapshot.devices):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 300


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ("512B", [True, False]),
        (2048, [True, True]),
        (snapconv.Budgets.read(max_reserved="1MiB"), [False, False]),
        (
            snapconv.Budgets.read(max_category={"weight": "0"}, max_peak="1KiB"),
            [True, False, False, False],
        ),
    ],
)
def test_limits_are_taken_as_the_command_line_takes_them(two_devices, limits, holds):
    assert [check.holds for check in snapconv.load(two_devices).check(limits)] == holds


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_peek": "1GiB"}, "there is no limit 'max_peek'"),
        ({"max_peak": 1.5}, "expected text"),
        ({"max_category": {"weights": "1GiB"}}, "there is no category 'weights'"),
        ({"max_category": {"weight": "1 elephant"}}, "weight: "),
        ({"fail_over": 2}, 'such as "2%"'),
    ],
)
def test_a_wrong_limit_is_a_value_error_that_names_it(limits, words):
    with pytest.raises(ValueError, match=words):
        snapconv.Budgets.read(**limits)


def test_settings_to_try_are_taken_as_the_command_line_takes_them(two_devices):
    session = snapconv.load(two_devices).of_device(0)
    (tried,) = session.what_if("expandable_segments:True")
    assert [one.name for one in tried.tried][1:] == ["expandable_segments:True"]
    (tried,) = session.what_if(snapconv.Request.read("max_split_size_mb:128", capacity="1MiB"))
    assert tried.capacity_bytes == 1 << 20
    with pytest.raises(ValueError, match="no_such_key"):
        session.what_if("no_such_key:1")


def test_columns_have_the_line_that_allocated_and_whether_it_was_live_at_the_peak(tmp_path):
    stack = [
        frame("forward", "/home/me/proj/net.py", 7),
        frame("main", "/home/me/proj/train.py", 3),
    ]
    library = [frame("run", "/usr/lib/python3/site-packages/lib/a.py", 1)]
    builder = (
        TraceBuilder()
        .segment(frames=[])
        .alloc(512, frames=stack)
        .free()
        .alloc(1024, frames=library)
    )
    builder.alloc(2048, frames=[])
    columns = snapconv.load(builder.write(tmp_path / "s.pickle")).columns()
    assert list(
        zip(*(columns[name].tolist() for name in ("file", "line", "function")), strict=True)
    ) == [
        ("net.py", 7, "forward"),
        ("library code only", -1, ""),
        ("no stack recorded", -1, ""),
    ]
    assert columns["is_live_at_peak"].tolist() == [False, True, True]


def test_columns_are_the_sessions_own_and_sum_to_the_peak():
    session = snapconv.load(FIXTURES / "training_step.pickle")
    (analysis,) = session.devices
    columns = session.columns()
    assert {len(column) for column in columns.values()} == {len(analysis.allocations)}
    assert np.shares_memory(columns["block_bytes"], analysis.allocations.block_bytes)
    live = analysis.allocations.live_at(analysis.peak_event)
    (state,) = session.at()
    for row in state.categories:
        mine = live & (columns["category"] == row.category)
        assert columns["block_bytes"][mine].sum() == row.block_bytes


@pytest.mark.parametrize("table", ["allocations", "events", "segments", "blocks"])
def test_every_table_has_its_own_columns_without_copies(table):
    (analysis,) = (session := snapconv.load(FIXTURES / "training_step.pickle")).devices
    device = analysis.device
    own = {"events": device.events, "segments": device.segments, "blocks": device.blocks}
    mine = own.get(table, analysis.allocations)
    columns = session.columns(table=table)
    for name in {field.name for field in fields(mine)} & set(columns):
        assert columns[name] is getattr(mine, name)


def address_of(column):
    return column.__array_interface__["data"][0]


def test_numbers_reach_pandas_polars_and_arrow_without_a_copy():
    pandas, polars, arrow = map(pytest.importorskip, ("pandas", "polars", "pyarrow"))
    columns = snapconv.load(FIXTURES / "training_step.pickle").columns()
    numbers = {name for name, column in columns.items() if column.dtype.kind == "i"}
    assert {"block_bytes", "alloc_event", "stack_id"} <= numbers
    in_pandas, in_polars = pandas.DataFrame(columns, copy=False), polars.DataFrame(columns)
    in_arrow = arrow.table(columns)
    for name in numbers:
        own = address_of(columns[name])
        assert address_of(in_pandas[name].to_numpy()) == own
        assert address_of(in_polars[name].to_numpy(allow_copy=False)) == own
        assert in_arrow.column(name).chunk(0).buffers()[1].address == own


@pytest.fixture(scope="module")
def step():
    return snapconv.load(FIXTURES / "training_step.pickle")


ANSWERS = {
    "summary": lambda session: session.at(),
    "tree": lambda session: session.tree(),
    "advise": lambda session: session.advise(),
    "fragmentation": lambda session: session.fragmentation(),
    "growth": lambda session: session.growth(),
    "what-if": lambda session: session.what_if("expandable_segments:True"),
    "check": lambda session: session.check("1GiB"),
    "oom": lambda session: session.explain_oom(),
    "explain": lambda session: session.explain("#100"),
    "diff": lambda session: session.compared_with(session),
}
OPTIONS = {
    "what-if": ("--setting", "expandable_segments:True"),
    "check": ("--max-peak", "1GiB"),
    "explain": ("#100",),
}


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_prints_as_the_command_does(command, step, capsys):
    path = FIXTURES / "training_step.pickle"
    files = (path, path) if command == "diff" else (path,)
    main([command, *map(str, files), *OPTIONS.get(command, ())])
    printed = capsys.readouterr().out
    assert str(ANSWERS[command](step)).split() == printed.split()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ()),
        ({"save": "50MiB"}, ("--save", "50MiB")),
        ({"capacity": 190 << 20}, ("--capacity", "190MiB")),
    ],
)
def test_advice_prints_as_the_command_does_where_memory_ran_out(options, words, capsys):
    path = FIXTURES / "out_of_memory.pickle"
    main(["advise", str(path), *words])
    printed = capsys.readouterr().out
    assert str(snapconv.load(path).advise(**options)).split() == printed.split()
    assert "goal" in printed


def test_advice_takes_one_goal(step):
    with pytest.raises(ValueError, match="not both"):
        step.advise(capacity="1GiB", save="1GiB")


def test_a_session_writes_the_trace_that_the_command_writes(step, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = step.export()
    assert path.name == "training_step.trace.json"
    written = path.read_bytes()
    main(["export", str(FIXTURES / "training_step.pickle"), "--force", "-q"])
    assert path.read_bytes() == written


def test_a_page_in_a_temporary_folder_does_not_depend_on_the_current_one(
    step, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training_step.view.html").mkdir()
    page = step.view().path
    assert (page.name, page.parent != tmp_path) == ("training_step.view.html", True)
    page.unlink()
    page.parent.rmdir()


@pytest.mark.parametrize("command", ["summary", "tree", "fragmentation", "what-if", "check"])
def test_an_answer_is_a_table_in_a_notebook_and_stays_a_sequence(command, step):
    answers = ANSWERS[command](step)
    page = answers._repr_html_()
    assert isinstance(answers, tuple)
    assert (len(answers), page.count("<table>")) == (1, 1)
    assert page.count("<tr>") > 1
    assert "<th>" in page


def test_a_table_of_a_notebook_runs_nothing_that_a_file_names(tmp_path):
    trace = (
        TraceBuilder()
        .segment(4 << 20)
        .alloc(1 << 20, frames=[frame("<b>", "/home/me/<script>.py", 3)])
    )
    page = snapconv.load(trace.write(tmp_path / "run.pickle")).tree()._repr_html_()
    assert "&lt;script&gt;.py:3 in &lt;b&gt;" in page
    assert "<script>" not in page
