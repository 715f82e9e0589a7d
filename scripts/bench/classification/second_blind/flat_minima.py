"""Sharpness-aware minimization of a Swin: two passes a step, the weights are moved and moved back."""

import torch
from programs import end_of_step
from torch import nn
from transformers import SwinConfig, SwinForImageClassification

torch.manual_seed(27)
config = SwinConfig(
    image_size=64,
    patch_size=4,
    embed_dim=64,
    depths=[2, 2, 2],
    num_heads=[2, 4, 8],
    window_size=4,
    num_labels=10,
)
model = SwinForImageClassification(config).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
rho = 0.05


def ascend():
    norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in model.parameters() if p.grad is not None]), p=2)
    scale = rho / (norm + 1e-12)
    moved = {}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                moved[parameter] = parameter.grad * scale
                parameter.add_(moved[parameter])
    return moved


def descend(moved):
    with torch.no_grad():
        for parameter, by in moved.items():
            parameter.sub_(by)


for _ in range(5):
    images, labels = torch.randn(12, 3, 64, 64).to("cuda"), torch.randint(0, 10, (12,)).to("cuda")
    criterion(model(images).logits, labels).backward()
    moved = ascend()
    optimizer.zero_grad()
    criterion(model(images).logits, labels).backward()
    descend(moved)
    optimizer.step()
    optimizer.zero_grad()
    end_of_step(inputs=[images, labels], states=list(moved.values()))
