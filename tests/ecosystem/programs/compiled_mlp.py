"""torch.compile of a plain model; `python compiled_mlp.py reduce-overhead` asks for CUDA graphs."""

import sys

import torch
from own_count import print_count
from torch import nn

torch.set_float32_matmul_precision("high")
torch.manual_seed(0)


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


model = nn.Sequential(*(FeedForward(256, 1024) for _ in range(4)), nn.Linear(256, 1)).cuda()
compiled = torch.compile(model, mode=sys.argv[1] if len(sys.argv) > 1 else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for i in range(6):
    x = torch.randn(512, 256, device="cuda")
    y = torch.randn(512, 1, device="cuda")
    loss = nn.functional.mse_loss(compiled(x), y)
    loss.backward()
    optimizer.step()
    print_count(model, optimizer)
    optimizer.zero_grad()
    print(i, loss.item())
