"""The first FSDP, with its wrapping policy."""

import functools
import os

import torch
import torch.distributed as dist
from own_count import print_count
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def main():
    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100_000)
    model = FSDP(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        loss = model(torch.randn(32, 256, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        print_count(model, optimizer)
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
