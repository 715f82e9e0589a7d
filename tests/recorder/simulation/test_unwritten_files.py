"""What was not computed is written over no file, and read back all the same."""

import io
import os
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.smoke("no-compute")

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
    os.replace(path.with_suffix(".tmp"), path)  # noqa: PTH105


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


@pytest.mark.parametrize("save", [*SAVES, by_pickle, by_safetensors], ids=lambda save: save.__name__)
def test_a_file_that_was_there_is_not_touched(folder, state, save):
    path = folder / "model.pt"
    path.write_bytes(PRECIOUS)
    save(state, path)

    assert path.stat().st_size == len(PRECIOUS)
    assert [entry.name for entry in folder.iterdir()] == ["model.pt"]


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


def test_new_files_are_gone_afterwards_and_listed_with_their_sizes(folder):
    with simulated(SimulationOptions(compute=False)) as simulation:
        torch.save(torch.nn.Linear(512, 1024, device="cuda"), "model.pt")
        assert Path("model.pt").exists()
    [note] = simulation.notes()

    assert not Path("model.pt").exists()
    assert (note.slug, "model.pt (2.00 MiB)" in note.message) == ("files-not-written", True)
    [listed] = simulation.values()["files_not_written"]
    assert (listed["path"], listed["n_bytes"] - N_BYTES < 2000) == ("model.pt", True)


def test_what_is_known_is_written(folder, simulation):
    Path("known.pt").write_bytes(PRECIOUS)
    Path("log.bin").write_bytes(PRECIOUS)
    torch.save({"step": 3, "order": torch.arange(5)}, "known.pt")
    Path("log.bin").write_bytes(b"new")

    assert torch.load("known.pt")["order"].tolist() == [0, 1, 2, 3, 4]
    assert Path("log.bin").read_bytes() == b"new"
    assert simulation.notes() == ()


def test_where_values_are_computed_files_are_written(folder):
    with simulated():
        torch.save(torch.ones(512, 1024, device="cuda"), "ones.pt")
    assert Path("ones.pt").stat().st_size > N_BYTES - 4096


def test_a_folder_that_is_not_there_is_the_programs_error(simulation, state):
    with pytest.raises(RuntimeError, match="no/folder"):
        torch.save(state, "no/folder/model.pt")
    assert simulation.faults() == ()
