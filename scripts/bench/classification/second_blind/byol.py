"""Two views of images agree: a ResNet of transformers, and a target that follows it by a moving average."""

import copy

import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetModel

torch.manual_seed(19)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        config = ResNetConfig(
            embedding_size=32, hidden_sizes=[64, 128, 256], depths=[2, 2, 2], layer_type="basic"
        )
        self.backbone = ResNetModel(config)
        self.projector = nn.Sequential(
            nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Linear(512, 128)
        )

    def forward(self, images):
        return self.projector(self.backbone(images).pooler_output.flatten(1))


online = Encoder().to("cuda")
predictor = nn.Sequential(nn.Linear(128, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)).to("cuda")
target = copy.deepcopy(online)
for parameter in target.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD(
    [*online.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4
)


def distance(x, y):
    return 2 - 2 * (functional.normalize(x, dim=-1) * functional.normalize(y, dim=-1)).sum(-1)


for _ in range(5):
    one, two = (torch.randn(12, 3, 64, 64).to("cuda") for _ in range(2))
    with torch.no_grad():
        of_one, of_two = target(one), target(two)
    loss = (distance(predictor(online(one)), of_two) + distance(predictor(online(two)), of_one)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, now in zip(target.parameters(), online.parameters()):
            mean.lerp_(now, 0.004)
    end_of_step(
        inputs=[one, two],
        activations=[of_one, of_two, loss],
        weights=[*target.parameters(), *target.buffers()],
    )
