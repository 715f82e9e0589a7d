"""Model-agnostic meta-learning with torch.func: fast weights are computed, and differentiated through."""

import torch
from programs import end_of_step
from torch import nn
from torch.func import functional_call
from torch.nn import functional

torch.manual_seed(28)


def block(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(8, n_out), nn.ReLU(), nn.MaxPool2d(2)
    )


model = nn.Sequential(
    block(1, 64), block(64, 64), block(64, 64), nn.Flatten(), nn.Linear(64 * 9, 5)
).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    losses = []
    for _ in range(3):
        support, query = torch.randn(10, 1, 28, 28).cuda(), torch.randn(15, 1, 28, 28).cuda()
        of_support, of_query = torch.randint(0, 5, (10,)).cuda(), torch.randint(0, 5, (15,)).cuda()
        fast = dict(model.named_parameters())
        for _ in range(2):
            loss = functional.cross_entropy(functional_call(model, fast, (support,)), of_support)
            gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), gradients)}
        losses.append(functional.cross_entropy(functional_call(model, fast, (query,)), of_query))
    torch.stack(losses).mean().backward()
    optimizer.step()
    end_of_step(inputs=[support, query, of_support, of_query], activations=[losses])
