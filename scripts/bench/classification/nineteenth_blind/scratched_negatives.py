"""Scratches on digitised glass negatives are painted in by a GAN: a gated-convolution generator in two stages with contextual dilation, a spectrally normalised patch discriminator, VGG perceptual and style losses, Adam, float32."""

import itertools

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from programs import end_of_step
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(8)
np.random.seed(8)


class Negatives(Dataset):
    """Grey scans with masks of scratches and spots drawn at random."""

    def __init__(self, size=128):
        self.size = size

    def __len__(self):
        return 400

    def __getitem__(self, index):
        scan = torch.from_numpy(np.random.rand(1, self.size // 8, self.size // 8).astype(np.float32))
        scan = F.interpolate(scan[None], size=self.size, mode="bicubic")[0].clamp(0, 1) * 2 - 1
        mask = torch.zeros(1, self.size, self.size)
        for _ in range(np.random.randint(2, 6)):
            x0, y0, x1, y1 = np.random.randint(0, self.size, 4)
            width = np.random.randint(1, 4)
            for t in np.linspace(0, 1, self.size):
                x, y = int(x0 + t * (x1 - x0)), int(y0 + t * (y1 - y0))
                mask[0, max(y - width, 0) : y + width, max(x - width, 0) : x + width] = 1
        return scan, mask


class GatedConv(nn.Module):
    def __init__(self, in_channels, out_channels, kernel=3, stride=1, dilation=1, activation=True):
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels,
            2 * out_channels,
            kernel,
            stride,
            padding=dilation * (kernel - 1) // 2,
            dilation=dilation,
        )
        self.activation = activation

    def forward(self, x):
        feature, gate = self.conv(x).chunk(2, dim=1)
        if self.activation:
            feature = F.elu(feature)
        return feature * torch.sigmoid(gate)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GatedConv(in_channels, out_channels)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2, mode="nearest"))


def stage(in_channels, width):
    return nn.Sequential(
        GatedConv(in_channels, width, 5),
        GatedConv(width, 2 * width, stride=2),
        GatedConv(2 * width, 2 * width),
        GatedConv(2 * width, 4 * width, stride=2),
        GatedConv(4 * width, 4 * width),
        GatedConv(4 * width, 4 * width, dilation=2),
        GatedConv(4 * width, 4 * width, dilation=4),
        GatedConv(4 * width, 4 * width, dilation=8),
        GatedConv(4 * width, 4 * width),
        Up(4 * width, 2 * width),
        GatedConv(2 * width, 2 * width),
        Up(2 * width, width),
        nn.Conv2d(width, 1, 3, padding=1),
    )


class Generator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.coarse = stage(2, width)
        self.fine = stage(2, width)

    def forward(self, scan, mask):
        damaged = scan * (1 - mask)
        coarse = torch.tanh(self.coarse(torch.cat([damaged, mask], 1)))
        merged = coarse * mask + damaged
        fine = torch.tanh(self.fine(torch.cat([merged, mask], 1)))
        return coarse, fine


class Discriminator(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        widths = [2, width, 2 * width, 4 * width, 4 * width]
        layers = []
        for a, b in itertools.pairwise(widths):
            layers += [spectral_norm(nn.Conv2d(a, b, 5, 2, 2)), nn.LeakyReLU(0.2)]
        layers.append(spectral_norm(nn.Conv2d(widths[-1], 1, 3, padding=1)))
        self.layers = nn.Sequential(*layers)

    def forward(self, scan, mask):
        return self.layers(torch.cat([scan, mask], 1))


class VGGLoss(nn.Module):
    """Distances of features and of their Gram matrices."""

    def __init__(self):
        super().__init__()
        vgg = torchvision.models.vgg16(weights=None).features[:16]
        self.blocks = nn.ModuleList([vgg[:4], vgg[4:9], vgg[9:16]])
        self.requires_grad_(False).eval()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    @staticmethod
    def gram(features):
        flat = features.flatten(2)
        return flat @ flat.transpose(1, 2) / flat[0].numel()

    def forward(self, output, target):
        x = ((output.expand(-1, 3, -1, -1) + 1) / 2 - self.mean) / self.std
        y = ((target.expand(-1, 3, -1, -1) + 1) / 2 - self.mean) / self.std
        perceptual = style = 0.0
        for block in self.blocks:
            x = block(x)
            with torch.no_grad():
                y = block(y)
            perceptual = perceptual + F.l1_loss(x, y)
            style = style + F.l1_loss(self.gram(x), self.gram(y))
        return perceptual, style


def main():
    device = "cuda"
    loader = DataLoader(Negatives(), batch_size=2, shuffle=True, drop_last=True)
    generator = Generator().to(device)
    discriminator = Discriminator().to(device)
    vgg = VGGLoss().to(device)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=4e-4, betas=(0.5, 0.9))
    scheduler_g = torch.optim.lr_scheduler.ExponentialLR(optimizer_g, gamma=0.9995)
    scheduler_d = torch.optim.lr_scheduler.ExponentialLR(optimizer_d, gamma=0.9995)

    for iteration, (scan, mask) in enumerate(loader):
        scan, mask = scan.to(device), mask.to(device)
        coarse, fine = generator(scan, mask)
        restored = fine * mask + scan * (1 - mask)

        real_score = discriminator(scan, mask)
        fake_score = discriminator(restored.detach(), mask)
        loss_d = F.relu(1 - real_score).mean() + F.relu(1 + fake_score).mean()
        optimizer_d.zero_grad(set_to_none=True)
        loss_d.backward()
        optimizer_d.step()

        discriminator.requires_grad_(False)
        adversarial = -discriminator(restored, mask).mean()
        discriminator.requires_grad_(True)
        perceptual, style = vgg(restored, scan)
        pixel = F.l1_loss(coarse, scan) + F.l1_loss(fine, scan)
        loss_g = pixel + 0.01 * adversarial + 0.05 * perceptual + 40.0 * style
        optimizer_g.zero_grad(set_to_none=True)
        loss_g.backward()
        optimizer_g.step()
        scheduler_g.step()
        scheduler_d.step()

        print(
            f"{iteration}: D {loss_d.item():.3f} G {loss_g.item():.3f} pixel {pixel.item():.3f} "
            f"perceptual {perceptual.item():.3f} style {style.item():.4f}"
        )
        if iteration % 200 == 1:
            torchvision.utils.save_image(
                torch.cat([scan * (1 - mask), restored.detach(), scan]).cpu(),
                "samples.png",
                nrow=2,
                normalize=True,
            )
        end_of_step(
            inputs=[scan, mask],
            activations=[
                coarse,
                fine,
                restored,
                real_score,
                fake_score,
                loss_d,
                adversarial,
                perceptual,
                style,
                pixel,
                loss_g,
            ],
        )


if __name__ == "__main__":
    main()
