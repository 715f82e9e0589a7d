"""Train, save, build the model anew, load, and go on: what a resumed job does, in one process."""

import torch
import torch.nn.functional as F
from own_count import print_count
from torch import nn


def make():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(600, 800), nn.Tanh(), nn.Linear(800, 40)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(100, 600, device="cuda")
        y = torch.randint(0, 40, (100,), device="cuda")
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print_count(model, optimizer)
        optimizer.zero_grad()
    return loss.item()


model, optimizer = make()
train(model, optimizer, 1)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
del model, optimizer

model, optimizer = make()
state = torch.load("checkpoint.pt", map_location="cuda")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
del state
print(train(model, optimizer, 5))
