"""Two real processes over gloo beside the two simulated ranks of the same job.

    python scripts/bench/sharded/two_ranks.py [KIND ...]

Every kind of job runs as two processes of torchrun on the CPU, which count the storages that they
hold, and as either rank of a simulated job, whose capture has them by category. Prints the bytes of
weights, gradients and optimizer states of each rank, and ends with 1 where any two differ.
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
N_RANKS, N_STEPS = 2, 3
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
        return FullyShardedDataParallel(model, policy, device_id=device, use_orig_params=False)
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


def train(kind: str) -> None:
    """Run as one rank; on the CPU, print what it holds when it steps."""
    is_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if is_cuda else "gloo")
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
        print(line, flush=True)
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
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS))
    said = ran(*torchrun, __file__, "--train", kind)
    return dict(json.loads(line) for line in said.splitlines() if line.startswith("["))


def simulated(kind: str, rank: int) -> Bytes:
    """Record one rank of a simulated job alone."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "rank.capture")
        record = (
            "-m",
            "snapconv",
            "record",
            "-q",
            "--simulate",
            "--no-compute",
            "-o",
            str(capture),
        )
        job = ("--world-size", str(N_RANKS), "--ranks", str(rank))
        ran(*record, *job, __file__, "--train", kind)
        return most_of_each_category(capture)


def most_of_each_category(capture: Path) -> Bytes:
    """Return the most requested bytes that a category has at a time."""
    import numpy as np

    import snapconv

    (device,) = (d for d in snapconv.load(capture).devices if len(d.allocations.addr))
    table = device.allocations
    most: Bytes = {}
    for category in snapconv.Category:
        rows = device.rows(category)
        events = np.zeros(device.n_events + 2, np.int64)
        np.add.at(events, table.alloc_event[rows] + 1, table.requested_bytes[rows])
        freed = rows[table.freed_event[rows] >= 0]
        np.subtract.at(events, table.freed_event[freed] + 1, table.requested_bytes[freed])
        most[category.label] = int(events.cumsum().max())
    return most


def main(kinds: Iterable[str]) -> int:
    """Compare the runs of each kind."""
    is_equal = True
    print("| job | rank | category | two processes | simulated |\n| - | - | - | - | - |")
    for kind in kinds:
        own = counted(kind)
        for rank in range(N_RANKS):
            capture = simulated(kind, rank)
            for category in COUNTED:
                figures = (own[rank][category], capture[category])
                is_equal &= figures[0] == figures[1]
                cells = (kind, str(rank), category, *(f"{n:,}" for n in figures))
                print("|", " | ".join(cells), "|", flush=True)
    return int(not is_equal)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:] or KINDS))
