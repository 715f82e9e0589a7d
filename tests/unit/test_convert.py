"""From a snapshot file to reports on disk: names, devices, refusals, options."""

from pathlib import Path

import pytest

from snapconv import convert
from snapconv.convert import ConvertOptions, to_sqlite
from snapconv.errors import InputError, OutputExistsError, OutputWriteError
from snapconv.files import report_output
from tests.builders import TraceBuilder, frame
from tests.tables import ask

pytestmark = pytest.mark.usefixtures("in_its_folder")

FRAMES = [frame("f", "/cluster/job/proj/train.py", 3)]


@pytest.fixture
def run(tmp_path):
    """A snapshot of 512 bytes, ``run.pickle``."""
    return TraceBuilder().segment().alloc(512, frames=FRAMES).write(tmp_path / "run.pickle")


@pytest.fixture
def two(tmp_path):
    """A snapshot of 512 bytes on device 0 and 1,024 on device 3, ``two.pickle``."""
    other = TraceBuilder(device=3).segment().alloc(1024, frames=FRAMES)
    return TraceBuilder().segment().alloc(512, frames=FRAMES).write(tmp_path / "two.pickle", other)


def peak(path):
    return ask(path, "SELECT size_bytes FROM misc_sizes")[0][0]


def tables(path):
    return {name for (name,) in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def files(folder, but=()):
    return sorted(path.name for path in folder.iterdir() if path.name not in but)


@pytest.mark.parametrize(
    ("snapshot", "report"),
    [
        ("run.pickle", "run.memory.sqlite"),
        ("run.pickle.gz", "run.memory.sqlite"),
        ("run.PKL.GZ", "run.memory.sqlite"),
        ("run.json", "run.memory.sqlite"),
        ("run.html", "run.memory.sqlite"),
        ("run.v2.pickle", "run.v2.memory.sqlite"),
        ("run.snapshot", "run.snapshot.memory.sqlite"),
        ("run", "run.memory.sqlite"),
        (".pickle", ".pickle.memory.sqlite"),
    ],
)
def test_a_report_is_named_after_its_snapshot_and_lies_in_the_current_folder(snapshot, report):
    assert report_output(Path("/data") / snapshot, None, "memory") == Path(report)


def test_reports_of_several_devices_are_distinguished_by_their_ordinal():
    path = report_output(Path("/data/run.pickle"), None, "memory", ordinal=".cuda3")
    assert path == Path("run.cuda3.memory.sqlite")


@pytest.mark.parametrize(
    ("output", "report", "of_device"),
    [
        ("/out/x.memory.sqlite", "/out/x.memory.sqlite", "/out/x.cuda3.memory.sqlite"),
        ("/out/x.sqlite", "/out/x.sqlite", "/out/x.cuda3.sqlite"),
        ("/out/x.db", "/out/x.db", "/out/x.cuda3.db"),
        ("/out/x", "/out/x", "/out/x.cuda3"),
        ("/out/x.report", "/out/x.report", "/out/x.report.cuda3"),
    ],
)
def test_a_given_output_keeps_its_suffix(output, report, of_device):
    output = Path(output)
    assert report_output(Path("run.pickle"), output, "memory") == Path(report)
    assert report_output(Path("run.pickle"), output, "memory", ordinal=".cuda3") == Path(of_device)


@pytest.mark.parametrize("output", ["x", "x.sqlite", "x.memory.sqlite", "x.time.sqlite"])
def test_both_reports_of_a_capture_have_their_kind_in_their_names(output):
    output = Path("/out") / output
    capture = Path("run.capture")
    assert report_output(capture, output, "memory", has_times=True) == Path("/out/x.memory.sqlite")
    assert report_output(capture, output, "memory", ordinal=".cuda3", has_times=True) == Path(
        "/out/x.cuda3.memory.sqlite"
    )
    assert report_output(capture, output, "time", has_times=True) == Path("/out/x.time.sqlite")


def test_an_only_memory_report_never_has_the_name_of_a_run_time_report():
    output = Path("x.time.sqlite")
    assert report_output(Path("run.pickle"), output, "memory") == Path("x.memory.sqlite")


def test_one_device_of_several_keeps_its_ordinal_in_the_name(two, tmp_path):
    to_sqlite(two, ConvertOptions(device=3))
    assert files(tmp_path, but=["two.pickle"]) == ["two.cuda3.memory.sqlite"]
    assert peak(tmp_path / "two.cuda3.memory.sqlite") == 1024


def test_the_only_device_of_a_file_has_no_ordinal_in_the_name_even_when_chosen(run, tmp_path):
    to_sqlite(run, ConvertOptions(device=0))
    assert files(tmp_path) == ["run.memory.sqlite", "run.pickle"]


def test_a_given_output_that_exists_is_refused_before_anything_is_read(run, tmp_path, monkeypatch):
    output = tmp_path / "x.sqlite"
    output.write_bytes(b"precious")

    def read(*_, **__):
        raise AssertionError("the snapshot was read")

    monkeypatch.setattr(convert, "load_snapshot", read)
    with pytest.raises(OutputExistsError, match="--force"):
        to_sqlite(run, ConvertOptions(output=output))
    assert output.read_bytes() == b"precious"


def test_a_file_of_a_name_that_several_devices_do_not_take_does_no_harm(two, tmp_path):
    (tmp_path / "two.memory.sqlite").write_bytes(b"precious")
    to_sqlite(two, ConvertOptions())
    assert (tmp_path / "two.memory.sqlite").read_bytes() == b"precious"
    assert len(files(tmp_path)) == 4


def test_a_name_made_from_the_output_never_replaces_the_snapshot(two, tmp_path):
    snapshot = two.rename(tmp_path / "x.cuda3.sqlite")
    before = snapshot.read_bytes()
    with pytest.raises(OutputWriteError, match=r"x\.cuda3\.sqlite is the snapshot itself"):
        to_sqlite(snapshot, ConvertOptions(output=tmp_path / "x.sqlite", force=True))
    assert snapshot.read_bytes() == before
    assert files(tmp_path) == ["x.cuda3.sqlite"]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("output", [None, "run.memory.sqlite"])
def test_another_name_of_the_snapshot_is_never_replaced(run, tmp_path, link, output):
    getattr(tmp_path / "run.memory.sqlite", link)(run)
    before = run.read_bytes()
    options = ConvertOptions(output=output and tmp_path / output, force=True)
    with pytest.raises(OutputWriteError, match="snapshot itself"):
        to_sqlite(run, options)
    assert run.read_bytes() == (tmp_path / "run.memory.sqlite").read_bytes() == before


def test_a_missing_snapshot_is_named_before_the_folder_of_its_report(tmp_path):
    with pytest.raises(InputError, match=r"run\.pickle"):
        to_sqlite(tmp_path / "no" / "run.pickle", ConvertOptions())


def test_a_missing_folder_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(OutputWriteError):
        to_sqlite(tmp_path / "nothing.pickle", ConvertOptions(output=tmp_path / "no" / "x.sqlite"))


def test_extended_adds_tables_and_changes_none(run, tmp_path):
    plain, extended = tmp_path / "plain.sqlite", tmp_path / "extended.sqlite"
    to_sqlite(run, ConvertOptions(output=plain))
    to_sqlite(run, ConvertOptions(output=extended, extended=True))
    added = tables(extended) - tables(plain)
    assert tables(plain) < tables(extended)
    assert all(name.startswith("snapconv_") for name in added)
    assert not any(name.startswith("snapconv_") for name in tables(plain))
    for name in tables(plain) - {"sqlite_sequence"}:
        assert ask(plain, f"SELECT * FROM {name}") == ask(extended, f"SELECT * FROM {name}")


def test_the_same_snapshot_gives_the_same_bytes(run, tmp_path):
    outputs = [tmp_path / "a.sqlite", tmp_path / "b.sqlite"]
    for output in outputs:
        to_sqlite(run, ConvertOptions(output=output, extended=True))
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_stages_are_reported_in_their_order(two):
    stages = []
    to_sqlite(two, ConvertOptions(), progress=lambda stage, done, total: stages.append(stage))
    order = list(dict.fromkeys(stages))
    assert order[-2:] == ["analysing", "writing"]
    assert stages.count("analysing") == 2
