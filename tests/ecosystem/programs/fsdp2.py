"""FSDP2: fully_shard on every block and on the model."""

import os

import torch
import torch.distributed as dist
from own_count import print_count
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

rank = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))

blocks = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3)]
model = nn.Sequential(nn.Embedding(500, 128), *blocks, nn.Linear(128, 500))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in blocks:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(4):
    tokens = torch.randint(0, 500, (8, 64), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()
    print_count(model, optimizer)
    optimizer.zero_grad()
dist.destroy_process_group()
