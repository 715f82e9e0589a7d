"""Categories of a sharded job: what a rank gathers, has yet to reduce, and exchanges, by arithmetic."""

import importlib
import math
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import snapconv  # noqa: E402

dist = torch.distributed
ROOT = Path(__file__).parents[3]
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

# Rows that 8 ranks do not share evenly: each has 129 of up's and 17 of down's, with padding.
N_RANKS, WIDTH, ROWS = 8, 130, 1025
N_BLOCKS, N_STEPS = 3, 2
N_UP = N_DOWN = ROWS * WIDTH
PADDED_UP, PADDED_DOWN = N_RANKS * 129 * WIDTH, N_RANKS * 17 * ROWS
# Rank 3 has whole shares.
SHARD_UP, SHARD_DOWN = PADDED_UP // N_RANKS, PADDED_DOWN // N_RANKS

MODEL = f"""
import os, torch
import torch.distributed as dist
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear({WIDTH}, {ROWS}, bias=False)
        self.down = nn.Linear({ROWS}, {WIDTH}, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.Sequential(*[Block() for _ in range({N_BLOCKS})])
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 130, device="cuda")).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FSDP2 = """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
model = model.cuda()
# Both named: from torch 2.15 on gradients are reduced in the type of the parameters otherwise.
in_bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
policy = in_bf16 if IN_BF16 else MixedPrecisionPolicy()
for module in (*model, model):
    fully_shard(module, mp_policy=policy, reshard_after_forward=RESHARDS)
"""
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=rank,
    use_orig_params=False,
    mixed_precision=precision if IN_BF16 else None,
)
"""
DDP = """
model = nn.parallel.DistributedDataParallel(model.cuda(), gradient_as_bucket_view=AS_VIEWS)
"""


@pytest.fixture
def categories(run):
    """Record a rank and return a function: the sizes of a category, with how many there were."""
    if dist.is_initialized():
        dist.destroy_process_group()

    def categories(script, rows=ROWS, n_ranks=N_RANKS, rank=3, **settings):
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        options = ("--no-compute", "--world-size", str(n_ranks), "--ranks", str(rank))
        importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode.cache_clear()
        before = MODEL.replace(str(ROWS), str(rows))
        done = run(lines + script + TRAIN, before=before, options=options)
        assert done.code == 0, done.err
        (capture,) = done.folder.glob("*.capture")
        (device,) = snapconv.load(capture).devices

        def sizes(category):
            rows = device.rows(category)
            return Counter(device.allocations.requested_bytes[rows].tolist())

        sizes.capture, sizes.device = capture, device
        contents = pickle.loads((capture / "snapshot.pickle").read_bytes())
        sizes.metadata = contents["snapconv"]
        return sizes

    yield categories
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("reshards", [True, False])
@pytest.mark.parametrize("in_bf16", [True, False])
def test_fsdp2_gathers_padded_weights_and_reduces_whole_gradients(categories, in_bf16, reshards):
    sizes = categories(FSDP2, IN_BF16=in_bf16, RESHARDS=reshards)
    item = 2 if in_bf16 else 4
    n_blocks = N_STEPS * N_BLOCKS
    n_gathers = n_blocks * (2 if reshards else 1)  # for forward, and again for backward
    assert sizes(snapconv.Category.GATHERED_WEIGHT) == Counter(
        {item * PADDED_UP: n_gathers, item * PADDED_DOWN: n_gathers}
    )
    gradients = sizes(snapconv.Category.UNREDUCED_GRADIENT)
    assert gradients == Counter({item * N_UP: 2 * n_blocks})
    whole, shard = item * (PADDED_UP + PADDED_DOWN), item * (SHARD_UP + SHARD_DOWN)
    # Each gather has one buffer, each reduction too. In bfloat16 each gather begins with a copy of
    # the shards, and each reduction ends with a copy in float32: that is the gradient.
    buffers = Counter({whole: n_gathers + n_blocks})
    if in_bf16:
        buffers[shard] = n_gathers + n_blocks
    assert sizes(snapconv.Category.COMMUNICATION) == buffers
    assert sizes(snapconv.Category.GRADIENT) == Counter({4 * (SHARD_UP + SHARD_DOWN): n_blocks})
    # What a rank keeps are its shards, and nothing else is a weight.
    weights = sizes(snapconv.Category.WEIGHT)
    assert weights == Counter({4 * SHARD_UP: N_BLOCKS, 4 * SHARD_DOWN: N_BLOCKS})


def test_weights_that_stay_gathered_are_all_there_when_backward_begins(categories, capfd):
    from snapconv.cli.app import main

    sizes = categories(FSDP2, IN_BF16=False, RESHARDS=False)
    device = sizes.device
    gathered = device.rows(snapconv.Category.GATHERED_WEIGHT)

    def blocks_at(event):
        live = device.allocations.live_at(event)[gathered]
        return int(device.allocations.block_bytes[gathered][live].sum())

    block = sum(-(-4 * n // 512) * 512 for n in (PADDED_UP, PADDED_DOWN))
    assert max(map(blocks_at, range(device.n_events))) == N_BLOCKS * block
    # At the peak, whose moment is torch's, is a whole number of blocks: a row of the summary.
    at_peak = blocks_at(device.peak_event)
    assert at_peak in (block, 2 * block, N_BLOCKS * block)
    assert main(["summary", str(sizes.capture)]) == 0
    (row,) = (line for line in capfd.readouterr().out.splitlines() if "gathered_weight" in line)
    assert row.split()[1:3] == [f"{at_peak / 2**20:.2f}", "MiB"]


@pytest.mark.parametrize("in_bf16", [True, False])
def test_fsdp1_gathers_and_reduces_flat_weights(categories, in_bf16):
    sizes = categories(FSDP1, IN_BF16=in_bf16)
    item = 2 if in_bf16 else 4
    n_flat = N_UP + N_DOWN
    shard = -(-n_flat // N_RANKS)
    padded = shard * N_RANKS
    n_blocks = N_STEPS * N_BLOCKS
    gathered = sizes(snapconv.Category.GATHERED_WEIGHT)
    assert gathered == Counter({item * padded: 2 * n_blocks})
    expected = Counter({4 * n_flat: n_blocks})
    if in_bf16:  # autograd makes it so, and it is cast to be reduced
        expected += Counter({2 * n_flat: n_blocks})
    assert sizes(snapconv.Category.UNREDUCED_GRADIENT) == expected
    buffers = Counter({4 * padded: n_blocks})
    if in_bf16:
        buffers += Counter({2 * shard: 2 * n_blocks})
    assert sizes(snapconv.Category.COMMUNICATION) == buffers


@pytest.mark.parametrize("as_views", [True, False])
def test_buckets_of_ddp_are_unreduced_gradients_unless_gradients_are_their_views(
    categories, as_views
):
    sizes = categories(DDP, AS_VIEWS=as_views)
    device = sizes.device
    live = device.allocations.live_at(device.peak_event)
    n_bytes = 4 * N_BLOCKS * (N_UP + N_DOWN)

    def at_peak(category):
        rows = device.rows(category)
        return int(device.allocations.requested_bytes[rows][live[rows]].sum())

    assert at_peak(snapconv.Category.GRADIENT) == n_bytes
    unreduced = 0 if as_views else n_bytes
    assert at_peak(snapconv.Category.UNREDUCED_GRADIENT) == unreduced


ON_A_MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import parallel
mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
model = model.cuda()
for block in model:
    plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
    parallel.parallelize_module(block, mesh["tp"], plan)
    fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
fully_shard(model, mesh=mesh["dp"])
model(torch.ones(4, 130, device="cuda"))  # leaves the weights of blocks gathered
"""


def test_a_sharded_parameter_has_its_place_in_the_mesh(categories):
    metadata = categories(ON_A_MESH, rows=1024).metadata
    assert (metadata["rank"], metadata["coordinates"]) == (3, "dp=1,tp=1")
    rows = {row["name"]: row for row in metadata["parameters"]}
    assert set(rows) == {f"{i}.{name}.weight" for i in range(3) for name in ("up", "down")}
    for name, row in rows.items():
        (mesh,) = [metadata["meshes"][row["mesh"]]]
        assert mesh == {"names": ["dp", "tp"], "shape": [4, 2], "coordinates": [1, 1]}
        # Of up's 1024 rows two ranks have a half each, and four share a half. Of down's columns
        # too; of its 130 rows each of four has 33, the last 31.
        is_up = "up" in name
        assert row["shape"] == ([1024, 130] if is_up else [130, 1024])
        assert row["local_shape"] == ([128, 130] if is_up else [33, 512])
        first = "StridedShard(0)" if is_up else "Shard(0)"
        assert row["placements"] == [first, "Shard(0)" if is_up else "Shard(1)"]
        assert row["bytes"] == 4 * math.prod(row["local_shape"])


FLAT_ON_A_MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
names = {1: ("dp",), 2: ("copies", "parts")}.get(len(MESH))
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=rank,
    use_orig_params=KEEPS_NAMES,
    sharding_strategy=ShardingStrategy[STRATEGY],
    device_mesh=init_device_mesh("cuda", MESH, mesh_dim_names=names) if MESH else None,
)
"""


@pytest.mark.parametrize(
    ("strategy", "mesh", "place", "placements", "n_parts"),
    [
        ("FULL_SHARD", (), ([], [4], [2]), ["Shard(0)"], 4),
        ("SHARD_GRAD_OP", (4,), (["dp"], [4], [2]), ["Shard(0)"], 4),
        (
            "HYBRID_SHARD",
            (2, 2),
            (["copies", "parts"], [2, 2], [1, 0]),
            ["Replicate()", "Shard(0)"],
            2,
        ),
        ("NO_SHARD", (), ([], [4], [2]), ["Replicate()"], 1),
    ],
)
def test_a_flat_weight_has_its_place_in_the_mesh(
    categories, strategy, mesh, place, placements, n_parts
):
    settings = {"STRATEGY": repr(strategy), "MESH": mesh, "KEEPS_NAMES": False}
    metadata = categories(FLAT_ON_A_MESH, n_ranks=4, rank=2, **settings).metadata
    assert metadata["meshes"] == [dict(zip(("names", "shape", "coordinates"), place, strict=True))]
    assert len(metadata["parameters"]) == N_BLOCKS
    for row in metadata["parameters"]:
        assert row["name"].endswith("_flat_param")
        assert (row["mesh"], row["placements"]) == (0, placements)
        # A block's two weights have 266,500 elements, which 4 and 2 divide.
        assert row["shape"] == [N_UP + N_DOWN]
        assert row["local_shape"] == [(N_UP + N_DOWN) // n_parts]
        assert row["bytes"] == 4 * (N_UP + N_DOWN) // n_parts


def test_a_weight_that_keeps_its_name_in_a_flat_one_has_its_part_of_it(categories):
    """Rank 2 of 4 has the third quarter of each flat weight, where the second weight begins.

    The first has 133,250 elements and is filled up to 133,252, a multiple of 16 bytes. With the
    second's 133,250, and two more for 4 equal parts, a quarter has 66,626.
    """
    settings = {"STRATEGY": "'FULL_SHARD'", "MESH": (), "KEEPS_NAMES": True}
    metadata = categories(FLAT_ON_A_MESH, n_ranks=4, rank=2, **settings).metadata
    assert metadata["meshes"] == [{"names": [], "shape": [4], "coordinates": [2]}]
    assert len(metadata["parameters"]) == N_BLOCKS
    for row in metadata["parameters"]:
        assert row["name"].endswith(".down.weight")
        assert (row["mesh"], row["placements"]) == (0, ["FlatShard()"])
        assert (row["shape"], row["local_shape"]) == ([WIDTH, ROWS], [66_626])
        assert row["bytes"] == 4 * 66_626


CHANGED = """
import sys
from snapconv.cli.app import main
from snapconv.guest.torch_surface import SURFACE, Attributes, Feature
absent = Attributes("torch.distributed.fsdp.FSDPModule", ("nowhere",))
SURFACE[Feature.FULLY_SHARDED] = (*SURFACE[Feature.FULLY_SHARDED], absent)
sys.exit(main(sys.argv[1:]))
"""


def test_of_a_torch_that_has_changed_they_are_left_out_with_a_note(tmp_path):
    """The program imports FSDP after torch was compared with the table: in a new process."""
    script = tmp_path / "train.py"
    script.write_text(MODEL + "IN_BF16 = RESHARDS = True\n" + FSDP2 + TRAIN)
    capture = tmp_path / "rank.capture"
    options = ["--simulate", "--no-compute", "--world-size", "8", "-o", str(capture)]
    command = [sys.executable, "-c", CHANGED, "record", *options, str(script)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert "fully_shard are not recorded: torch.distributed.fsdp.FSDPModule.nowhere" in done.stderr
    (device,) = snapconv.load(capture).devices
    assert not len(device.rows(snapconv.Category.GATHERED_WEIGHT))
    assert len(device.rows(snapconv.Category.WEIGHT)) == 2 * N_BLOCKS


@pytest.mark.long
def test_a_job_of_fsdp2_ends_without_a_message_of_pythons(tmp_path):
    """What a simulation undoes as the process ends meets a torch that has begun to end too."""
    script = tmp_path / "train.py"
    script.write_text(MODEL + "IN_BF16 = RESHARDS = True\n" + FSDP2 + TRAIN)
    options = ["--simulate", "--no-compute", "--world-size", "8", "-o", str(tmp_path / "a.capture")]
    command = [sys.executable, "-m", "snapconv", "record", *options, str(script)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert "Traceback" not in done.stderr
