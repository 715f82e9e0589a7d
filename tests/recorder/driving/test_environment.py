"""Against a stand-in for torch: builds and machines that no test machine has all of."""

import sys
import warnings
from types import SimpleNamespace

import pytest

from snapconv.errors import NoCudaError, RecorderError, TorchMissingError
from snapconv.recorder.environment import require_cuda, require_torch


def stand_in(monkeypatch, *, is_built=True, n_devices=0, says=None, backend="native"):
    def is_available():
        if says:
            warnings.warn(says, stacklevel=1)
        return n_devices > 0

    torch = type(sys)("torch")
    torch.__version__ = "2.9.1"
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(is_built=lambda: is_built))
    torch.cuda = SimpleNamespace(
        is_available=is_available, device_count=lambda: n_devices, get_allocator_backend=lambda: backend
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


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


def test_a_cpu_build_is_told_to_simulate(monkeypatch):
    stand_in(monkeypatch, is_built=False)
    with pytest.raises(NoCudaError, match=r"built without CUDA: add --simulate"):
        require_cuda(0)


def test_a_machine_without_a_driver_is_told_to_simulate_and_what_torch_says(monkeypatch):
    stand_in(monkeypatch, says="CUDA initialization: driver too old\nand more")
    with pytest.raises(NoCudaError, match=r"\(CUDA initialization: driver too old\): add --simulate"):
        require_cuda(0)


def test_who_cannot_simulate_is_not_told_to(monkeypatch):
    for is_built in (False, True):
        stand_in(monkeypatch, is_built=is_built)
        with pytest.raises(NoCudaError) as refused:
            require_cuda(0, can_simulate=False)
        assert "simulate" not in str(refused.value)


def test_a_missing_device_is_told_which_there_are(monkeypatch):
    stand_in(monkeypatch, n_devices=2)
    require_cuda(1)
    with pytest.raises(NoCudaError, match=r"no CUDA device 2; torch sees: 0, 1"):
        require_cuda(2)


def test_an_allocator_without_a_history_is_told_with_its_setting(monkeypatch):
    stand_in(monkeypatch, n_devices=1, backend="cudaMallocAsync")
    with pytest.raises(RecorderError, match=r"backend cudaMallocAsync.*PYTORCH_CUDA_ALLOC_CONF"):
        require_cuda(0)
