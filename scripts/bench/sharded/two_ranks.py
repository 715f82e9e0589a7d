"""Two real processes over gloo beside the two simulated ranks of the same job.

    python scripts/bench/sharded/two_ranks.py [KIND ...]

Every kind of job runs in three ways: as two processes of torchrun on the CPU, which count the
storages that they hold; as two such processes with a simulated GPU each, whose values gloo sends,
and which are recorded; and as either rank of a simulated job alone, without values. Prints the most
bytes of each category and rank, and ends with 1 where any two differ. What a transport allocates
for itself is compared too, but decides nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("ddp", "fsdp1", "fsdp2", "fsdp2-bf16", "tensor-parallel")
# What a process holds, and counts itself.
COUNTED = ("weight", "gradient", "optimizer_state")
# What depends on how the ranks talk.
OF_TRANSPORT = "communication"
N_RANKS, N_STEPS = 2, 3
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS))
# Two ranks share 129 rows unevenly.
WIDTH, N_INNER, N_BLOCKS, BATCH = 129, 514, 3, 8

Bytes = dict[str, int]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, N_INNER, bias=False)
        self.down = nn.Linear(N_INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def parallel(kind: str, device: torch.device) -> nn.Module:
    """Make the model of a kind of job."""
    model: nn.Module = nn.Sequential(*[Block() for _ in range(N_BLOCKS)]).to(device)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({Block})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, device_id=device, use_orig_params=False
        )
    mesh = dist.device_mesh.init_device_mesh(device.type, (N_RANKS,))
    if kind == "tensor-parallel":
        from torch.distributed.tensor import parallel

        plan = {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}
        for block in blocks:
            parallel.parallelize_module(block, mesh, plan)
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if kind == "fsdp2-bf16" else None)
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    return model


def requested_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Sum the storages of tensors; of a DTensor, that of this rank's part."""
    storages = {}
    for tensor in tensors:
        part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if part.dim():  # counters of steps are on the CPU everywhere
            storage = part.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def train(kind: str, backend: str) -> None:
    """Run as one rank; on the CPU, print what it holds when it steps."""
    is_cuda = torch.cuda.is_available()
    dist.init_process_group(backend)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    model = parallel(kind, device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(N_STEPS):
        model(torch.ones(BATCH, WIDTH, device=device)).float().pow(2).mean().backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        optimizer.step()
        if not is_cuda:
            states = [value for state in optimizer.state.values() for value in state.values()]
            held = map(requested_bytes, (model.parameters(), gradients, states))
            line = json.dumps([dist.get_rank(), dict(zip(COUNTED, held, strict=True))])
        del gradients
        optimizer.zero_grad()
    if not is_cuda:
        # Written at once, or the lines of two ranks are mixed.
        print(f"{line}\n", end="", flush=True)
    dist.destroy_process_group()


# --- the runs


def ran(*command: str, **variables: str) -> str:
    """Run Python, and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def counted(kind: str) -> dict[int, Bytes]:
    """Let two processes count what they hold."""
    said = ran(*TORCHRUN, __file__, "--train", kind, "gloo")
    return dict(json.loads(line) for line in said.splitlines() if line.startswith("["))


def recorded(kind: str) -> dict[int, Bytes]:
    """Record two processes that talk, each on a simulated GPU that computes."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "job.capture")
        record = ("-m", "snapconv", "record", "-q", "--simulate", "-o", str(capture))
        ran(*TORCHRUN, *record, __file__, "--train", kind, "gloo")
        return {
            rank: most_of_each_category(capture.with_name(f"job.rank{rank}.capture"))
            for rank in range(N_RANKS)
        }


def simulated(kind: str, rank: int) -> Bytes:
    """Record one rank of a simulated job alone, without values."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "rank.capture")
        record = ("-m", "snapconv", "record", "-q", "--simulate", "--no-compute")
        job = ("-o", str(capture), "--world-size", str(N_RANKS), "--ranks", str(rank))
        ran(*record, *job, __file__, "--train", kind, "nccl")
        return most_of_each_category(capture)


def most_of_each_category(capture: Path) -> Bytes:
    """Return the most requested bytes that a category has at a time.

    Of what a process counts itself, when it steps, from the first forward on: while a model is
    wrapped, whole weights lie beside their shards.
    """
    import numpy as np

    import snapconv

    (device,) = (d for d in snapconv.load(capture).devices if len(d.allocations.addr))
    table = device.allocations
    most: Bytes = {}
    first_forward = table.alloc_event[device.rows(snapconv.Category.ACTIVATION)].min()
    for category in snapconv.Category:
        rows = device.rows(category)
        events = np.zeros(device.n_events + 2, np.int64)
        np.add.at(events, table.alloc_event[rows] + 1, table.requested_bytes[rows])
        freed = rows[table.freed_event[rows] >= 0]
        np.subtract.at(events, table.freed_event[freed] + 1, table.requested_bytes[freed])
        begin = first_forward if category.label in COUNTED else 0
        most[category.label] = int(events.cumsum()[begin:].max())
    return most


def main(kinds: Iterable[str]) -> int:
    """Compare the runs of each kind."""
    is_equal = True
    print("| job | rank | category | counted | recorded over gloo | simulated alone |")
    print("| - | - | - | - | - | - |")
    for kind in kinds:
        own, real = counted(kind), recorded(kind)
        for rank in range(N_RANKS):
            alone = simulated(kind, rank)
            for category in (name for name in alone if alone[name] or real[rank][name]):
                figures = [real[rank][category], alone[category]]
                counts = [own[rank][category]] if category in COUNTED else []
                is_equal &= category == OF_TRANSPORT or len({*figures, *counts}) == 1
                cells = (f"{n:,}" for n in (*counts, *figures))
                counted_cell = "" if counts else "– | "
                print(f"| {kind} | {rank} | {category} | {counted_cell}{' | '.join(cells)} |")
    return int(not is_equal)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:] or KINDS))
