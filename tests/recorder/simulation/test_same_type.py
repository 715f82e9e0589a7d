"""Tensors of two types in one operation: what CUDA refuses is refused, what it takes is taken.

Where the CPU refuses the same, its own refusal outside of a simulation is the reference, so that a
row that torch takes fails here. What only CUDA refuses is that of torch's sources (2.13):
aten/src/ATen/native/cuda/layer_norm_kernel.cu and group_norm_kernel.cu read the weights as
numbers of the input's type.
"""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from snapconv.simulation.operations import describe  # noqa: E402
from snapconv.simulation.same_type import check_types  # noqa: E402

LOW, FULL, DOUBLE = torch.bfloat16, torch.float32, torch.float64
WHERE = {"device": "cpu"}


@pytest.fixture(params=[True, False], ids=["compute", "no-compute"])
def _simulation(request, monkeypatch):
    with simulated(SimulationOptions(compute=request.param)):
        monkeypatch.setitem(WHERE, "device", "cuda")
        yield


def full(*shape):
    """Too large a tensor to be computed where nothing is computed."""
    return torch.empty(shape or (256, 256), dtype=FULL, **WHERE)


def low(*shape):
    return torch.empty(shape or (256, 256), dtype=LOW, **WHERE)


def rows():
    return torch.arange(256, **WHERE)


REFUSED = {
    "a linear layer": (
        lambda: F.linear(full(), low(), low(256)),
        "mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    ),
    "a linear layer of doubles": (lambda: F.linear(full().double(), full()), "same dtype"),
    "its bias": (lambda: F.linear(low(), low(), full(256)), "must have the same dtype"),
    "a product": (lambda: full() @ low(), "must have the same dtype"),
    "a product of stacks": (lambda: full(4, 256, 256) @ low(4, 256, 256), "expected|dtype"),
    "a stack and a matrix": (lambda: low(4, 256, 256) @ full(), "must have the same dtype"),
    "a matrix and a vector": (lambda: torch.mv(full(), low(256)), "must have the same dtype"),
    "a convolution": (
        lambda: F.conv2d(full(2, 8, 64, 64), low(8, 8, 3, 3)),
        r"Input type \(torch.cuda.FloatTensor\) and weight type \(CUDABFloat16Type\) should be",
    ),
    "its bias, of another type": (
        lambda: F.conv2d(low(2, 8, 64, 64), low(8, 8, 3, 3), full(8)),
        "Input type .* and bias type",
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(
            full(2, 4, 256, 64), low(2, 4, 256, 64), low(2, 4, 256, 64)
        ),
        "Expected query, key, and value to have the same dtype",
    ),
    "low weights of a norm": (
        lambda: F.layer_norm(full(), [256], low(256), low(256)),
        "expected scalar type Float but found BFloat16",
    ),
    "low weights of groups": (
        lambda: F.group_norm(full(2, 8, 64, 64), 2, low(8), low(8)),
        "expected scalar type Float but found BFloat16",
    ),
    "low weights of a batch norm": (
        lambda: F.batch_norm(full(2, 8, 64, 64), None, None, low(8), low(8), training=True),
        "expected scalar type Float but found BFloat16",
    ),
    "rows that are added": (
        lambda: full().index_add_(0, rows(), low()),
        "same dtype|same scalar type",
    ),
    "rows that are copied": (lambda: full().index_copy_(0, rows(), low()), "same dtype"),
    "values that are put": (lambda: full().index_put_((rows(),), low()), "dtypes match"),
    "values that are set": (lambda: full().__setitem__(rows(), low()), "dtypes match"),
    "a sampler": (
        lambda: F.grid_sample(low(2, 8, 64, 64), full(2, 64, 64, 2), align_corners=False),
        "expected scalar type BFloat16 but found Float",
    ),
    "a product of vectors": (
        lambda: torch.linalg.cross(full(256, 3), low(256, 3)),
        "Found dtype BFloat16 but expected Float|expected scalar type Float",
    ),
    "a step": (lambda: torch.heaviside(full(), low()), "tensors with different dtypes"),
    "parts of complex numbers": (
        lambda: torch.complex(full(), full().double()),
        "Expected object of scalar type Float but got scalar type Double for second argument",
    ),
    "weights of classes": (
        lambda: F.nll_loss(full(), rows() % 8, low(256)),
        "expected scalar type Float but found BFloat16",
    ),
}
# The CPU takes them.
REFUSED_BY_CUDA_ALONE = {
    "full weights of a norm": lambda: F.layer_norm(low(), [256], full(256), full(256)),
    "full weights of groups": lambda: F.group_norm(low(2, 8, 64, 64), 2, full(8), full(8)),
}
TAKEN = {
    "a sum": lambda: full() + low(),
    "a choice": lambda: torch.where(full() > 0, full(), low()),
    "a mean squared error": lambda: F.mse_loss(full(), low()),
    "things side by side": lambda: torch.cat([full(), low()]),
    "full weights of a batch norm": lambda: F.batch_norm(
        low(2, 8, 64, 64), full(8), full(8), full(8), full(8), training=True
    ),
    "a number that is set": lambda: full().__setitem__(rows(), 1),
    "rows of a table": lambda: F.embedding(rows(), low()),
    "a sum in place": lambda: full().add_(low()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_cpu_refuses_it_too(name):
    work, _ = REFUSED[name]
    with pytest.raises(RuntimeError):
        work()


@pytest.mark.usefixtures("_simulation")
class TestOnTheDevice:
    @pytest.mark.parametrize("name", REFUSED)
    def test_what_cuda_refuses_is_refused_in_its_words(self, name):
        work, message = REFUSED[name]
        with pytest.raises(RuntimeError, match=message):
            work()

    @pytest.mark.parametrize("name", REFUSED_BY_CUDA_ALONE)
    def test_what_cuda_alone_refuses_is_refused(self, name):
        with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
            REFUSED_BY_CUDA_ALONE[name]()

    @pytest.mark.parametrize("name", TAKEN)
    def test_what_cuda_takes_is_taken(self, name):
        TAKEN[name]()

    def test_running_statistics_may_have_another_type(self):
        """CUDA converts them (batch_norm_update_stats); the CPU's kernel refuses some."""
        weights = low(8), low(8)
        statistics = full(8), full(8)
        call = SimpleNamespace(
            func=torch.ops.aten.native_batch_norm.default,
            operation=describe(torch.ops.aten.native_batch_norm.default),
            named_arguments=lambda: dict(
                zip(
                    ("input", "weight", "bias", "running_mean", "running_var"),
                    (low(2, 8, 64, 64), *weights, *statistics),
                    strict=True,
                )
            ),
        )
        check_types(call)

    def test_autocast_makes_the_types_one(self):
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(62, 64))
        layers = layers.cuda()
        picture = torch.randn(2, 3, 64, 64, device="cuda", dtype=LOW)
        with torch.autocast("cuda", dtype=LOW):
            layers(picture).square().mean().backward()
            assert torch.mv(full(), low(256)).dtype is LOW
