"""Sharpness-aware minimisation: an optimizer that wraps another, two backward passes in a step."""

import torch
from own_count import print_count
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(
            torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2
        )
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 16 * 16, 10),
).cuda()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for i in range(6):
    inputs = torch.randn(32, 3, 32, 32).cuda()
    targets = torch.randint(0, 10, (32,)).cuda()
    criterion(model(inputs), targets).backward()
    optimizer.first_step(zero_grad=True)
    criterion(model(inputs), targets).backward()
    optimizer.second_step()
    print_count(model, [optimizer, optimizer.base_optimizer])
    optimizer.zero_grad()
