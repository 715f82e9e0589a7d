"""What was not computed is written over no file, and read back all the same."""

import bz2
import io
import logging
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = [pytest.mark.smoke("no-compute"), pytest.mark.filterwarnings("ignore:.*torch.jit")]

PRECIOUS = b"what somebody needs"
N_BYTES = 4 * (512 * 1024 + 1024)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def simulation(folder):
    with simulated(SimulationOptions(compute=False)) as running:
        yield running


@pytest.fixture
def state(simulation):
    return torch.nn.Linear(512, 1024, device="cuda").state_dict()


def by_name(state, path):
    torch.save(state, path)


def through_open(state, path):
    with open(path, "wb") as file:  # noqa: PTH123  # as programs do
        torch.save(state, file)


def through_a_buffer(state, path):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(buffer.getvalue())


def by_renaming(state, path):
    torch.save(state, path.with_suffix(".tmp"))
    os.replace(src=path.with_suffix(".tmp"), dst=path)  # noqa: PTH105


def by_pickle(state, path):
    with path.open("wb") as file:
        pickle.dump(state, file)


def by_safetensors(state, path):
    pytest.importorskip("safetensors.torch").save_file(state, path)


def loaded(path, save):
    if save is by_pickle:
        with path.open("rb") as file:
            return pickle.load(file)
    return torch.load(path)


SAVES = [by_name, through_open, through_a_buffer, by_renaming]


def by_numpy(state, path):
    np.savez(path, **{name: tensor.cpu().numpy() for name, tensor in state.items()})


def by_bytes(state, path):
    state["weight"].cpu().numpy().tofile(path)


def by_a_temporary_file(state, path):
    array = state["weight"].cpu().numpy()
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
        np.save(file, array)
    Path(file.name).replace(path)


def by_a_temporary_number(state, path):
    contents = state["weight"].cpu().numpy().tobytes()
    number, name = tempfile.mkstemp(dir=path.parent)
    os.write(number, contents)
    os.close(number)
    Path(name).replace(path)


def by_script(state, path):
    module = torch.jit.script(torch.nn.Linear(512, 1024, device="cuda"))
    torch.jit.save(module, path)
    assert torch.jit.load(path).weight.shape == (1024, 512)


def by_export(state, path):
    layer = torch.nn.Linear(512, 1024, device="cuda")
    torch.export.save(torch.export.export(layer, (torch.ones(1, 512, device="cuda"),)), path)
    assert torch.export.load(path).state_dict["weight"].shape == (1024, 512)


def as_text(_state, path):
    path.write_text("losses")
    assert path.read_text() == "losses"


def by_copying(_state, path):
    path.with_suffix(".new").write_bytes(b"new")
    shutil.copy2(path.with_suffix(".new"), path)
    path.with_suffix(".new").unlink()
    assert path.read_bytes() == b"new"


def by_removing(_state, path):
    path.unlink()
    assert not path.exists()
    assert not os.path.lexists(path)
    assert os.listdir(path.parent) == [*path.parent.glob("*")] == [*os.scandir(path.parent)] == []  # noqa: PTH208
    with pytest.raises(FileNotFoundError):
        path.unlink()


def by_rotating(state, path):
    path.rename(path.with_suffix(".old"))
    assert path.with_suffix(".old").read_bytes() == PRECIOUS
    torch.save(state, path)
    path.with_suffix(".old").unlink()


def by_removing_the_folder(state, path):
    (path.parent / "deep").mkdir()
    torch.save(state, path.parent / "deep" / "new.pt")
    shutil.rmtree(path.parent)
    assert not path.parent.exists()
    path.parent.mkdir()
    assert os.listdir(path.parent) == []  # noqa: PTH208  # as programs do
    torch.save(state, path)
    assert torch.load(path)["weight"].shape == (1024, 512)


def by_copying_the_folder(state, path):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    torch.save(state, path)
    shutil.copytree(path.parent, "copy")
    assert torch.load("copy/model.npz")["weight"].shape == (1024, 512)
    shutil.rmtree("copy")


def by_renaming_the_folder(state, path):
    path.parent.rename("old")
    assert Path("old", path.name).read_bytes() == PRECIOUS
    Path("old", path.name).write_bytes(b"new")
    path.parent.mkdir()
    torch.save(state, path)


def through_a_link(state, path):
    Path("link").symlink_to(path)
    torch.save(state, "link")
    Path("link").unlink()


def by_number(_state, path):
    number = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(number, b"new")
    os.close(number)
    assert path.read_bytes() == b"new"


def by_truncating(_state, path):
    os.truncate(path, 4)
    assert (path.stat().st_size, path.read_bytes()) == (4, PRECIOUS[:4])


def in_place(_state, path):
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:4] = b"WHAT"
    assert path.read_bytes() == b"WHAT" + PRECIOUS[4:]


def by_appending(_state, path):
    with closing(logging.FileHandler(path)) as log:
        log.emit(logging.makeLogRecord({"msg": "loss 0.0"}))
    assert path.read_bytes() == PRECIOUS + b"loss 0.0\n"


def by_a_name_of_open(_state, path):
    with bz2.open(os.fsencode(path), "wb") as file:
        file.write(b"new")
    assert bz2.decompress(path.read_bytes()) == b"new"


def by_a_database(_state, path):
    path.unlink()
    for n_rows in (1, 2):
        with closing(sqlite3.connect(database=path)) as database, database:
            database.execute("create table if not exists losses(loss)")
            database.execute("insert into losses values (0)")
            assert database.execute("select count(*) from losses").fetchone() == (n_rows,)


def by_another_name(_state, path):
    path.rename("moved")
    os.link("moved", "linked")
    for name in ("moved", "linked"):
        assert Path(name).read_bytes() == PRECIOUS
        Path(name).write_bytes(b"new")
        assert Path(name).read_bytes() == b"new"
        assert sorted(os.listdir()) == ["linked", "moved", "run"]  # noqa: PTH208
    assert [*os.walk(".")] == [(".", ["run"], ["moved", "linked"]), ("./run", [], [])]


def by_a_database_of_an_address(state, path):
    by_a_database(state, path)
    address = f"file:{path}?mode=rwc"
    with closing(sqlite3.connect(address, uri=True)) as database, database:
        database.execute("insert into losses values (0)")
    with closing(sqlite3.connect(address.replace("rwc", "ro"), uri=True)) as database:
        assert database.execute("select count(*) from losses").fetchone() == (3,)


def by_a_shared_tensor(_state, path):
    torch.from_file(str(path), shared=True, size=4, dtype=torch.uint8)
    assert path.read_bytes() == PRECIOUS


def by_its_mode_and_owner(_state, path):
    path.parent.chmod(0o700)
    path.chmod(0o600)
    os.chown(path, os.getuid(), os.getgid())
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.statvfs(path).f_bsize
    [entry] = os.scandir("./run")
    assert (entry.path, entry.inode()) == ("./run/model.npz", path.stat().st_ino)


def by_keywords(state, path):
    os.truncate(path=path, length=5)
    assert path.read_bytes() == PRECIOUS[:5]
    torch.save(state, f=path)
    assert torch.load(f=path)["weight"].shape == (1024, 512)


def by_a_tokenizer(_state, path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0}, unk_token="word"))
    tokenizer.save(str(path))
    assert tokenizers.Tokenizer.from_file(str(path)).get_vocab() == {"word": 0}


def by_safetensors_of_numpy(_state, path):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"ones": np.ones(4)}, path)
    assert safetensors.load_file(path)["ones"].tolist() == [1, 1, 1, 1]


def by_another_process(_state, path):
    worker = multiprocessing.get_context("fork").Process(target=path.write_bytes, args=(b"new",))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    path.touch()


def by_a_link_to_the_latest(state, path):
    Path("latest").symlink_to(path.parent)
    Path("run/../new").mkdir()
    torch.save(state, "new/model.npz")
    Path("link").symlink_to("new")
    Path("link").replace("latest")
    assert torch.load("latest/model.npz")["weight"].shape == (1024, 512)
    assert path.read_bytes() == PRECIOUS
    Path("latest/../run/model.npz").write_bytes(b"new")
    assert path.read_bytes() == b"new"
    Path("latest").unlink()
    shutil.rmtree("new")


CHANGES = [
    *(
        by_number,
        by_truncating,
        in_place,
        by_appending,
        by_a_name_of_open,
        by_a_database,
        by_another_name,
    ),
    *(by_another_process, by_a_link_to_the_latest),
    *(by_a_database_of_an_address, by_a_shared_tensor, by_its_mode_and_owner),
    *(by_keywords, by_a_tokenizer, by_safetensors_of_numpy),
    *SAVES,
    *(
        by_pickle,
        by_safetensors,
        by_numpy,
        by_bytes,
        by_script,
        as_text,
        by_copying,
        by_removing,
        by_rotating,
    ),
    *(by_removing_the_folder, by_copying_the_folder, by_renaming_the_folder, through_a_link),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_was_there_is_not_touched(folder, change):
    path = folder / "run" / "model.npz"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    before, folder_mode = path.stat(), path.parent.stat().st_mode
    with simulated(SimulationOptions(compute=False)) as simulation:
        change(torch.nn.Linear(512, 1024, device="cuda").state_dict(), path)
        notes = [note.message for note in simulation.notes() if note.slug == "files-not-written"]

    assert path.read_bytes() == PRECIOUS
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (path.stat().st_mode, path.parent.stat().st_mode) == (before.st_mode, folder_mode)
    assert sorted(entry.name for entry in folder.rglob("*")) == ["model.npz", "run"]
    assert "run/model.npz" in notes[0]


BY_OTHERS = [by_numpy, by_bytes, by_a_temporary_file, by_a_temporary_number, by_script, by_export]


@pytest.mark.parametrize("save", [*SAVES, by_pickle, by_safetensors, *BY_OTHERS])
def test_a_new_file_of_what_was_not_computed_is_gone_afterwards(folder, save):
    with simulated(SimulationOptions(compute=False)) as simulation:
        Path("staging").mkdir()
        save(
            torch.nn.Linear(512, 1024, device="cuda").state_dict(), folder / "staging" / "model.npz"
        )
        Path("staging").rename("run")
        assert Path("run/model.npz").exists()
        [listed] = simulation.values()["files_not_written"]

    assert [entry.name for entry in folder.rglob("*")] == ["run"]
    assert listed["path"] == "run/model.npz"
    assert listed["n_bytes"] >= 4 * 512 * 1024


def test_what_is_new_and_was_computed_is_kept(folder):
    with simulated(SimulationOptions(compute=False)) as simulation:
        weight = torch.ones(512, 1024, device="cuda")
        with Path("events").open("wb") as events, Path("log.txt").open("a") as log:
            log.write(f"{weight.cpu().numpy().sum()}\n")
            events.write(b"0.0")
        number, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(number, "w") as file:
            file.write("[0.0]")
        Path(name).replace("times.json")
        torch.save({"order": torch.arange(5)}, "known.pt")
        Path("losses.json").write_text("[0.0]")
        assert [note.slug for note in simulation.notes()] == ["values-not-computed"]

    assert Path("log.txt").read_text() == "0.0\n"
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "events",
        "known.pt",
        "log.txt",
        "losses.json",
        "times.json",
    ]
    assert torch.load("known.pt")["order"].tolist() == [0, 1, 2, 3, 4]


def test_a_database_that_was_there_stays(folder):
    with closing(sqlite3.connect("runs.db")) as database, database:
        database.execute("create table losses(loss)")
    before = Path("runs.db").read_bytes()
    with (
        simulated(SimulationOptions(compute=False)),
        closing(sqlite3.connect("runs.db")) as database,
        database,
    ):
        database.execute("insert into losses values (0)")

    assert ([*folder.iterdir()], Path("runs.db").read_bytes()) == ([folder / "runs.db"], before)


def test_an_empty_folder_that_was_there_stays(folder):
    Path("a/b").mkdir(parents=True)
    with simulated(SimulationOptions(compute=False)):
        with pytest.raises(OSError, match="not empty"):
            Path("a").rmdir()
        os.removedirs("a/b")
        assert not os.path.lexists("a")
    assert Path("a/b").is_dir()


def test_what_is_beside_a_file_that_was_not_written_stays(folder):
    Path("precious").write_bytes(PRECIOUS)
    with simulated(SimulationOptions(compute=False)):
        Path("run/last").mkdir(parents=True)
        Path("run/last/config.json").write_text("{}")
        torch.save(torch.ones(512, 1024, device="cuda"), "run/last/model.pt")
        subprocess.run(["mv", "precious", "run/last/precious"], check=True)

    assert sorted(entry.name for entry in Path("run/last").iterdir()) == ["config.json", "precious"]


def test_what_other_processes_copy_says_that_it_has_no_values(folder):
    Path("best.pt").write_bytes(PRECIOUS)
    with simulated(SimulationOptions(compute=False)):
        torch.save(torch.ones(512, 1024, device="cuda"), "model.pt")
        torch.save(torch.ones(512, 1024, device="cuda"), "best.pt")
        subprocess.run(["cp", "model.pt", "copied.pt"], check=True)

    assert sorted(entry.name for entry in folder.iterdir()) == ["best.pt", "copied.pt"]
    assert Path("best.pt").read_bytes() == PRECIOUS
    assert b"the values of this file were not computed" in Path("copied.pt").read_bytes()
    with pytest.raises(RuntimeError, match="file not found"):
        torch.load("copied.pt")


def test_a_large_file_is_not_changed_in_place(folder):
    with Path("large").open("wb") as file:
        file.truncate((1 << 30) + 1)
    with simulated(SimulationOptions(compute=False)):
        with pytest.raises(OSError, match="a file over 1 GiB"):
            os.truncate("large", 1)
        with Path("large").open("rb") as file:
            assert file.read(1) == b"\0"
        Path("large").write_bytes(b"new")
        assert Path("large").read_bytes() == b"new"
    assert Path("large").stat().st_size == (1 << 30) + 1


def test_what_a_forked_child_saves_is_read_back(folder):
    with simulated(SimulationOptions(compute=False)):
        state = torch.nn.Linear(512, 1024, device="cuda").state_dict()
        arguments = (state | {"order": torch.arange(3)}, "model.pt")
        worker = multiprocessing.get_context("fork").Process(target=torch.save, args=arguments)
        worker.start()
        worker.join()
        back = torch.load("model.pt")
        assert (back["weight"].shape, back["order"].tolist()) == ((1024, 512), [0, 1, 2])


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from snapconv.simulation import SimulationOptions, simulated
with simulated(SimulationOptions(compute=False)):
    torch.save(torch.ones(512, 1024, device="cuda"), "model.pt")
    with open("log", "a") as log:
        log.write("new")
    os.replace("log", "old")
    shutil.rmtree("run")
    os.mkdir("run")
    Path("run", "model.pt").write_bytes(b"new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_all_files_that_were_there(folder):
    Path("run").mkdir()
    names = ("model.pt", "log", "old", "run/model.pt")
    for name in names:
        Path(name).write_bytes(PRECIOUS)
    done = subprocess.run([sys.executable, "-c", KILLED], check=False, stderr=subprocess.PIPE)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert sorted(str(path) for path in Path().rglob("*")) == sorted(("run", *names))
    assert {Path(name).read_bytes() for name in names} == {PRECIOUS}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_and_a_device_are_themselves(folder):
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    with simulated(SimulationOptions(compute=False)):
        for name in ("pipe", os.devnull):
            Path(name).write_bytes(b"new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)


def test_temporary_files_are_the_programs(folder):
    """As `datasets` caches: a file by tempfile, written by its name and moved."""
    with simulated(SimulationOptions(compute=False)):
        with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as made:
            pass
        Path(made.name).write_bytes(b"new")
        shutil.move(made.name, folder / "cached")
        with tempfile.NamedTemporaryFile("w", dir=folder):
            pass

    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("cached", b"new")]


@pytest.mark.parametrize("was_there", [True, False])
@pytest.mark.parametrize("save", [*SAVES, by_pickle], ids=lambda save: save.__name__)
def test_what_was_saved_is_read_back_with_its_memory(folder, simulation, state, save, was_there):
    path = folder / "model.pt"
    if was_there:
        path.write_bytes(PRECIOUS)
    save(state, path)
    before = torch.cuda.memory_allocated()

    back = loaded(path, save)
    assert {name: tensor.shape for name, tensor in back.items()} == {
        name: tensor.shape for name, tensor in state.items()
    }
    assert torch.cuda.memory_allocated() - before == N_BYTES
    if save is not by_pickle:
        assert torch.load(path, map_location="cpu")["bias"].device.type == "cpu"
    assert simulation.faults() == ()


def test_safetensors_are_read_back(folder, state):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(state, "model.safetensors", {"format": "pt"})

    assert safetensors.load_file("model.safetensors")["weight"].shape == (1024, 512)
    opened = pytest.importorskip("safetensors").safe_open("model.safetensors", "pt", device="cuda")
    assert (sorted(opened.keys()), opened.metadata()) == (["bias", "weight"], {"format": "pt"})
    assert opened.get_slice("weight")[:2].shape == (2, 512)
    assert opened.get_tensor("weight").is_cuda


def test_new_files_are_listed_with_their_sizes(state, simulation):
    torch.save(state, "model.pt")
    [note] = simulation.notes()

    assert (note.slug, "model.pt (2.00 MiB)" in note.message) == ("files-not-written", True)
    [listed] = simulation.values()["files_not_written"]
    assert (listed["path"], listed["n_bytes"] - N_BYTES < 2000) == ("model.pt", True)


def test_a_file_in_a_folder_in_place_of_one_that_was_moved_has_its_name(folder):
    Path("run").mkdir()
    with simulated(SimulationOptions(compute=False)) as simulation:
        Path("run").rename("old")
        Path("run").mkdir()
        torch.save(torch.ones(512, 1024, device="cuda"), "run/model.pt")
        [listed] = simulation.values()["files_not_written"]
    assert listed["path"] == "run/model.pt"


def test_a_python_whose_rmtree_cannot_be_kept_from_files_is_refused(monkeypatch):
    monkeypatch.delattr(shutil, "_use_fd_functions")
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: Path(path).rmdir())
    with (
        pytest.raises(RecorderError, match="record without it"),
        simulated(SimulationOptions(compute=False)),
    ):
        pass


def test_where_values_are_computed_files_are_written(folder):
    with simulated():
        torch.save(torch.ones(512, 1024, device="cuda"), "ones.pt")
    assert Path("ones.pt").stat().st_size > N_BYTES - 4096


def test_a_folder_that_is_not_there_is_the_programs_error(simulation, state):
    with pytest.raises(RuntimeError, match="no/folder"):
        torch.save(state, "no/folder/model.pt")
    assert simulation.faults() == ()
