"""The folder of a capture stands for the files in it."""

from pathlib import Path

import pytest

from snapconv.answers.info import describe
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import InputError
from snapconv.files import default_output, files_of, is_capture, snapshot_file, timing_file
from snapconv.session import load
from snapconv.snapshot.load import load_snapshot
from snapconv.snapshot.recorded import timing_file as timing_reader
from snapconv.writers.text.info import info_lines
from tests.builders import ADDR, START_US, TraceBuilder, frame
from tests.metadata_builder import metadata, parameter
from tests.tables import ask

pytestmark = pytest.mark.usefixtures("in_its_folder")

TRANSFORMER = Path(__file__).parents[2] / "fixtures/transformer.capture"


def capture(tmp_path, *, timing: bool = True) -> Path:
    folder = tmp_path / "train.capture"
    folder.mkdir()
    TraceBuilder().segment().alloc(512).write(folder / "snapshot.pickle")
    if timing:
        (folder / "timing.json").write_text("{}")
    return folder


def test_a_folder_with_a_snapshot_is_a_capture(tmp_path):
    folder = capture(tmp_path)
    assert is_capture(folder)
    assert files_of(folder) == (folder / "snapshot.pickle", folder / "timing.json")
    assert (snapshot_file(folder), timing_file(folder)) == files_of(folder)


def test_a_capture_need_not_have_times(tmp_path):
    folder = capture(tmp_path, timing=False)
    assert timing_file(folder) is None
    assert files_of(folder) == (folder / "snapshot.pickle",)


def test_a_file_is_what_it_is_and_so_is_another_folder(tmp_path):
    folder = capture(tmp_path)
    file = folder / "snapshot.pickle"
    assert (snapshot_file(file), timing_file(file), files_of(file)) == (file, None, (file,))
    assert not is_capture(tmp_path)
    with pytest.raises(InputError, match=r"a folder without snapshot\.pickle"):
        load_snapshot(tmp_path)


def test_a_capture_loads_as_its_snapshot(tmp_path):
    folder = capture(tmp_path)
    snapshot = load_snapshot(folder)
    assert snapshot.path == folder / "snapshot.pickle"
    assert len(snapshot.devices[0].events) == 2


@pytest.mark.parametrize(
    ("folder", "stem"),
    [
        ("train.capture", "train"),
        ("capture", "capture"),
        (".capture", ".capture"),
        ("a/run.1.capture", "run.1"),
    ],
)
def test_outputs_are_named_after_the_folder_and_lie_in_the_current_one(tmp_path, folder, stem):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "snapshot.pickle").touch()
    assert default_output(tmp_path / folder, ".view.html") == Path(f"{stem}.view.html")


def test_the_folder_that_one_is_in_has_a_name_too(tmp_path, monkeypatch):
    monkeypatch.chdir(capture(tmp_path))
    assert default_output(Path(), ".view.html") == Path("train.view.html")


def recorded(tmp_path) -> Path:
    """A capture of one weight, allocated by a line of /data/project/net/model.py."""
    folder = tmp_path / "train.capture"
    folder.mkdir()
    made = frame("__init__", "/data/project/net/model.py", 12)
    weight = parameter("fc.weight", ADDR, 500, START_US + 2, frames=[made])
    builder = TraceBuilder().segment().alloc(500, frames=[frame("to", "/data/project/train.py", 3)])
    raw = metadata(
        parameters=[weight], project_root="/data/project/net", simulated={"not_modelled": []}
    )
    builder.write(folder / "snapshot.pickle", snapconv=raw)
    return folder


def test_a_capture_becomes_a_report_that_is_named_after_it(tmp_path):
    folder = recorded(tmp_path)
    [(output, report)] = to_sqlite(folder, ConvertOptions()).reports
    assert output == Path("train.memory.sqlite")
    weights = ask(output, "SELECT name, size_bytes, grad_size_bytes FROM weight_entries")
    assert weights == [("fc.weight", 500, 0)]
    assert ask(output, "SELECT file_path, line_number FROM stack_frames") == [("model.py", 12)]
    assert "simulated" in [note.slug for note in report.notes]
    assert ("recorder.command", "train.py --fast") in report.source


def test_the_recorded_project_stands_unless_another_is_named(tmp_path):
    folder = recorded(tmp_path)
    assert load(folder).analysis.project.root == "/data/project/net"
    assert not load(folder).analysis.project.is_inferred
    assert load(folder, project_root="/data/project").analysis.project.root == "/data/project"


def test_info_shows_what_the_recorder_wrote(tmp_path):
    facts, _ = describe(recorded(tmp_path))
    assert facts["recorder"]["command"] == "train.py --fast"
    assert "  recorded by snapconv 0.1.0: train.py --fast" in list(info_lines(facts))


def test_the_times_of_a_capture_are_read_once_whatever_is_asked(tmp_path, monkeypatch):
    reads = []
    real = timing_reader.load_timing

    def counted(path):
        reads.append(path)
        return real(path)

    monkeypatch.setattr(timing_reader, "load_timing", counted)
    session = load(TRANSFORMER)
    session.advise(trades=True)
    session.of_device(0).advise()
    assert session.analysis.timing is session.of_device(0).analysis.timing
    session.view(tmp_path / "page.html")
    assert reads == [TRANSFORMER / "timing.json"]
    to_sqlite(TRANSFORMER, ConvertOptions(output=tmp_path / "out"))
    assert reads == [TRANSFORMER / "timing.json"] * 2
