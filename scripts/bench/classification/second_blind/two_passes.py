"""A ConvNeXt of transformers by an optimizer whose step runs its closure a second time, away from the weights."""

import torch
from programs import end_of_step
from transformers import ConvNextConfig, ConvNextForImageClassification

torch.manual_seed(52)


class AwayAndBack(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.base = base

    def step(self, closure):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in parameters]).norm()
            for p in parameters:
                self.state[p]["away"] = p.grad * (self.defaults["rho"] / (norm + 1e-12))
                p.add_(self.state[p]["away"])
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        with torch.no_grad():
            for p in parameters:
                p.sub_(self.state[p]["away"])
        self.base.step()
        self.base.zero_grad()
        return loss


config = ConvNextConfig(
    num_stages=3, hidden_sizes=[48, 96, 192], depths=[2, 2, 2], image_size=64, num_labels=20
)
model = ConvNextForImageClassification(config).to("cuda")
base = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer = AwayAndBack(model.parameters(), base)
for _ in range(4):
    images, labels = torch.randn(12, 3, 64, 64).to("cuda"), torch.randint(0, 20, (12,)).to("cuda")

    def closure(images=images, labels=labels):
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)
    end_of_step(
        inputs=[images, labels],
        states=[state["away"] for state in optimizer.state.values() if "away" in state],
    )
