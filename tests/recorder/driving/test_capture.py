import errno
import json
import pickle
import pickletools
from pathlib import Path

import pytest

from snapconv.errors import OutputExistsError, OutputWriteError
from snapconv.recorder import capture_folder
from snapconv.recorder.capture_folder import check_output, write_capture, write_capture_somewhere

SNAPSHOT = {"segments": [], "device_traces": [[]], "snapconv": {"version": 1}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_capture_is_the_snapshot_and_the_times(tmp_path):
    n_bytes = write_capture(tmp_path / "c", SNAPSHOT, {"version": 1}, force=False)
    assert names(tmp_path) == ["c"]
    content = (tmp_path / "c" / "snapshot.pickle").read_bytes()
    assert pickle.loads(content) == SNAPSHOT
    timing = (tmp_path / "c" / "timing.json").read_bytes()
    assert json.loads(timing) == {"version": 1}
    assert n_bytes == len(content) + len(timing)


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="needs a folder in which nobody may write"
)
def test_a_capture_whose_place_is_lost_goes_to_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place, _ = write_capture_somewhere(Path("/proc/lost/c"), SNAPSHOT, None, force=False)
    assert place == tmp_path / "c"
    assert names(place) == ["snapshot.pickle"]


def test_the_pickle_has_the_protocol_that_every_reader_knows(tmp_path):
    write_capture(tmp_path / "c", SNAPSHOT, None, force=False)
    first = next(pickletools.genops((tmp_path / "c" / "snapshot.pickle").read_bytes()))
    assert (first[0].name, first[1]) == ("PROTO", 4)


def test_a_capture_without_times_has_one_file(tmp_path):
    write_capture(tmp_path / "c", SNAPSHOT, None, force=False)
    assert names(tmp_path / "c") == ["snapshot.pickle"]


def test_an_old_capture_stays_without_force(tmp_path):
    write_capture(tmp_path / "c", SNAPSHOT, {"old": True}, force=False)
    for refused in (
        lambda: check_output(tmp_path / "c", force=False),
        lambda: write_capture(tmp_path / "c", SNAPSHOT, None, force=False),
    ):
        with pytest.raises(OutputExistsError, match="--force"):
            refused()
    assert names(tmp_path / "c") == ["snapshot.pickle", "timing.json"]
    assert names(tmp_path) == ["c"]


def test_force_replaces_the_whole_of_an_old_capture(tmp_path):
    write_capture(tmp_path / "c", SNAPSHOT, {"old": True}, force=False)
    check_output(tmp_path / "c", force=True)
    write_capture(tmp_path / "c", SNAPSHOT, None, force=True)
    assert names(tmp_path / "c") == ["snapshot.pickle"]
    assert names(tmp_path) == ["c"]


def test_force_never_removes_what_is_no_capture(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("precious")
    with pytest.raises(OutputExistsError, match=r"it has model\.py"):
        check_output(tmp_path / "src", force=True)
    assert (tmp_path / "src" / "model.py").read_text() == "precious"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_place_taken_by_no_folder_is_refused(tmp_path, kind):
    if kind == "file":
        (tmp_path / "c").write_text("x")
    else:
        (tmp_path / "c").symlink_to(tmp_path)
    with pytest.raises(OutputWriteError, match="it is no folder"):
        check_output(tmp_path / "c", force=True)


def test_a_missing_folder_is_told_before_anything_runs(tmp_path):
    with pytest.raises(OutputWriteError, match="create it first"):
        check_output(tmp_path / "missing" / "c", force=False)


def refusing(code):
    def refuse(*_, **__):
        raise OSError(code, "refused")

    return refuse


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "mkdir", refusing(errno.EACCES))
    with pytest.raises(OutputWriteError, match="permission denied"):
        check_output(tmp_path / "c", force=False)


def test_a_check_leaves_nothing_behind(tmp_path):
    check_output(tmp_path / "c", force=False)
    assert names(tmp_path) == []


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    write_capture(tmp_path / "c", SNAPSHOT, None, force=False)
    monkeypatch.setattr(capture_folder.os, "fsync", refusing(errno.ENOSPC))
    with pytest.raises(OutputWriteError, match="the disk is full"):
        write_capture(tmp_path / "c", {}, None, force=True)
    assert names(tmp_path) == ["c"]
    assert pickle.loads((tmp_path / "c" / "snapshot.pickle").read_bytes()) == SNAPSHOT


def test_an_old_capture_is_put_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    write_capture(tmp_path / "c", SNAPSHOT, None, force=False)
    rename = Path.rename

    def refuse_new(self, target):
        if self.suffix == ".partial":
            raise OSError(errno.EPERM, "refused")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(OutputWriteError, match="not permitted"):
        write_capture(tmp_path / "c", {}, None, force=True)
    monkeypatch.undo()
    assert names(tmp_path) == ["c"]
    assert pickle.loads((tmp_path / "c" / "snapshot.pickle").read_bytes()) == SNAPSHOT
