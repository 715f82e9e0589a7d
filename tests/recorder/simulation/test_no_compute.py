"""Shapes alone: models larger than this computer, in seconds; and what needs values says so."""

import resource
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.errors import RecorderError  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import Transformer, language_step  # noqa: E402

pytestmark = [
    pytest.mark.smoke("no-compute"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _simulation():
    with simulated(SimulationOptions(compute=False)):
        yield


def resident_bytes():
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def test_a_step_of_a_model_of_seven_billion_parameters_takes_seconds_and_no_memory():
    began, memory_before = time.process_time(), resident_bytes()
    model = Transformer(n_words=32_000, width=4096, n_blocks=32, n_heads=32).to("cuda")
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    language_step(model, optimizer, torch.randint(0, 32_000, (1, 513)).cuda())

    assert n_parameters > 6.5e9
    # Weights, gradients and two states, and the temporaries of the step: five times the weights.
    assert 5 * 4 * n_parameters < torch.cuda.max_memory_allocated() < 6 * 4 * n_parameters
    assert resident_bytes() - memory_before < 1 << 30
    assert time.process_time() - began < 60


def test_what_depends_on_values_in_no_known_way_names_the_line_that_asked():
    counts = torch.randn(100, 400, device="cuda").sum(1).long()

    with pytest.raises(
        RecorderError, match=r"test_no_compute\.py:\d+: aten\.bincount.*--no-compute"
    ):
        torch.bincount(counts)


def test_what_the_program_itself_has_on_the_meta_device_stays_there():
    """Large ones too: uninitialised memory of that size is not made on the CPU."""
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Embedding(64, 1 << 16), nn.LayerNorm(1 << 16), nn.Linear(1 << 16, 8)
        )
        model(torch.zeros(2, dtype=torch.long)).sum().backward()
    made = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    made += [torch.empty_like(model[0].weight), torch.empty(1 << 20, device="cuda").to("meta")]
    assert {tensor.device.type for tensor in made} == {"meta"}
    assert torch.cuda.max_memory_allocated() == 4 << 20
    assert model.to_empty(device="cuda")[0].weight.is_cuda


def test_a_shape_that_does_not_fit_is_torchs_own_error():
    with pytest.raises(RuntimeError, match=r"3, 4|3x4"):
        torch.randn(3, 4, device="cuda") @ torch.randn(5, 6, device="cuda")


def test_what_a_tensor_is_split_into_without_a_view_in_the_schema_is_no_new_memory():
    gates = torch.randn(100, 300, device="cuda")
    allocated = torch.cuda.memory_allocated()
    parts = [
        *gates.unsafe_chunk(3, 1),
        *gates.unsafe_split(100, 1),
        *gates.unsafe_split_with_sizes([100, 200], 1),
    ]

    assert len(parts) == 8
    assert torch.cuda.memory_allocated() == allocated


# Larger than what keeps its values: (what is done to a tensor of 300 x 1 x 200, its shape and
# strides then).
VIEWS_IN_PLACE = {
    "transpose_": (lambda x: x.transpose_(0, 2), (200, 1, 300), (1, 200, 200)),
    "swapaxes_": (lambda x: x.swapaxes_(0, 2), (200, 1, 300), (1, 200, 200)),
    "swapdims_": (lambda x: x.swapdims_(0, 2), (200, 1, 300), (1, 200, 200)),
    "squeeze_": (lambda x: x.squeeze_(), (300, 200), (200, 1)),
    "squeeze_ of a dimension": (lambda x: x.squeeze_(1), (300, 200), (200, 1)),
    "unsqueeze_": (lambda x: x.unsqueeze_(0), (1, 300, 1, 200), (60_000, 200, 200, 1)),
    "t_": (lambda x: x.squeeze_().t_(), (200, 300), (1, 200)),
    "as_strided_": (lambda x: x.as_strided_((50, 2), (4, 1)), (50, 2), (4, 1)),
}


@pytest.mark.parametrize(
    ("change", "shape", "strides"), VIEWS_IN_PLACE.values(), ids=VIEWS_IN_PLACE
)
def test_a_view_in_place_changes_the_shape_and_no_memory(change, shape, strides):
    x = torch.zeros(300, 1, 200, device="cuda")
    before = torch.cuda.memory_allocated(), x.data_ptr()
    assert change(x) is x
    assert (tuple(x.shape), x.stride()) == (shape, strides)
    assert (torch.cuda.memory_allocated(), x.data_ptr()) == before


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_the_result_of_a_recurrent_layer_has_the_batch_first_where_the_input_has(kind):
    layer = kind(8, 16, batch_first=True).cuda()
    result, _ = layer(torch.zeros(4, 300, 8, device="cuda"))
    assert tuple(result.shape) == (4, 300, 16)


def test_an_lstm_is_one_operation():
    model = nn.LSTM(8, 16, num_layers=2).cuda()
    y, _ = model(torch.randn(50, 2, 8, device="cuda"))
    y.sum().backward()

    assert y.shape == (50, 2, 16)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] < 200


def test_a_product_with_packed_weights_of_4_bits_is_in_the_type_of_its_input():
    """Two weights in a byte, in tiles of 8 rows by 2 times 16 columns (ATen/native/cuda/int4mm.cu)."""
    weight = torch.zeros(64, 128 // 2, dtype=torch.uint8, device="cuda")
    packed = torch.ops.aten._convert_weight_to_int4pack(weight, 2)
    assert packed.shape == (64 // 8, 128 // (2 * 16), 32, 2 // 2)
    assert packed.nbytes == weight.nbytes

    x = torch.zeros(16, 128, dtype=torch.bfloat16, device="cuda")
    scales_and_zeros = torch.zeros(128 // 32, 64, 2, dtype=torch.bfloat16, device="cuda")
    y = torch.ops.aten._weight_int4pack_mm(x, packed, 32, scales_and_zeros)
    assert (y.shape, y.dtype, y.is_cuda) == ((16, 64), torch.bfloat16, True)
