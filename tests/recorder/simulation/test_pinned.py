"""Pinned memory of the CPU: programs make sure of it before they copy while others compute."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402


@pytest.fixture(params=[True, False], ids=["compute", "no-compute"], autouse=True)
def _simulation(request):
    with simulated(SimulationOptions(compute=request.param)):
        yield


def test_what_is_pinned_says_so_and_nothing_else():
    made = torch.empty(1024, 512, pin_memory=True)
    plain = torch.arange(6.0)
    pinned = plain.pin_memory()
    assert made.is_pinned()
    assert made[3:].is_pinned()
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    assert torch.equal(pinned, plain)
    assert pinned.data_ptr() != plain.data_ptr()
    assert pinned.pin_memory() is pinned
    assert not pinned.cuda().is_pinned()
    assert not pinned.clone().is_pinned()
    assert torch.zeros_like(plain, pin_memory=True).is_pinned()
    assert pinned.untyped_storage().is_pinned()


def test_pinned_memory_is_none_of_the_device():
    torch.empty(1 << 20, pin_memory=True)
    torch.randn(1 << 20).pin_memory()
    assert torch.cuda.max_memory_allocated() == 0


def test_a_tensor_of_the_device_cannot_be_pinned():
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(4, device="cuda").pin_memory()


def test_a_loader_pins_its_batches():
    data = TensorDataset(torch.arange(12.0).view(6, 2))
    batches = [batch for (batch,) in DataLoader(data, batch_size=3, pin_memory=True)]
    assert all(batch.is_pinned() for batch in batches)
    assert torch.cat(batches).flatten().tolist() == [*range(12)]
