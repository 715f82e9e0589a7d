"""Against a stand-in for torch: builds and machines that no test machine has all of."""

import sys
import warnings
from types import SimpleNamespace

import pytest

from snapconv.errors import NoCudaError, RecorderError, TorchMissingError
from snapconv.recorder import environment
from snapconv.recorder.environment import (
    choose_device,
    refuse_without_cuda,
    require_gpu,
    require_history,
    require_torch,
)


def stand_in(monkeypatch, *, cuda="12.8", n_devices=0, says=None, backend="native", current=0):
    """A torch; ``started`` is what it was called with that starts CUDA or its driver."""
    started = []

    def is_available():
        started.append("is_available")
        if says:
            warnings.warn(says, stacklevel=1)
        return n_devices > 0

    torch = type(sys)("torch")
    torch.__version__ = "2.9.1"
    torch.version = SimpleNamespace(cuda=cuda)
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: cuda is not None))
    torch.cuda = SimpleNamespace(
        is_available=is_available,
        is_initialized=lambda: False,
        device_count=lambda: n_devices,
        get_allocator_backend=lambda: backend,
        current_device=lambda: current,
        set_device=lambda device: started.append(("set_device", device)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(environment, "_has_driver", lambda: True)
    return started


def test_without_torch_the_error_says_which_python_and_how_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(TorchMissingError, match=rf"{sys.executable}.*pip install torch"):
        require_torch()


class _Broken:
    """An importer of a torch whose libraries are missing."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")


def test_a_torch_that_cannot_be_loaded_is_told_with_its_reason(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Broken(), *sys.meta_path])
    with pytest.raises(TorchMissingError, match=r"libcudart\.so\.12"):
        require_torch()


def test_a_cpu_build_is_refused_at_once_and_pointed_to_the_simulation(monkeypatch):
    started = stand_in(monkeypatch, cuda=None)
    with pytest.raises(
        NoCudaError, match=r"built without CUDA: install a build.*record --simulate"
    ):
        refuse_without_cuda()
    assert started == []


def test_a_machine_without_the_drivers_library_is_refused_at_once(monkeypatch):
    started = stand_in(monkeypatch)
    refuse_without_cuda()
    monkeypatch.setattr(environment, "_has_driver", lambda: False)
    with pytest.raises(NoCudaError, match=r"\(there is no NVIDIA driver\): .*record --simulate"):
        refuse_without_cuda()
    assert started == []


def test_where_cuda_runs_already_no_driver_is_looked_for(monkeypatch):
    """As on a simulated device, with a build for CUDA: the job itself has started it."""
    stand_in(monkeypatch)
    monkeypatch.setattr(environment, "_has_driver", lambda: False)
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_initialized", lambda: True)
    refuse_without_cuda()


def test_a_machine_without_a_gpu_is_pointed_to_the_simulation_with_torchs_reason(monkeypatch):
    stand_in(monkeypatch, says="CUDA initialization: driver too old\nand more")
    with pytest.raises(
        NoCudaError, match=r"\(CUDA initialization: driver too old\): .*record --simulate"
    ):
        require_gpu()
    stand_in(monkeypatch, n_devices=1)
    require_gpu()


def test_a_requested_device_becomes_the_current_one(monkeypatch):
    started = stand_in(monkeypatch, n_devices=2)
    assert choose_device(1) == 1
    assert started == [("set_device", 1)]


def test_a_requested_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch):
    started = stand_in(monkeypatch, n_devices=2)
    with pytest.raises(NoCudaError, match=r"no CUDA device 2; torch sees: 0, 1\."):
        choose_device(2)
    assert started == []


@pytest.mark.parametrize(
    ("rank", "n_devices", "current", "device"),
    [
        ("2", 4, 0, 2),
        ("2", 1, 0, 0),  # a launcher made one device visible to each process
        ("2", 2, 1, 1),
        (None, 4, 3, 3),
        ("", 4, 3, 3),
    ],
)
def test_local_rank_names_the_timed_device_where_that_many_are_visible(
    monkeypatch, rank, n_devices, current, device
):
    started = stand_in(monkeypatch, n_devices=n_devices, current=current)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert choose_device(None) == device
    assert started == []  # the current device is the program's own business


def test_an_allocator_without_a_history_is_refused_with_its_setting(monkeypatch):
    stand_in(monkeypatch, n_devices=1, backend="cudaMallocAsync")
    with pytest.raises(RecorderError, match=r"backend cudaMallocAsync.*PYTORCH_CUDA_ALLOC_CONF"):
        require_history()


def test_what_torch_is_built_for_is_known_without_importing_it(monkeypatch):
    pytest.importorskip("torch")
    imported = environment._build()
    monkeypatch.delitem(sys.modules, "torch")
    assert environment._build() == imported is not None
    assert "torch" not in sys.modules
