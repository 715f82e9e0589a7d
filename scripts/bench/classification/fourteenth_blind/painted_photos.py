"""A small network learns to paint photos in one style, as the example of Ignite does it: an Engine with handlers, a frozen VGG that judges content and style by Gram matrices, those of the painting computed once, total variation, a painted photo now and then."""

from collections import namedtuple
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.handlers import ModelCheckpoint, TerminateOnNan, Timer
from ignite.metrics import RunningAverage
from PIL import Image
from programs import end_of_step, tell
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder
from torchvision.utils import save_image

IMAGE_SIZE, BATCH_SIZE = 96, 3
CONTENT_WEIGHT, STYLE_WEIGHT, TV_WEIGHT = 1e5, 1e10, 1e-6
device = torch.device("cuda")


class ConvLayer(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride, upsample=None):
        super().__init__()
        self.upsample = upsample
        self.reflection_pad = nn.ReflectionPad2d(kernel_size // 2)
        self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride)

    def forward(self, x):
        if self.upsample:
            x = F.interpolate(x, mode="nearest", scale_factor=self.upsample)
        return self.conv2d(self.reflection_pad(x))


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = ConvLayer(channels, channels, kernel_size=3, stride=1)
        self.in1 = nn.InstanceNorm2d(channels, affine=True)
        self.conv2 = ConvLayer(channels, channels, kernel_size=3, stride=1)
        self.in2 = nn.InstanceNorm2d(channels, affine=True)
        self.relu = nn.ReLU()

    def forward(self, x):
        out = self.relu(self.in1(self.conv1(x)))
        return self.in2(self.conv2(out)) + x


class TransformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for in_channels, out_channels, kernel, stride in ((3, 32, 9, 1), (32, 64, 3, 2), (64, 128, 3, 2)):
            layers += [
                ConvLayer(in_channels, out_channels, kernel, stride),
                nn.InstanceNorm2d(out_channels, affine=True),
                nn.ReLU(),
            ]
        layers += [ResidualBlock(128) for _ in range(5)]
        for in_channels, out_channels in ((128, 64), (64, 32)):
            layers += [
                ConvLayer(in_channels, out_channels, kernel_size=3, stride=1, upsample=2),
                nn.InstanceNorm2d(out_channels, affine=True),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers, ConvLayer(32, 3, kernel_size=9, stride=1))

    def forward(self, x):
        return self.layers(x)


class Vgg16(nn.Module):
    Outputs = namedtuple("VggOutputs", ["relu1_2", "relu2_2", "relu3_3", "relu4_3"])

    def __init__(self):
        super().__init__()
        features = models.vgg16(weights=None).features
        bounds = (0, 4, 9, 16, 23)
        self.slices = nn.ModuleList(features[a:b] for a, b in zip(bounds, bounds[1:]))
        self.requires_grad_(False)

    def forward(self, x):
        found = []
        for each in self.slices:
            x = each(x)
            found.append(x)
        return self.Outputs(*found)


def gram_matrix(y):
    b, ch, h, w = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return (batch / 255.0 - mean) / std


def write_pictures():
    rng = np.random.default_rng(0)
    folder = Path("photos/all")
    folder.mkdir(parents=True)
    for i in range(BATCH_SIZE * 5):
        pixels = rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((130, 110), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")
    pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((128, 128), Image.Resampling.NEAREST).save("style.png")


def main():
    torch.manual_seed(42)
    write_pictures()
    transform = transforms.Compose(
        [
            transforms.Resize(IMAGE_SIZE),
            transforms.CenterCrop(IMAGE_SIZE),
            transforms.ToTensor(),
            transforms.Lambda(lambda x: x.mul(255)),
        ]
    )
    train_loader = DataLoader(ImageFolder("photos", transform), BATCH_SIZE, shuffle=True)
    transformer = TransformerNet().to(device)
    optimizer = torch.optim.Adam(transformer.parameters(), lr=1e-3)
    vgg = Vgg16().to(device).eval()

    style = transforms.Compose([transforms.ToTensor(), transforms.Lambda(lambda x: x.mul(255))])(
        Image.open("style.png").convert("RGB")
    )
    style = style.repeat(BATCH_SIZE, 1, 1, 1).to(device)
    features_style = vgg(normalize_batch(style))
    gram_style = [gram_matrix(y) for y in features_style]

    def step(engine, batch):
        x, _ = batch
        x = x.to(device)
        optimizer.zero_grad()
        y = transformer(x)
        variation = (y[..., 1:] - y[..., :-1]).abs().sum() + (y[..., 1:, :] - y[..., :-1, :]).abs().sum()
        x, y = normalize_batch(x), normalize_batch(y)
        features_x, features_y = vgg(x), vgg(y)
        content_loss = CONTENT_WEIGHT * F.mse_loss(features_y.relu2_2, features_x.relu2_2)
        style_loss = 0.0
        for ft_y, gm_s in zip(features_y, gram_style):
            style_loss += F.mse_loss(gram_matrix(ft_y), gm_s[: len(x)])
        style_loss *= STYLE_WEIGHT
        total_loss = content_loss + style_loss + TV_WEIGHT * variation
        total_loss.backward()
        optimizer.step()
        tell(inputs=x, activations=[y, features_x, features_y, total_loss])
        return {"content": content_loss.item(), "style": style_loss.item(), "total": total_loss.item()}

    trainer = Engine(step)
    Timer(average=True).attach(trainer, resume=Events.ITERATION_STARTED, step=Events.ITERATION_COMPLETED)
    RunningAverage(output_transform=lambda out: out["total"]).attach(trainer, "total_loss")
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, TerminateOnNan(output_transform=lambda out: out["total"])
    )
    checkpoints = ModelCheckpoint("checkpoints", "style", n_saved=2, require_empty=False)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), checkpoints, {"net": transformer})

    @trainer.on(Events.ITERATION_COMPLETED)
    def log(engine):
        print(
            f"iteration {engine.state.iteration}: "
            + " ".join(f"{k} {v:.3g}" for k, v in engine.state.output.items())
        )

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def paint(engine):
        transformer.eval()
        with torch.no_grad():
            photo = engine.state.batch[0][:1].to(device)
            save_image(transformer(photo).cpu().clamp(0, 255) / 255, f"painted_{engine.state.iteration}.png")
        transformer.train()

    @trainer.on(Events.ITERATION_COMPLETED)
    def completed(engine):
        end_of_step(inputs=style, activations=[features_style, gram_style])

    trainer.run(train_loader, max_epochs=1)


if __name__ == "__main__":
    main()
