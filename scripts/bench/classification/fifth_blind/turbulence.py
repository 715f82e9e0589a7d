"""A Fourier neural operator forecasts a flow for several moments: complex weights, a relative H1 loss, the pushed-forward trick."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SpectralConv2d(nn.Module):
    """Multiplies the lowest modes of a field by weights of their own."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / (width * width)
        shape = (width, width, modes, modes)
        self.weights1 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))

    def forward(self, x):
        m = self.modes
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros_like(x_ft)
        out_ft[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, :m, :m], self.weights1)
        out_ft[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, -m:, :m], self.weights2)
        return torch.fft.irfft2(out_ft, s=x.shape[-2:])


class Block(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.conv = SpectralConv2d(width, modes)
        self.skip = nn.Conv2d(width, width, 1)
        self.mlp = nn.Sequential(nn.Conv2d(width, width * 2, 1), nn.GELU(), nn.Conv2d(width * 2, width, 1))
        self.norm = nn.InstanceNorm2d(width)

    def forward(self, x):
        return self.skip(x) + self.mlp(self.norm(self.conv(x)))


class FNO2d(nn.Module):
    def __init__(self, seen=4, width=28, modes=10, n_layers=4):
        super().__init__()
        self.lifting = nn.Conv2d(seen + 2, width, 1)
        self.blocks = nn.ModuleList(Block(width, modes) for _ in range(n_layers))
        self.projection = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def get_grid(self, x):
        n, _, height, width = x.shape
        y = torch.linspace(0, 1, height, device=x.device).view(1, 1, height, 1).expand(n, 1, height, width)
        z = torch.linspace(0, 1, width, device=x.device).view(1, 1, 1, width).expand(n, 1, height, width)
        return torch.cat((y, z), dim=1)

    def forward(self, x):
        x = self.lifting(torch.cat((x, self.get_grid(x)), dim=1))
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number + 1 < len(self.blocks):
                x = F.gelu(x)
        return self.projection(x)


class UnitGaussianNormalizer(nn.Module):
    def __init__(self, fields, eps=1e-5):
        super().__init__()
        self.register_buffer("mean", fields.mean(0, keepdim=True))
        self.register_buffer("std", fields.std(0, keepdim=True) + eps)

    def encode(self, x):
        return (x - self.mean) / self.std

    def decode(self, x):
        return x * self.std + self.mean


def h1_loss(x, y):
    """How far a field and its slopes are from the true ones, by the size of these."""
    frequencies = torch.fft.fftfreq(x.shape[-1], 1 / x.shape[-1], device=x.device)
    weight = 1 + frequencies[:, None] ** 2 + frequencies[None, :] ** 2
    difference = torch.fft.fft2(x - y).abs() ** 2
    size = torch.fft.fft2(y).abs() ** 2
    return ((weight * difference).sum((-2, -1)) / (weight * size).sum((-2, -1))).sqrt().mean()


def main(n_epochs=3, seen=4, unrolled=3, size=48, device="cuda"):
    torch.manual_seed(114)
    flows = torch.randn(48, seen + unrolled, size, size).cumsum(1)
    loader = DataLoader(TensorDataset(flows[:, :seen], flows[:, seen:]), batch_size=8, shuffle=True)
    normalizer = UnitGaussianNormalizer(flows[:, :1]).to(device)
    model = FNO2d(seen).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)
    for epoch in range(n_epochs):
        model.train()
        train_l2 = 0.0
        for xx, yy in loader:
            xx, yy = xx.to(device), yy.to(device)
            xx = normalizer.encode(xx)
            loss = 0
            for t in range(unrolled):
                im = model(xx)
                loss += h1_loss(normalizer.decode(im)[:, 0], yy[:, t])
                xx = torch.cat((xx[:, 1:], im), dim=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_l2 += loss.item()
            end_of_step(inputs=[yy], activations=[xx, im, loss])
        scheduler.step()
        print(epoch, train_l2 / len(loader))


if __name__ == "__main__":
    main()
