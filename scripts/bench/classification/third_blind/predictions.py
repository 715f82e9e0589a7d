"""Images are classified in half precision, each with its mirror image; the chances of all are kept on the device."""

import torch
from programs import end_of_step
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, n, n_squeezed):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(n, n_squeezed, 1), nn.Conv2d(n_squeezed, n, 1)

    def forward(self, x):
        scale = self.fc2(nn.functional.silu(self.fc1(self.avgpool(x))))
        return x * torch.sigmoid(scale)


def conv_norm(n_in, n_out, kernel=1, stride=1, groups=1):
    return [
        nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(n_out),
    ]


class InvertedResidual(nn.Module):
    def __init__(self, n_in, n_out, expand, kernel, stride):
        super().__init__()
        n = n_in * expand
        self.use_res = stride == 1 and n_in == n_out
        self.block = nn.Sequential(
            *conv_norm(n_in, n),
            nn.SiLU(inplace=True),
            *conv_norm(n, n, kernel, stride, groups=n),
            nn.SiLU(inplace=True),
            SqueezeExcite(n, max(1, n_in // 4)),
            *conv_norm(n, n_out),
        )

    def forward(self, x):
        return x + self.block(x) if self.use_res else self.block(x)


def build_model(n_classes=300):
    layers = [*conv_norm(3, 24, 3, 2), nn.SiLU(inplace=True)]
    n = 24
    for n_out, depth, expand, kernel, stride in (
        (32, 2, 3, 3, 1),
        (48, 2, 4, 5, 2),
        (96, 2, 4, 3, 2),
        (192, 2, 4, 5, 2),
    ):
        for i in range(depth):
            layers.append(InvertedResidual(n, n_out, expand, kernel, stride if i == 0 else 1))
            n = n_out
    layers += [*conv_norm(n, 640), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(640, n_classes))


torch.manual_seed(71)
device = torch.device("cuda")
model = build_model()
model = model.half().to(device).to(memory_format=torch.channels_last)
model.eval()

n_images, batch_size = 96, 16
probs = torch.empty(n_images, 300, device=device)
with torch.inference_mode():
    for start in range(0, n_images, batch_size):
        images = torch.rand(batch_size, 3, 72, 72)
        images = images.to(device, torch.float16).contiguous(memory_format=torch.channels_last)
        logits = model(images)
        logits = (logits + model(images.flip(3))) / 2
        probs[start : start + batch_size] = logits.float().softmax(1)
        end_of_step(inputs=[images], activations=[logits, probs])
top = probs.topk(5)
print(top.indices[0].tolist(), top.values[0].tolist())
