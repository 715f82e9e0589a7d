"""What was not computed is written over no file, and read back all the same."""

import io
import os
import pickle
import shutil
import tempfile
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
    path.unlink()  # its folder has it still


def by_rotating(state, path):
    path.rename(path.with_suffix(".old"))
    assert path.with_suffix(".old").read_bytes() == PRECIOUS
    torch.save(state, path)
    path.with_suffix(".old").unlink()


def by_removing_the_folder(state, path):
    shutil.rmtree(path.parent)
    assert not path.parent.exists()
    path.parent.mkdir()
    assert os.listdir(path.parent) == []  # noqa: PTH208  # as programs do
    torch.save(state, path)
    assert torch.load(path)["weight"].shape == (1024, 512)


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


CHANGES = [
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
    *(by_removing_the_folder, by_renaming_the_folder, through_a_link),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_was_there_is_not_touched(folder, change):
    path = folder / "run" / "model.npz"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    before = path.stat()
    with simulated(SimulationOptions(compute=False)) as simulation:
        change(torch.nn.Linear(512, 1024, device="cuda").state_dict(), path)
        notes = [note.message for note in simulation.notes() if note.slug == "files-not-written"]

    assert path.read_bytes() == PRECIOUS
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(entry.name for entry in folder.rglob("*")) == ["model.npz", "run"]
    assert str(path) in notes[0] or change is through_a_link


@pytest.mark.parametrize(
    "save", [*SAVES, by_pickle, by_safetensors, by_numpy, by_bytes, by_script, by_export]
)
def test_a_new_file_of_what_was_not_computed_is_gone_afterwards(folder, save):
    with simulated(SimulationOptions(compute=False)) as simulation:
        Path("staging").mkdir()
        save(torch.nn.Linear(512, 1024, device="cuda").state_dict(), folder / "staging" / "model.npz")
        Path("staging").rename("run")
        assert Path("run/model.npz").exists()
        [listed] = simulation.values()["files_not_written"]

    assert [entry.name for entry in folder.rglob("*")] == ["run"]
    assert listed["path"] == "run/model.npz"
    assert listed["n_bytes"] >= 4 * 512 * 1024


def test_logs_and_what_is_new_are_kept(folder):
    Path("log.txt").write_text("first\n")
    with simulated(SimulationOptions(compute=False)) as simulation:
        weight = torch.ones(512, 1024, device="cuda")
        with Path("events").open("wb") as events, Path("log.txt").open("a") as log:
            log.write(f"{weight.cpu().numpy().sum()}\n")
            events.write(b"0.0")
        torch.save({"order": torch.arange(5)}, "known.pt")
        Path("losses.json").write_text("[0.0]")
        assert [note.slug for note in simulation.notes()] == ["values-not-computed"]

    assert Path("log.txt").read_text() == "first\n0.0\n"
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "events",
        "known.pt",
        "log.txt",
        "losses.json",
    ]
    assert torch.load("known.pt")["order"].tolist() == [0, 1, 2, 3, 4]


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
    with pytest.raises(RecorderError, match=r"safe_open: model\.safetensors was not"):
        pytest.importorskip("safetensors").safe_open("model.safetensors", framework="pt")


def test_new_files_are_listed_with_their_sizes(state, simulation):
    torch.save(state, "model.pt")
    [note] = simulation.notes()

    assert (note.slug, "model.pt (2.00 MiB)" in note.message) == ("files-not-written", True)
    [listed] = simulation.values()["files_not_written"]
    assert (listed["path"], listed["n_bytes"] - N_BYTES < 2000) == ("model.pt", True)


def test_where_values_are_computed_files_are_written(folder):
    with simulated():
        torch.save(torch.ones(512, 1024, device="cuda"), "ones.pt")
    assert Path("ones.pt").stat().st_size > N_BYTES - 4096


def test_a_folder_that_is_not_there_is_the_programs_error(simulation, state):
    with pytest.raises(RuntimeError, match="no/folder"):
        torch.save(state, "no/folder/model.pt")
    assert simulation.faults() == ()
