"""Shampoo, written by hand: every side of a matrix has a preconditioner, whose root is computed now and then."""

import torch
from programs import end_of_step
from torch import nn

torch.manual_seed(32)


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, momentum=0.9, epsilon=1e-4, every=2):
        super().__init__(
            params, {"lr": lr, "momentum": momentum, "epsilon": epsilon, "every": every}
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient, state = parameter.grad, self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["momentum"] = gradient.clone()
                    for side, size in enumerate(gradient.shape):
                        state[f"sum_{side}"] = group["epsilon"] * torch.eye(
                            size, device=gradient.device
                        )
                        state[f"root_{side}"] = torch.zeros(size, size, device=gradient.device)
                gradient = gradient.lerp(state["momentum"], group["momentum"])
                for side, size in enumerate(gradient.shape):
                    matrix = gradient.transpose(0, side).contiguous().view(size, -1)
                    state[f"sum_{side}"].add_(matrix @ matrix.t())
                    if state["step"] % group["every"] == 0:
                        values, vectors = torch.linalg.eigh(state[f"sum_{side}"])
                        root = (
                            vectors
                            @ torch.diag(values.clamp(min=1e-6) ** (-1 / gradient.ndim))
                            @ vectors.t()
                        )
                        state[f"root_{side}"].copy_(root)
                    matrix = state[f"root_{side}"] @ matrix
                    turned = gradient.transpose(0, side).shape
                    gradient = matrix.view(turned).transpose(0, side)
                state["momentum"].copy_(gradient)
                state["step"] += 1
                parameter.add_(gradient, alpha=-group["lr"])


model = nn.Sequential(
    nn.Linear(196, 384),
    nn.GELU(),
    nn.Linear(384, 384),
    nn.GELU(),
    nn.Linear(384, 384),
    nn.GELU(),
    nn.Linear(384, 30),
).cuda()
optimizer = Shampoo(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for _ in range(5):
    x, y = torch.randn(512, 196).cuda(), torch.randint(0, 30, (512,)).cuda()
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[x, y], activations=[loss])
