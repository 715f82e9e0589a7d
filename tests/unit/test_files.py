import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from snapconv.errors import OutputExistsError, OutputWriteError
from snapconv.files import check_outputs, given_output, new_files

ROOT = Path(__file__).parents[2]


def write(*paths, content=b"new", force=False):
    with new_files(paths, force=force) as temporaries:
        for temporary in temporaries:
            temporary.write_bytes(content)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_windows_has_open_elsewhere_is_refused_with_what_to_do(tmp_path, monkeypatch):
    def in_use(*_):
        error = PermissionError(errno.EACCES, "denied")
        error.winerror = 32
        raise error

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", in_use)
    with pytest.raises(OutputWriteError, match="another program has it open"):
        write(tmp_path / "a", force=True)
    assert names_in(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_the_output_appears_with_its_content_and_nothing_else(tmp_path):
    write(tmp_path / "a.sqlite")
    assert names_in(tmp_path) == ["a.sqlite"]
    assert (tmp_path / "a.sqlite").read_bytes() == b"new"


def test_the_output_does_not_exist_before_the_block_ends(tmp_path):
    with new_files([tmp_path / "a"], force=False) as (temporary,):
        temporary.write_bytes(b"half")
        (name,) = names_in(tmp_path)
        assert name.startswith(".a.")
        assert name.endswith(".partial")


def test_the_output_has_the_permissions_of_any_new_file(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_an_existing_output_is_refused_before_the_work_begins_and_kept(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OutputExistsError, match=r"exists already.*--force"):
        check_outputs([tmp_path / "a"], force=False)
    with pytest.raises(OutputExistsError), new_files([tmp_path / "a"], force=False):
        pytest.fail("the work began")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names_in(tmp_path) == ["a"]


def test_force_replaces_an_existing_output(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    check_outputs([tmp_path / "a"], force=True)
    write(tmp_path / "a", force=True)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names_in(tmp_path) == ["a"]


def test_an_output_that_appears_in_the_meantime_is_kept(tmp_path):
    def conflict():
        with new_files([tmp_path / "a", tmp_path / "b"], force=False) as temporaries:
            for temporary in temporaries:
                temporary.write_bytes(b"new")
            (tmp_path / "b").write_bytes(b"somebody else's")

    with pytest.raises(OutputExistsError, match="--force"):
        conflict()
    assert names_in(tmp_path) == ["b"], "and a, which came first, is undone"
    assert (tmp_path / "b").read_bytes() == b"somebody else's"


def test_an_output_that_appears_in_the_meantime_is_kept_without_hard_links_too(
    tmp_path, monkeypatch
):
    def no_links(*_):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    write(tmp_path / "a")
    assert names_in(tmp_path) == ["a"]
    with pytest.raises(OutputExistsError), new_files([tmp_path / "b"], force=False):
        (tmp_path / "b").write_bytes(b"somebody else's")
    assert names_in(tmp_path) == ["a", "b"]
    assert (tmp_path / "b").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("error", [ValueError("ours"), KeyboardInterrupt()])
def test_an_exception_in_the_block_leaves_nothing_behind(tmp_path, error):
    def fail():
        with new_files([tmp_path / "a", tmp_path / "b"], force=False) as temporaries:
            temporaries[0].write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert names_in(tmp_path) == []


def test_a_disk_that_fills_up_in_the_block_is_an_error_of_the_output(tmp_path):
    def fill():
        with new_files([tmp_path / "a"], force=False):
            full_disk()

    with pytest.raises(OutputWriteError, match=r"a: the disk is full; free some space"):
        fill()
    assert names_in(tmp_path) == []


def test_a_disk_that_fills_up_at_the_last_moment_leaves_nothing_new_behind(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputWriteError, match=r"a: the disk is full; free some space"):
        write(tmp_path / "a", tmp_path / "b", force=True)
    assert names_in(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    def sync_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", sync_files_only)
    write(tmp_path / "a")
    assert names_in(tmp_path) == ["a"]


def test_file_and_folder_are_synced_before_and_after_the_output_appears(tmp_path, monkeypatch):
    synced = []

    def record(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(("folder" if is_folder else "file", (tmp_path / "a").exists()))

    monkeypatch.setattr(os, "fsync", record)
    write(tmp_path / "a")
    assert synced == [("file", False), ("folder", True)]


def test_a_missing_folder_is_named_with_what_to_do(tmp_path):
    with pytest.raises(OutputWriteError, match=r"none/a: its folder does not exist.*create it"):
        check_outputs([tmp_path / "none" / "a"], force=False)


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputWriteError, match="its folder is not a folder"):
        check_outputs([tmp_path / "file" / "a"], force=False)


def test_a_name_too_long_is_refused(tmp_path):
    with pytest.raises(OutputWriteError, match="choose a shorter one"):
        check_outputs([tmp_path / ("a" * 300)], force=False)


@pytest.mark.parametrize("name", ["a" * 255, "\N{SNOWMAN}" * 85, "a b?c#d%20.sqlite"])
def test_a_name_that_the_file_system_allows_is_allowed(tmp_path, name):
    write(tmp_path / name)
    assert names_in(tmp_path) == [name]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_as_output_is_refused_even_with_force(tmp_path, force):
    with pytest.raises(OutputWriteError, match="it is a folder; name a file inside it"):
        check_outputs([tmp_path], force=force)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, force):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputWriteError, match="not a regular file"):
        check_outputs([tmp_path / "pipe"], force=force)


def test_the_same_output_twice_is_refused(tmp_path):
    with pytest.raises(OutputWriteError, match="named twice"):
        check_outputs([tmp_path / "a", tmp_path / "x" / ".." / "a"], force=True)


def test_a_link_that_the_user_named_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "a")
    write(given_output(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(OutputExistsError, match="a exists already"):
        write(given_output(tmp_path / "link"))
    write(given_output(tmp_path / "link"), content=b"newer", force=True)
    assert (tmp_path / "real" / "a").read_bytes() == b"newer"
    assert names_in(tmp_path / "real") == ["a"]


@pytest.mark.parametrize(("name", "advice"), [("-", "name a file"), ("runs/", "runs/NAME")])
def test_the_name_of_a_stream_or_a_folder_is_refused_in_the_library_too(name, advice):
    with pytest.raises(OutputWriteError, match=advice):
        given_output(name)


@pytest.mark.skipif(os.name != "posix", reason="needs the permissions of Unix")
def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o555)
    if os.geteuid() == 0:  # who may everything asks the same question and gets another answer
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    try:
        with pytest.raises(OutputWriteError, match="cannot be written to; choose another"):
            check_outputs([tmp_path / "a"], force=False)
    finally:
        tmp_path.chmod(0o755)


def test_a_refused_temporary_file_is_an_output_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputWriteError, match="permission denied; choose a folder"):
        write(tmp_path / "a")


def test_two_runs_for_the_same_output_use_different_temporary_files(tmp_path):
    with (
        new_files([tmp_path / "a"], force=True) as (one,),
        new_files([tmp_path / "a"], force=True) as (two,),
    ):
        assert one != two


def run_python(code, *arguments, **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, **options
    )


KILLED_HALF_WAY = """
import os, signal, sys
from pathlib import Path
from snapconv.files import new_files
with new_files([Path(sys.argv[1])], force=True) as (temporary,):
    temporary.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_run_keeps_the_old_output_and_leaves_only_a_hidden_file(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    assert run_python(KILLED_HALF_WAY, tmp_path / "a").returncode == -9
    assert (tmp_path / "a").read_bytes() == b"old"
    hidden, name = names_in(tmp_path)
    assert (hidden.startswith(".a."), hidden.endswith(".partial"), name) == (True, True, "a")
