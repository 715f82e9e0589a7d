"""A type that CUDA has no kernel for is refused, and no type that it has one for.

The reference is torch's own list of operations, which says what types each takes on CUDA; torch's
tests compare it with the kernels.
"""

from functools import lru_cache, partial
from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes  # noqa: E402

from scripts.bench import operations as bench  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.cuda_types import TYPE_NAMES  # noqa: E402
from tests.drawn_inputs import sample  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

# Functions whose values or lengths decide, those for a real card alone, one that needs a storage
# larger than the tensor that a test copies, and Fourier transforms in half precision, which torch
# refuses for tensors of the CPU before it calls an operation.
NOT_WITHOUT_VALUES = {
    *("cov", "bincount", "linalg.lstsq", "nn.functional.ctc_loss", "as_strided"),
    *("jiterator_unary", "jiterator_binary", "jiterator_binary_return_by_ref"),
    *("jiterator_4inputs_with_extra_args", "jiterator_2inputs_2outputs"),
}
# It is not certain what of them refuses, or the CPU takes it although its list does not.
UNCERTAIN = {
    *("linspace", "logspace", "randint", "cumprod", "broadcast_shapes", "stft", "silu", "svd"),
    *("linalg.svd", "masked.norm", "masked.median", "native_dropout_backward", "histogram"),
    *("scatter_reduce", "select_scatter", "slice_scatter", "nan_to_num", "normal", "bmm"),
    *("searchsorted", "histogramdd", "torch._scaled_mm", "torch._scaled_mm_v2", "embedding"),
    *("soft_margin_loss", "bilinear", "gaussian_nll_loss"),
}


# Of these torch 2.15 takes types that 2.13 refused.
TAKEN_LATER = {
    *("angle", "hardtanh", "native_dropout", "polar", "randint_like"),
    *("dropout", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
}


@lru_cache(1)
def operations():
    return [op for op in bench.operations() if op.name not in NOT_WITHOUT_VALUES]


def samples(op, dtype):
    try:
        with _disable_current_modes():
            return list(islice(op.sample_inputs("cpu", dtype), 6))
    except Exception:  # noqa: BLE001  # the list has none of this type
        return []


def refusal(op, call, running):
    """Return why the simulated device refuses a call with values that were not computed, or None."""
    forget = partial(bench.forgotten, running)
    try:
        bench.measured(op, call, "cuda", bench.SimulatedMeter, forget)
    except Exception as error:  # noqa: BLE001  # whatever it is
        return f"{type(error).__name__}: {error}"
    return None


def is_known(op, dtype, *, is_taken):
    """Say whether a difference is one of those that the lists above name."""
    if is_taken:
        return op.name.startswith("fft.") and dtype is torch.float16
    return op.name.rpartition("functional.")[2] in UNCERTAIN | TAKEN_LATER


def test_types_are_refused_that_cuda_has_no_kernel_for():
    differences = {}
    with simulated(SimulationOptions(compute=False)) as running:
        for op in sample(operations(), 4, n_with_all=60):
            # torch's tests leave complex numbers of 16 bits out.
            for dtype in TYPE_NAMES.keys() - {torch.complex32}:
                refusals = [refusal(op, call, running) for call in samples(op, dtype)]
                is_taken = dtype in op.dtypesIfCUDA
                # Of a type that is not in the list some calls may be taken.
                is_right = not any(refusals) if is_taken else any(refusals)
                if refusals and not is_right and not is_known(op, dtype, is_taken=is_taken):
                    differences[op.name, dtype] = next(filter(None, refusals), "taken")
    assert differences == {}


def matrix(dtype):
    """Return a matrix too large to be computed where nothing is computed."""
    return torch.ones(256, 256, device="cuda").to(dtype)


# In a fixture of its own each: computed, and by shape alone.
@pytest.fixture(params=[True, False], ids=["compute", "no-compute"])
def _simulation(request):
    with simulated(SimulationOptions(compute=request.param)):
        yield


INTEGERS, TRUTHS, HALVES = torch.int64, torch.bool, torch.float16
# aten/src/ATen/native/cuda: Blas.cpp, ActivationGeluKernel.cu, SoftMax.cu, Sorting.cpp;
# BatchLinearAlgebra.cpp
REFUSED = {
    "a product of integers": (lambda: matrix(INTEGERS) @ matrix(INTEGERS), "addmm_cuda.*'Long'"),
    "a layer of integers": (
        lambda: F.linear(matrix(INTEGERS), matrix(INTEGERS), matrix(INTEGERS)[0]),
        "addmm_cuda.*'Long'",
    ),
    "a product of truth values": (lambda: matrix(TRUTHS).mm(matrix(TRUTHS)), "'Bool'"),
    "an activation": (lambda: F.gelu(matrix(INTEGERS)), "GeluCUDAKernelImpl.*'Long'"),
    "a softmax": (lambda: matrix(INTEGERS).softmax(-1), "host_softmax.*'Long'"),
    "a median of truth values": (lambda: matrix(TRUTHS).median(), "median_out_impl.*'Bool'"),
    "a factor in half": (lambda: torch.linalg.cholesky(matrix(HALVES)), "'Half'"),
    "a distance in half": (
        lambda: torch.cdist(matrix(HALVES), matrix(HALVES), p=1.0),
        "cdist_cuda.*'Half'",
    ),
    "rounding in place": (lambda: matrix(TRUTHS).floor_(), "'Bool'"),
}
TAKEN = {
    "a product in half": lambda: matrix(HALVES) @ matrix(HALVES),
    "a layer of integers that autocast has made half": lambda: F.linear(
        matrix(HALVES), matrix(HALVES)
    ),
    "a softmax of integers that is of numbers": lambda: matrix(INTEGERS).softmax(
        -1, dtype=torch.float32
    ),
    "truth values between numbers": lambda: matrix(TRUTHS).clamp(min=matrix(torch.float32)),
    "truth values and a fraction": lambda: matrix(TRUTHS).remainder(0.5),
    "a running sum of truth values": lambda: matrix(TRUTHS).cumsum(0),
    "rows of integers": lambda: F.embedding(torch.arange(256, device="cuda"), matrix(INTEGERS)),
    "the largest integer": lambda: matrix(INTEGERS).max(),
}


@pytest.mark.usefixtures("_simulation")
class TestOnTheDevice:
    @pytest.mark.parametrize("name", REFUSED)
    def test_a_type_without_a_kernel_is_refused_in_the_words_of_torch(self, name):
        work, message = REFUSED[name]
        with pytest.raises(RuntimeError, match=message):
            work()

    @pytest.mark.parametrize("name", TAKEN)
    def test_a_type_with_a_kernel_is_taken(self, name):
        TAKEN[name]()
