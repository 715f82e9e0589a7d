"""Weights from files: by their headers where nothing is computed."""

import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import MIB  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ONLY_SHAPES = SimulationOptions(compute=False)
GIB = 1 << 30


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a large and a small tensor, all sevens."""
    path = tmp_path / "model.pt"
    torch.save({"large": torch.full((MIB,), 7.0), "small": torch.full((4,), 7.0)}, path)
    return path


def test_of_a_checkpoint_only_what_is_small_is_read(saved):
    with simulated(ONLY_SHAPES):
        loaded = torch.load(saved)
        assert loaded["small"].tolist() == [7.0] * 4
        assert (loaded["large"].shape, loaded["large"].dtype) == ((MIB,), torch.float32)
        assert loaded["large"][:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("options", [SimulationOptions(), ONLY_SHAPES], ids=["computed", "shapes"])
def test_what_is_loaded_to_the_device_is_there_once(saved, options):
    with simulated(options):
        loaded = torch.load(saved, map_location="cuda")
        assert torch.cuda.memory_allocated() == 4 * MIB + 512
        assert {str(tensor.device) for tensor in loaded.values()} == {"cuda:0"}


def test_where_values_are_computed_they_are_read(saved):
    with simulated():
        assert torch.load(saved)["large"][:2].tolist() == [7.0, 7.0]


@pytest.fixture
def mapped(tmp_path):
    """A file of 1 GiB that takes no place on the disk, mapped as safetensors maps its files."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(GIB)

    def load():
        storage = torch.UntypedStorage.from_file(str(path), False, GIB)
        return torch.asarray(storage, dtype=torch.uint8).view(torch.bfloat16)

    return load


def resident_bytes():
    """What this process has in memory now."""
    n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks Linux how much memory there is"
)
def test_a_mapped_file_is_converted_and_moved_without_being_read(mapped):
    with simulated(ONLY_SHAPES):
        before = resident_bytes()
        moved = mapped().to(torch.float32).cuda()
        assert torch.cuda.memory_allocated() == 2 * GIB
        assert moved.dtype == torch.float32
        assert resident_bytes() - before < GIB // 4


def test_a_default_device_that_is_not_simulated_has_its_effect_too():
    """torch makes its table of functions once in a process: here for the first time."""
    from torch.utils import _device

    _device._device_constructors.cache_clear()
    with simulated(), torch.device("meta"):
        made = (torch.tensor([1.0]), torch.as_tensor([1.0]), torch.zeros(1))
        assert [tensor.device.type for tensor in made] == ["meta"] * 3


@pytest.mark.parametrize("options", [SimulationOptions(), ONLY_SHAPES], ids=["computed", "shapes"])
def test_a_file_of_safetensors_is_loaded_to_the_device(tmp_path, options):
    safetensors = pytest.importorskip("safetensors.torch")
    model = nn.Linear(512, 1024, bias=False)
    safetensors.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with simulated(options):
        state = safetensors.load_file(tmp_path / "model.safetensors")
        loaded = nn.Linear(512, 1024, bias=False, device="cuda")
        loaded.load_state_dict(state)
        assert torch.cuda.memory_allocated() == 2 * MIB
        first = loaded.weight[0, 0].item()
    assert first == (model.weight[0, 0].item() if options.compute else 0.0)
