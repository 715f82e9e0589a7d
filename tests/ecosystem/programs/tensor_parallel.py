"""Tensor parallelism: a device mesh, column- and row-wise linear layers, DTensor parameters."""

import os

import torch
from own_count import print_count
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(128, 512)
        self.down = nn.Linear(512, 128)

    def forward(self, x):
        return self.down(self.up(x).relu())


mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
model = MLP().to("cuda")
model = parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
for _ in range(4):
    loss = model(torch.rand(16, 128, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    print_count(model, optimizer)
    optimizer.zero_grad()
