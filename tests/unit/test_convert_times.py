"""A capture with times becomes two reports: both of them, or none."""

import json
import pickle
from pathlib import Path

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.analysis import AnalysisOptions
from snapconv.cli.app import main
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import (
    MalformedSnapshotError,
    OutputExistsError,
    OutputWriteError,
    TruncatedFileError,
)
from tests.tables import ask
from tests.timing_builder import ROOT, write_trace

pytestmark = pytest.mark.usefixtures("in_its_folder")


@pytest.fixture
def capture(tmp_path):
    folder = tmp_path / "run.capture"
    folder.mkdir()
    model = RecordedAllocator()
    model.malloc(1000)
    (folder / "snapshot.pickle").write_bytes(pickle.dumps(model.snapshot()))
    write_trace(folder / "timing.json", device=0)
    return folder


def reports_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".sqlite", ".db"))


def entries_of(path):
    return ask(path, "SELECT operation_name, forward_ms FROM run_time_entries")


def test_both_reports_are_named_after_the_capture(capture, tmp_path):
    made = to_sqlite(capture, ConvertOptions())
    assert reports_in(tmp_path) == ["run.memory.sqlite", "run.time.sqlite"]
    path, report = made.time
    assert path == Path("run.time.sqlite")
    assert len(report.entries) == 3
    assert entries_of(path) == [("linear", 4.0), ("relu", 5.0), ("cross_entropy", 0.5)]


def test_a_capture_without_times_gives_one_report_and_so_does_its_snapshot(capture, tmp_path):
    assert to_sqlite(capture / "snapshot.pickle", ConvertOptions()).time is None
    (capture / "timing.json").unlink()
    assert to_sqlite(capture, ConvertOptions()).time is None
    assert reports_in(tmp_path) == ["run.memory.sqlite", "snapshot.memory.sqlite"]


def test_a_file_with_the_given_name_is_no_obstacle_where_it_would_not_be_written(capture, tmp_path):
    (tmp_path / "r.sqlite").write_bytes(b"mine")
    to_sqlite(capture, ConvertOptions(output=tmp_path / "r.sqlite"))
    assert (tmp_path / "r.sqlite").read_bytes() == b"mine"


@pytest.mark.parametrize("there", ["r.memory.sqlite", "r.time.sqlite"])
def test_a_given_output_that_exists_is_refused_before_the_snapshot_is_read(
    capture, tmp_path, there
):
    (tmp_path / there).write_bytes(b"mine")
    (capture / "snapshot.pickle").write_bytes(b"not a snapshot")
    with pytest.raises(OutputExistsError, match=there):
        to_sqlite(capture, ConvertOptions(output=tmp_path / "r.sqlite"))


def test_nothing_is_written_where_one_of_the_two_exists(capture, tmp_path):
    (tmp_path / "run.time.sqlite").write_bytes(b"mine")
    with pytest.raises(OutputExistsError):
        to_sqlite(capture, ConvertOptions())
    assert reports_in(tmp_path) == ["run.time.sqlite"]
    to_sqlite(capture, ConvertOptions(force=True))
    assert len(entries_of(tmp_path / "run.time.sqlite")) == 3


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b'{"version": 1}', MalformedSnapshotError), (b'{"version": 1', TruncatedFileError)],
)
def test_nothing_is_written_where_the_times_are_damaged(capture, tmp_path, content, kind):
    (capture / "timing.json").write_bytes(content)
    with pytest.raises(kind, match=r"timing\.json: "):
        to_sqlite(capture, ConvertOptions())
    assert reports_in(tmp_path) == []


def test_times_of_another_version_are_left_out_with_a_note(capture, tmp_path):
    write_trace(capture / "timing.json", version=9)
    made = to_sqlite(capture, ConvertOptions())
    assert made.time is None
    assert "unknown-timing-version" in [note.slug for note in made.notes]
    assert reports_in(tmp_path) == ["run.memory.sqlite"]


def test_times_of_another_device_than_requested_are_left_out(capture, tmp_path):
    write_trace(capture / "timing.json", device=1)
    assert to_sqlite(capture, ConvertOptions(device=0)).time is None
    assert to_sqlite(capture, ConvertOptions(force=True)).time is not None


@pytest.mark.parametrize("name", ["timing.json", "snapshot.pickle"])
def test_a_file_of_the_capture_is_never_replaced(capture, name):
    before = (capture / name).read_bytes()
    with pytest.raises(OutputWriteError, match=f"is {name} of the capture"):
        to_sqlite(capture, ConvertOptions(output=capture / name, force=True))
    assert (capture / name).read_bytes() == before


def test_the_projects_root_is_the_recorded_one_by_default(capture):
    assert to_sqlite(capture, ConvertOptions()).time[1].project.root == ROOT
    options = ConvertOptions(analysis=AnalysisOptions(project_root=f"{ROOT}/model"), force=True)
    frames = [entry.frames[0].file_path for entry in to_sqlite(capture, options).time[1].entries]
    assert frames == ["net.py", "net.py"]


def test_what_is_included_counts_in_the_memory_report_and_in_the_times(capture):
    model = RecordedAllocator()
    model.malloc(1000, frames=[{"name": "step", "filename": f"{ROOT}/train.py", "line": 40}])
    (capture / "snapshot.pickle").write_bytes(pickle.dumps(model.snapshot()))

    def found(*includes):
        analysis = AnalysisOptions(project_root=f"{ROOT}/model", includes=includes)
        done = to_sqlite(capture, ConvertOptions(analysis=analysis, force=True))
        time = done.time[1]
        lines = (
            [row.line for row in done.reports[0][1].peak.lines],
            [row.name for row in time.lines],
        )
        return [sorted({line.file_path for line in some}) for some in lines], list(
            time.project.includes
        )

    assert found() == ([[], ["net.py"]], [])
    both = [["../train.py"], ["../train.py", "net.py"]]
    assert found(f"{ROOT}/train.py") == (both, [f"{ROOT}/train.py"])
    # Recorded, it counts without being named again.
    recorded = {"version": 1, "project_root": ROOT, "include": ["../train.py"]}
    (capture / "snapshot.pickle").write_bytes(
        pickle.dumps({**model.snapshot(), "snapconv": recorded})
    )
    assert found() == (both, ["../train.py"])


def test_a_root_that_was_named_when_it_was_recorded_keeps_out_the_rest(capture):
    model = RecordedAllocator()
    model.malloc(1000, frames=[{"name": "step", "filename": f"{ROOT}/train.py", "line": 40}])

    def lines(**recorded):
        recorded = {"version": 1, "project_root": f"{ROOT}/model", **recorded}
        (capture / "snapshot.pickle").write_bytes(
            pickle.dumps({**model.snapshot(), "snapconv": recorded})
        )
        ((_path, report),) = to_sqlite(capture, ConvertOptions(force=True)).reports
        return [row.line.file_path for row in report.peak.lines]

    assert lines() == ["../train.py"]
    assert lines(project_root_given=True) == []


def test_the_command_prints_and_writes_both(capture, tmp_path, capsys):
    write_trace(capture / "timing.json", device=0, clock="cpu", simulated=True)
    assert main(["to-sqlite", str(capture)]) == 0
    shown, said = capsys.readouterr()
    assert "note: simulated-times (cuda:0): " in said
    assert f"written: {tmp_path / 'run.memory.sqlite'}" in shown
    assert f"written: {tmp_path / 'run.time.sqlite'}" in shown
    assert "cuda:0  forward 10.0 ms, backward 20.0 ms, optimizer 4.0 ms, in iteration 3" in shown
    assert main(["to-sqlite", str(capture), "--json", "--force"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["time"]["iteration"], values["time"]["n_entries"]) == (3, 3)
    assert Path(values["time"]["output"]).name == "run.time.sqlite"
