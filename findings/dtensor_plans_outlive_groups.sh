#!/usr/bin/env bash
# DTensor's plans outlive the process groups: a second job in one process, over an equal mesh, asks for the first's groups.
#
# Guess, written down before: destroy_process_group() ends a job, so that a second one in the same processes (a notebook,
# a restart inside of the worker, a suite of tests) with the same shapes behaves as the first.
# Seen (torch 2.13.0, gloo, four real processes on the CPU; 2.15.0 with its fake group the same): if the second job made
# another number of groups before its mesh, a product that the first job had computed raises "Could not resolve the
# process group registered under the name 6": the sharding plan is kept by mesh, and meshes of equal ranks are equal.
# A job that makes the groups in the same order meets its own names by chance, and runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cat >"$folder/jobs.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def run_job(rank: int, store: str, groups_before: int) -> str:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    for _ in range(groups_before):
        dist.new_group([0, 1, 2, 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    left = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(1)])
    right = distribute_tensor(torch.ones(4, 4), mesh, [Replicate(), Shard(0)])
    try:
        # The sum over the ranks is a collective that the plan names.
        product = (left @ right).redistribute(mesh, [Replicate(), Replicate()]) + 1
        torch.nn.functional.layer_norm(left, (4,))
        answer = f"value {product.to_local()[0, 0].item():.0f}"
    except RuntimeError as error:
        answer = str(error).splitlines()[0]
    dist.destroy_process_group()
    return answer


def run_jobs(rank: int, folder: str) -> None:
    answers = [run_job(rank, f"{folder}/store{n}", n_groups) for n, n_groups in enumerate((3, 3, 0))]
    if rank == 0:
        print(" | ".join(answers), flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(run_jobs, args=(sys.argv[1],), nprocs=4)
PYTHON
answers=$(cd "$folder" && venv/bin/python jobs.py "$folder" 2>"$folder/errors" || { tail -5 "$folder/errors" >&2; exit 1; })
echo "$answers"
[[ "$answers" == "value 5 | value 5 | Could not resolve the process group registered under the name"* ]]
