"""A model in bfloat16 whose optimizer steps copies of the weights in float32."""

import torch
from own_count import print_count
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).to("cuda", torch.bfloat16)
masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-3)

for step in range(6):
    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    loss = (model(x) - x).float().square().mean()
    loss.backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
    print_count(model, optimizer, masters=masters, master_gradients=[m.grad for m in masters])
    model.zero_grad()
    optimizer.zero_grad()
    print(step, loss.item())
