"""A device that runs out does what a GPU does: event, observers, torch's own error."""

import os

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import MIB, events, recorded  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def _small_device():
    with simulated(SimulationOptions(compute=False, capacity_bytes=100 * MIB)):
        yield


@pytest.mark.usefixtures("_small_device")
class TestSmallDevice:
    def test_one_segment_more_raises_torchs_error_with_its_figures(self):
        kept = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")

        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")

        message = str(raised.value)
        assert message.startswith(
            "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of "
        )
        assert "100.00 MiB of which 20.00 MiB is free" in message
        assert (
            "80.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated"
            in message
        )
        assert kept.is_cuda

    def test_observers_see_the_device_before_anything_is_unwound(self):
        seen = []

        def observe(device, segment_bytes, total, free):
            snapshot = torch.cuda.memory._snapshot()
            seen.append((device, segment_bytes, total, free, events(snapshot, "oom")))

        torch._C._cuda_attach_out_of_memory_observer(observe)
        kept = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
        with recorded(), pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 * MIB + 1, dtype=torch.uint8, device="cuda")

        (device, segment_bytes, total, free, ooms) = seen[0]
        assert (device, segment_bytes, total, free) == (0, 32 * MIB, 100 * MIB, 20 * MIB)
        assert [(oom["size"], oom["device_free"]) for oom in ooms] == [(30 * MIB + 512, 20 * MIB)]
        assert kept.is_cuda

    def test_after_freeing_it_goes_on(self):
        kept = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        del kept
        after = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")

        assert after.is_cuda
        assert torch.cuda.memory_stats()["num_ooms"] == 1

    def test_it_can_run_out_in_backward(self):
        x = torch.ones(4 * MIB, device="cuda", requires_grad=True)
        y = x.exp().sin().cos().exp()

        with pytest.raises(torch.OutOfMemoryError):
            y.sum().backward()

    def test_mem_get_info_tells_the_capacity(self):
        kept = torch.empty(80 * MIB, dtype=torch.uint8, device="cuda")

        assert torch.cuda.mem_get_info() == (20 * MIB, 100 * MIB)
        assert torch.cuda.get_device_properties(0).total_memory == 100 * MIB
        assert kept.is_cuda


@pytest.mark.parametrize(
    ("conf", "own", "fits"),
    [("0.5", None, 50), ("1.0", None, 100), ("0.5", 0.75, 74), ("0.5", 1.0, 100)],
    ids=["settings", "all", "the program's own", "the program's, all"],
)
def test_the_fraction_is_all_that_the_process_gets(monkeypatch, conf, own, fits):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"per_process_memory_fraction:{conf}")
    with simulated(SimulationOptions(compute=False, capacity_bytes=100 * MIB)):
        if own is not None:
            torch.cuda.set_per_process_memory_fraction(own)
        kept = torch.empty(fits * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1, device="cuda")
        assert kept.is_cuda


@pytest.mark.parametrize(
    ("conf", "own", "expected"),
    [("1.0", None, 1.0), ("0.5", None, 0.5), ("0.5", 0.75, 0.75), ("0.5", 0.0, 0.0)],
    ids=["none", "settings", "the program's own", "nothing"],
)
def test_the_fraction_is_answered_as_it_is_set(monkeypatch, conf, own, expected):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"per_process_memory_fraction:{conf}")
    with simulated(SimulationOptions(compute=False, n_devices=2)):
        if own is not None:
            torch.cuda.set_per_process_memory_fraction(own, 1)
        assert torch._C._cuda_getMemoryFraction(1) == expected
        assert torch._C._cuda_getMemoryFraction(0) == float(conf)


def test_an_error_within_a_fraction_has_the_devices_figures_and_what_is_allowed():
    """As CUDACachingAllocator.cpp writes them: total and free are of the device."""
    seen = []
    with simulated(SimulationOptions(compute=False, capacity_bytes=100 * MIB)):
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))
        torch.cuda.set_per_process_memory_fraction(0.5)
        kept = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.mem_get_info() == (60 * MIB, 100 * MIB)
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        assert kept.is_cuda

    assert (
        "GPU 0 has a total capacity of 100.00 MiB of which 60.00 MiB is free. "
        f"Process {os.getpid()} has 40.00 MiB memory in use. 50.00 MiB allowed; "
        "Of the allocated memory 40.00 MiB is allocated by PyTorch"
    ) in str(error.value)
    assert seen == [(0, 20 * MIB, 100 * MIB, 60 * MIB)]
