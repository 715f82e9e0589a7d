"""Storages that a program makes itself are on the device that it names."""

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")


@pytest.mark.parametrize("compute", [True, False])
def test_a_storage_is_made_on_the_device_that_is_named(compute):
    with simulated(SimulationOptions(compute=compute, n_devices=2)) as simulation:
        storage = torch.UntypedStorage(1000, device="cuda:1")
        assert (storage.device, storage.nbytes()) == (torch.device("cuda", 1), 1000)
        # A block is a multiple of 512 bytes.
        assert [torch.cuda.memory_allocated(index) for index in (0, 1)] == [0, 1024]
        typed = torch.TypedStorage(8, dtype=torch.float32, device="cuda")
        assert str(typed.device) == "cuda:0"
        assert torch.cuda.memory_allocated(0) == 512
        del storage, typed
        assert [torch.cuda.memory_allocated(index) for index in (0, 1)] == [0, 0]
        assert torch.UntypedStorage([1, 2, 3]).tolist() == [1, 2, 3]
        assert torch.UntypedStorage(4, device="cpu").device.type == "cpu"
        assert simulation.faults() == ()


def test_storages_are_made_as_before_afterwards():
    with simulated():
        pass
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"
