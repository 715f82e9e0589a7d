"""What is allocated: shapes times element sizes, worked out by hand."""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from snapconv.guest import locations  # noqa: E402
from snapconv.simulation import SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import MIB, Block, events, recorded, sizes_allocated  # noqa: E402

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(params=[True, False], ids=["compute", "no-compute"])
def simulation(request):
    with simulated(SimulationOptions(compute=request.param)) as running:
        yield running


@pytest.mark.usefixtures("simulation")
class TestBothTargets:
    @pytest.mark.parametrize(
        ("dtype", "n_bytes"),
        [("float64", 800), ("float32", 400), ("bfloat16", 200), ("int64", 800), ("bool", 100)],
    )
    def test_a_tensor_has_its_element_size(self, dtype, n_bytes):
        allocated = sizes_allocated(
            lambda: torch.zeros(100, dtype=getattr(torch, dtype), device="cuda")
        )

        assert allocated == [n_bytes]

    def test_the_workspace_of_the_cpus_kernel_for_an_lstm_is_no_memory_of_the_device(self):
        layer = nn.LSTM(8, 16).cuda()
        sequence = torch.zeros(50, 4, 8, device="cuda")
        before = torch.cuda.memory_allocated()
        output, (hidden, cell) = layer(sequence)
        # What backward needs beside these is oneDNN's here, and cuDNN's on a GPU: 50 KiB of gates
        # at least.
        kept = output.nbytes + hidden.nbytes + cell.nbytes
        assert torch.cuda.memory_allocated() - before < kept + 20 * 1024

    def test_the_arguments_of_what_the_cpu_can_do_in_another_type_only_are_freed_with_their_last_name(
        self,
    ):
        before = torch.cuda.memory_allocated()
        gc.disable()
        try:
            x = torch.zeros(100_000, dtype=torch.int64, device="cuda")
            counts = torch.histc(x, bins=4, min=0, max=3)
            del x, counts
            assert torch.cuda.memory_allocated() == before
        finally:
            gc.enable()

    def test_inference_mode_allocates_what_it_does_without_gradients(self):
        model = Block(32, 4).to("cuda", torch.bfloat16)
        x = torch.randn(2, 8, 32, device="cuda", dtype=torch.bfloat16)
        allocated = []
        for mode in (torch.no_grad, torch.inference_mode):

            def run(mode=mode):
                with mode():
                    result = model(x).float()
                    assert result.device.type == "cuda"
                    return result.to(torch.float64), result.long(), result.half()

            allocated.append(sizes_allocated(run))

        assert allocated[0] == allocated[1]
        assert allocated[1][-3:] == [4096, 4096, 1024]  # 512 elements

    def test_a_norm_whose_parts_only_python_knows_runs_in_inference_mode(self):
        norm, x = nn.BatchNorm1d(8).to("cuda").eval(), torch.randn(16, 8).to("cuda")

        with torch.inference_mode():
            assert sizes_allocated(lambda: norm(x)).count(16 * 8 * 4) == 1

    @pytest.mark.parametrize(
        "make", [torch.zeros, lambda n, device: nn.Parameter(torch.zeros(n, device=device))]
    )
    def test_a_deep_copy_is_one_allocation_of_the_size(self, make):
        x = {"x": make(1000, device="cuda")}

        for original in (x, {"x": x["x"].detach()}):
            # Beside it torch makes an empty scalar for a moment (new_empty([]), torch/_tensor.py,
            # 2.13).
            assert [n for n in sizes_allocated(lambda o=original: copy.deepcopy(o)) if n > 4] == [
                4000
            ]

    def test_a_sparse_gradient_is_on_the_device_with_its_indices_and_values(self):
        table = nn.Embedding(500, 16, sparse=True, device="cuda")
        words = torch.zeros(40, dtype=torch.int64, device="cuda")
        table(words).sum().backward()
        gradient = table.weight.grad

        assert (gradient.device, gradient.is_cuda) == (torch.device("cuda", 0), True)
        pieces = [locations.locate(piece) for piece in (gradient._indices(), gradient._values())]
        assert [piece.n_bytes for piece in pieces] == [40 * 8, 40 * 16 * 4]
        assert gradient.clone().is_cuda
        assert sizes_allocated(gradient.clone) == [40 * 8, 40 * 16 * 4]

    def test_views_and_in_place_operations_allocate_nothing(self):
        x = torch.ones(64, 64, device="cuda")

        def run():
            x.add_(1).mul_(2)
            return [
                x.t(),
                x[3:5],
                x.view(-1),
                x.detach(),
                x.unsqueeze(0).expand(3, 64, 64),
                x.chunk(4),
            ]

        assert sizes_allocated(run) == []

    def test_a_model_moved_to_the_device_has_one_allocation_per_parameter_and_buffer(self):
        model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20))

        moved = sizes_allocated(lambda: model.to("cuda"))

        # Linear's weight and bias; the norm's weight, bias, running mean and variance, and its
        # counter.
        assert moved == [800, 80, 80, 80, 80, 80, 8]

    def test_a_tied_weight_moves_once(self):
        head, embedding = nn.Linear(16, 64, bias=False), nn.Embedding(64, 16)
        head.weight = embedding.weight
        model = nn.Sequential(embedding, head)

        assert sizes_allocated(lambda: model.to("cuda")) == [64 * 16 * 4]
        assert model[0].weight is model[1].weight

    def test_what_goes_back_to_the_cpu_is_not_on_the_device(self):
        x = torch.ones(100, device="cuda")

        assert sizes_allocated(lambda: [x.cpu(), x.to("cpu"), x.tolist(), x.sum().cpu()]) == [4]

    def test_a_training_step_allocates_activations_gradients_and_states(self):
        model = nn.Linear(16, 32, bias=False, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(4, 16, device="cuda")
        with recorded() as snapshot:
            model(x).sum().backward()
            optimizer.step()

        sizes = [entry["size"] for entry in events(snapshot, "alloc")]
        weight = 16 * 32 * 4
        # The output; the sum; its gradient; the weight's gradient (transposed into place); two
        # states of the optimizer; the square root of the second and nothing else (foreach works in
        # place).
        assert sizes == [4 * 32 * 4, 4, 4, weight, weight, weight, weight]

    def test_the_address_of_a_tensor_is_that_of_its_block(self):
        with recorded() as snapshot:
            x = torch.zeros(1000, device="cuda")

        (alloc,) = events(snapshot, "alloc")
        assert x.data_ptr() == x.untyped_storage().data_ptr() == alloc["addr"]
        assert x[10:].data_ptr() == alloc["addr"] + 40

    def test_a_storage_that_grows_gets_a_new_block(self):
        x = torch.zeros(10, device="cuda")

        assert sizes_allocated(lambda: x.resize_(1000)) == [4000]
        assert sizes_allocated(lambda: x.resize_(5)) == []


def test_attention_stores_one_float_per_row_and_head_instead_of_a_matrix_of_scores():
    batch, length, width, n_heads = 2, 128, 64, 4
    with simulated():
        block = Block(width, n_heads, dropout=0.1).cuda()
        x = torch.randn(batch, length, width, device="cuda")
        sizes = sizes_allocated(lambda: block(x))

    row_sums = batch * n_heads * length * 4
    assert row_sums in sizes
    assert batch * n_heads * length * length * 4 not in sizes


def test_dropout_keeps_a_mask_of_one_byte_per_element():
    with simulated():
        x = torch.randn(1000, device="cuda", requires_grad=True)
        allocated = sizes_allocated(lambda: nn.functional.dropout(x, 0.5))
        at_rest = sizes_allocated(lambda: nn.functional.dropout(x, 0.5, training=False))

    assert sorted(allocated) == [1000, 4000]
    assert at_rest == []


@pytest.mark.parametrize("compute", [True, False])
def test_the_workspace_of_cublas_comes_once_forward_and_once_backward(compute):
    with simulated(SimulationOptions(compute=compute, cublas_workspace=True)):
        layer = nn.Linear(8, 8, bias=False, device="cuda")
        x = torch.randn(2, 8, device="cuda")
        sizes = sizes_allocated(lambda: [layer(x).sum().backward() for _ in range(3)])

    assert sizes.count(32 * MIB) == 2


@pytest.mark.parametrize(
    ("config", "n_bytes"),
    [
        ("", 32 * MIB),
        (":4096:2:16:8", (2 * 4096 + 8 * 16) * 1024),
        (":16:8", 128 * 1024),
        ("nonsense", 32 * MIB),
    ],
)
def test_the_workspace_is_the_sum_of_its_chunks(monkeypatch, config, n_bytes):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    with simulated(SimulationOptions(cublas_workspace=True)):
        square = torch.ones(8, 8, device="cuda")
        assert n_bytes in sizes_allocated(lambda: square @ square)


def test_chunks_of_no_bytes_are_no_workspace(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with simulated(SimulationOptions(cublas_workspace=True)):
        square = torch.ones(8, 8, device="cuda")
        assert max(sizes_allocated(lambda: square @ square)) < MIB
