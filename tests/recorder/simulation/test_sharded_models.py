"""Models sharded over the ranks of a simulated job: what this rank holds, by arithmetic from shapes."""

import os
from math import ceil

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from snapconv.simulation import RankOfJob, SimulationOptions, simulated  # noqa: E402
from tests.recorder.simulation.support import recorded  # noqa: E402

dist = torch.distributed

pytestmark = [
    pytest.mark.smoke("simulation"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.skipif(
        torch.__version__ < torch.torch_version.TorchVersion("2.13"),
        reason="models over several ranks were tried with torch 2.13 and newer",
    ),
]

N_RANKS = 8
# 130 rows over 8 ranks: 17 each, and 11 on the last one.
WIDTH = 130
ROWS = 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, ROWS, bias=False)
        self.down = nn.Linear(ROWS, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def blocks(n=3):
    return nn.Sequential(*[Block() for _ in range(n)])


# A matrix of each shape, two of them in a block.
SHAPES = [(ROWS, WIDTH), (WIDTH, ROWS)]
N_WHOLE = sum(a * b for a, b in SHAPES)


def local_shape(shape, rank, n_ranks=N_RANKS):
    """The rows of a rank, as FSDP2 and DTensor cut dimension 0: ``ceil`` for all but the last."""
    each = ceil(shape[0] / n_ranks)
    n_rows = max(min(each, shape[0] - rank * each), 0)
    return (n_rows, *shape[1:])


def blocks_of(sizes):
    """The bytes of the blocks that requests of these sizes get, each rounded to 512."""
    return sum(ceil(size / 512) * 512 for size in sizes)


@pytest.fixture(autouse=True)
def _no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def start(rank, *, compute=False, n_ranks=N_RANKS):
    job = RankOfJob.create(rank, n_ranks, None)
    return simulated(SimulationOptions(compute=compute, n_devices=job.n_ranks_per_node, job=job))


def begin():
    # It would keep the device of another test's rank.
    FakeTensorMode.cache_clear()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")


def train(model, optimizer, n_steps=2):
    for _ in range(n_steps):
        model(torch.ones(4, WIDTH, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def fully_sharded(model, **options):
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    for block in model:
        fully_shard(block, **options)
    return fully_shard(model, **options)


# --- FSDP2


@pytest.mark.parametrize("rank", [0, 7])
def test_each_rank_holds_its_rows_of_weights_and_two_states_of_each(rank):
    with start(rank):
        begin()
        model = fully_sharded(blocks().cuda())
        expected = [local_shape(shape, rank) for shape in SHAPES] * 3
        assert [tuple(weight.to_local().shape) for weight in model.parameters()] == expected
        # A shard of fewer rows is padded to those of the others.
        padded = [4 * a * b for a, b in [local_shape(shape, 0) for shape in SHAPES] * 3]
        weights = torch.cuda.memory_allocated()
        assert weights == blocks_of(padded)

        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        train(model, optimizer)
        states = [4 * a * b for a, b in expected for _ in range(2)]
        assert torch.cuda.memory_allocated() - weights == blocks_of(states)


def test_forward_holds_one_layer_whole_and_gathers_the_next():
    """In bf16: whole parameters of one block, and the buffer that gathers them."""
    with start(0):
        begin()
        policy = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model = fully_sharded(blocks(), mp_policy=policy).cuda()
        with recorded() as snapshot, torch.no_grad():
            model(torch.ones(1, WIDTH, device="cuda", dtype=torch.bfloat16))
    sizes = [row["size"] for row in snapshot["device_traces"][0] if row["action"] == "alloc"]
    whole = [2 * ceil(a / N_RANKS) * N_RANKS * b for a, b in SHAPES]
    assert sizes.count(sum(whole)) == 3  # a buffer for each block
    for size in whole:
        assert sizes.count(size) >= 3  # and its parameters, padded


def test_parameters_that_are_not_resharded_stay_whole_until_backward():
    def after_forward(*, reshards):
        with start(0):
            begin()
            model = fully_sharded(blocks().cuda(), reshard_after_forward=reshards)
            shards = torch.cuda.memory_allocated()
            model(torch.ones(1, WIDTH, device="cuda")).sum()
            held = torch.cuda.memory_allocated() - shards
            dist.destroy_process_group()
            return held

    whole = 3 * 4 * sum(ceil(a / N_RANKS) * N_RANKS * b for a, b in SHAPES)
    difference = after_forward(reshards=False) - after_forward(reshards=True)
    assert whole <= difference < whole + 3 * 2 * 512


@pytest.mark.parametrize("rank", [0, 5])
def test_shapes_alone_allocate_as_what_is_computed_does(rank):
    def events(*, compute):
        with start(rank, compute=compute):
            begin()
            policy = torch.distributed.fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32)
            model = fully_sharded(blocks().cuda(), mp_policy=policy)
            optimizer = torch.optim.AdamW(model.parameters())
            with recorded() as snapshot:
                for _ in range(2):
                    model(torch.ones(4, WIDTH, device="cuda")).pow(2).mean().backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            dist.destroy_process_group()
        trace = snapshot["device_traces"][rank]
        return [(row["action"], row["size"]) for row in trace]

    assert events(compute=False) == events(compute=True)


def test_a_hybrid_mesh_shards_within_a_group_and_replicates_between():
    """The weights are on the meta device first, and activations are checkpointed."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    with start(5):
        begin()
        mesh = dist.device_mesh.init_device_mesh(
            "cuda", (2, 4), mesh_dim_names=("replicate", "shard")
        )
        with torch.device("meta"):
            model = blocks()
        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
        fully_sharded(model, mesh=mesh)
        model.to_empty(device="cuda")
        for weight in model.parameters():
            nn.init.normal_(weight)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer)
        shapes = [tuple(weight.to_local().shape) for weight in model.parameters()]
        assert shapes == [local_shape(shape, 1, 4) for shape in SHAPES] * 3


def test_a_mesh_of_three_dimensions_replicates_shards_and_splits():
    """Rank 5 of (2, 2, 2) is (1, 0, 1): the second copy, its first part of the second half."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with start(5):
        begin()
        names = ("replicate", "shard", "tp")
        mesh = dist.device_mesh.init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=names)
        assert tuple(mesh.get_coordinate()) == (1, 0, 1)
        model = blocks().cuda()
        for block in model:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        fully_sharded(model, mesh=mesh["replicate", "shard"])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        weights = torch.cuda.memory_allocated()
        train(model, optimizer)
        # A half of up's rows or of down's columns, and of these rows a half.
        expected = [(ROWS // 4, WIDTH), (WIDTH // 2, ROWS // 2)] * 3
        assert [tuple(weight.to_local().shape) for weight in model.parameters()] == expected
        states = [4 * a * b for a, b in expected for _ in range(2)]
        assert torch.cuda.memory_allocated() - weights == blocks_of(states)


def test_offloaded_shards_and_their_states_take_nothing_of_the_gpu():
    from torch.distributed.fsdp import CPUOffloadPolicy

    with start(0):
        begin()
        model = fully_sharded(blocks(), offload_policy=CPUOffloadPolicy())
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer)
        held = [weight.to_local() for weight in model.parameters()]
        held += [value for state in optimizer.state.values() for value in state.values()]
        assert {tensor.device.type for tensor in held} == {"cpu"}
        assert torch.cuda.memory_allocated() == 0
        # What backward gathered was whole, and on the GPU.
        assert torch.cuda.max_memory_allocated() >= 4 * N_WHOLE


@pytest.mark.parametrize("rank", [0, 5])
def test_a_checkpoint_of_shards_is_saved_and_loaded_and_leaves_no_file(rank, tmp_path):
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = tmp_path / "saved"
    with start(rank):
        begin()
        model = fully_sharded(blocks().cuda())
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer)
        before = torch.cuda.memory_allocated()
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoint.save(states, checkpoint_id=folder)
        checkpoint.load(states, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=states["model"],
            optim_state_dict=states["optimizer"],
        )
        del states
        assert torch.cuda.memory_allocated() == before
    assert [path for path in folder.rglob("*") if path.suffix == ".distcp"] == []


# --- FSDP1, ZeRO 1, tensor parallelism


@pytest.mark.parametrize("keeps_names", [True, False])
def test_fsdp1_holds_an_equal_part_of_the_flat_parameters(keeps_names):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    with start(3):
        begin()
        model = FullyShardedDataParallel(
            blocks(),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=3,
            use_orig_params=keeps_names,
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before = torch.cuda.memory_allocated()
        assert before == 3 * blocks_of([4 * ceil(N_WHOLE / N_RANKS)])
        train(model, optimizer)
        # With the names of the model, the gradient of each flat parameter stays until the next
        # forward (FlatParamHandle._reset_flat_param_grad_info_if_needed, torch 2.13).
        assert torch.cuda.memory_allocated() == before * (2 if keeps_names else 1)


def test_zero_keeps_the_states_of_this_ranks_share_alone():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with start(2):
        begin()
        model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(16)]).cuda()
        wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[2])
        optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.AdamW, foreach=False)
        wrapped(torch.ones(4, 256, device="cuda")).pow(2).mean().backward()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        # 16 equal weights over 8 ranks: two of them, with two states each.
        assert torch.cuda.memory_allocated() - before == 2 * 2 * 256 * 256 * 4


@pytest.mark.parametrize("compute", [True, False], ids=["computed", "shapes"])
@pytest.mark.parametrize("n_parallel", [8, 2])
def test_tensor_parallel_layers_hold_their_rows_or_columns(n_parallel, compute):
    """With a second dimension of the mesh the other ranks shard what is left."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    with start(7, compute=compute):
        begin()
        n_sharded = N_RANKS // n_parallel
        mesh = init_device_mesh("cuda", (n_sharded, n_parallel), mesh_dim_names=("dp", "tp"))
        model = blocks().cuda()
        for block in model:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan)
        if n_sharded > 1:
            fully_sharded(model, mesh=mesh["dp"])
        n_rows = ROWS // n_parallel
        expected = [
            local_shape((n_rows, WIDTH), n_sharded - 1, n_sharded),
            local_shape((WIDTH, n_rows), n_sharded - 1, n_sharded),
        ]
        shapes = [tuple(weight.to_local().shape) for weight in model.parameters()]
        assert shapes == expected * 3
        train(model, torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize("compute", [True, False])
def test_context_parallelism_gives_a_rank_its_part_of_the_sequence(compute):
    """A sequence of 512 has 64 for each rank: of attention, too, the results and the gradients.

    The sums of exponents are padded to a multiple of 32, as torch's meta function pads them: parts
    whose halves are no such multiple fail in the simulation, and no GPU has shown whether there.
    """
    from torch.distributed.tensor.experimental import context_parallel

    with start(5, compute=compute):
        begin()
        mesh = dist.device_mesh.init_device_mesh("cuda", (N_RANKS,), mesh_dim_names=("cp",))
        whole = torch.ones(2, 4, 512, 16, device="cuda")
        with context_parallel(mesh, buffers=[whole], buffer_seq_dims=[2]):
            assert whole.shape == (2, 4, 64, 16)
            query, key, value = (whole.detach().clone().requires_grad_() for _ in range(3))
            attention = nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True
            )
            attention.sum().backward()
            assert attention.shape == key.grad.shape == value.grad.shape == (2, 4, 64, 16)
        assert whole.shape == (2, 4, 512, 16)
