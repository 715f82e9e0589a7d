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
    ("snapshot", "given", "ordinal", "kind", "has_times", "report"),
    [
        ("run.pickle", None, "", "memory", False, "run.memory.sqlite"),
        ("run.pickle.gz", None, "", "memory", False, "run.memory.sqlite"),
        ("run.PKL.GZ", None, "", "memory", False, "run.memory.sqlite"),
        ("run.v2.pickle", None, ".cuda3", "memory", False, "run.v2.cuda3.memory.sqlite"),
        ("run.snapshot", None, "", "memory", False, "run.snapshot.memory.sqlite"),
        ("run", None, "", "memory", False, "run.memory.sqlite"),
        (".pickle", None, "", "memory", False, ".pickle.memory.sqlite"),
        # A given output keeps its ending.
        *(
            (
                "run.pickle",
                f"/out/{given}",
                ordinal,
                "memory",
                False,
                f"/out/{stem}{ordinal}{ending}",
            )
            for ordinal in ("", ".cuda3")
            for given, stem, ending in (
                ("x.memory.sqlite", "x", ".memory.sqlite"),
                ("x.db", "x", ".db"),
                ("x", "x", ""),
                ("x.report", "x.report", ""),
            )
        ),
        # Both reports of a capture have their kind in their names, and no memory report has the
        # other's.
        *(
            ("run.capture", f"/out/{given}", ordinal, kind, True, f"/out/x{ordinal}.{kind}.sqlite")
            for given in ("x", "x.sqlite", "x.memory.sqlite", "x.time.sqlite")
            for kind, ordinal in (("memory", ""), ("memory", ".cuda3"), ("time", ""))
        ),
        ("run.pickle", "x.time.sqlite", "", "memory", False, "x.memory.sqlite"),
    ],
)
def test_a_report_is_named_after_its_snapshot_or_its_output(
    snapshot, given, ordinal, kind, has_times, report
):
    output = given and Path(given)
    found = report_output(
        Path("/data") / snapshot, output, kind, ordinal=ordinal, has_times=has_times
    )
    assert found == Path(report)


def test_one_device_of_several_keeps_its_ordinal_in_the_name_and_an_only_one_has_none(
    run, two, tmp_path
):
    to_sqlite(two, ConvertOptions(device=3))
    to_sqlite(run, ConvertOptions(device=0))
    reports = files(tmp_path, but=["two.pickle", "run.pickle"])
    assert reports == ["run.memory.sqlite", "two.cuda3.memory.sqlite"]
    assert peak(tmp_path / "two.cuda3.memory.sqlite") == 1024


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


def test_stages_are_reported_in_their_order(two):
    stages = []
    to_sqlite(two, ConvertOptions(), progress=lambda stage, done, total: stages.append(stage))
    order = list(dict.fromkeys(stages))
    assert order[-2:] == ["analysing", "writing"]
    assert stages.count("analysing") == 2


def test_a_report_is_no_smaller_than_the_help_says(run, tmp_path):
    for output, is_extended, n_kib in (("plain", False, 44), ("extended", True, 140)):
        to_sqlite(run, ConvertOptions(output=tmp_path / output, extended=is_extended))
        assert (tmp_path / output).stat().st_size == n_kib << 10
