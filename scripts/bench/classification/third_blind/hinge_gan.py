"""A generator against a discriminator with spectral norms: hinge losses, two steps of the one for each of the other."""

from itertools import chain

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm as sn


class UpBlock(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(n_in), nn.BatchNorm2d(n_out)
        self.c1, self.c2 = nn.Conv2d(n_in, n_out, 3, 1, 1), nn.Conv2d(n_out, n_out, 3, 1, 1)
        self.short = nn.Conv2d(n_in, n_out, 1)

    def forward(self, x):
        h = F.interpolate(F.relu(self.bn1(x)), scale_factor=2)
        h = self.c2(F.relu(self.bn2(self.c1(h))))
        return h + self.short(F.interpolate(x, scale_factor=2))


class DownBlock(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.c1, self.c2 = sn(nn.Conv2d(n_in, n_out, 3, 1, 1)), sn(nn.Conv2d(n_out, n_out, 3, 1, 1))
        self.short = sn(nn.Conv2d(n_in, n_out, 1))

    def forward(self, x):
        h = F.avg_pool2d(self.c2(F.relu(self.c1(F.relu(x)))), 2)
        return h + self.short(F.avg_pool2d(x, 2))


class Generator(nn.Module):
    def __init__(self, z_dim=96, n=160):
        super().__init__()
        self.z_dim = z_dim
        self.lin = nn.Linear(z_dim, 4 * 4 * n)
        self.blocks = nn.Sequential(UpBlock(n, n), UpBlock(n, n // 2), UpBlock(n // 2, n // 4))
        self.out = nn.Sequential(nn.BatchNorm2d(n // 4), nn.ReLU(), nn.Conv2d(n // 4, 3, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.out(self.blocks(self.lin(z).view(len(z), -1, 4, 4)))


class Discriminator(nn.Module):
    def __init__(self, n=128):
        super().__init__()
        self.blocks = nn.Sequential(DownBlock(3, n // 2), DownBlock(n // 2, n), DownBlock(n, n))
        self.lin = sn(nn.Linear(n, 1))

    def forward(self, x):
        return self.lin(F.relu(self.blocks(x)).sum((2, 3)))


def train(n_iters, batch_size=12, n_dis=2, device="cuda"):
    G, D = Generator().to(device), Discriminator().to(device)
    opt_G = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.0, 0.9))
    opt_D = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.0, 0.9))
    for module in chain(G.modules(), D.modules()):
        if isinstance(module, nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for i in range(n_iters):
        for _ in range(n_dis):
            real = torch.rand(batch_size, 3, 32, 32).mul(2).sub(1).to(device)
            with torch.no_grad():
                fake = G(torch.randn(batch_size, G.z_dim, device=device))
            loss_D = F.relu(1.0 - D(real)).mean() + F.relu(1.0 + D(fake)).mean()
            D.zero_grad()
            loss_D.backward()
            opt_D.step()
            tell(inputs=[real], activations=[fake, loss_D])
        for p in D.parameters():
            p.requires_grad_(False)
        z = torch.randn(batch_size, G.z_dim, device=device)
        loss_G = -D(G(z)).mean()
        opt_G.zero_grad()
        loss_G.backward()
        opt_G.step()
        for p in D.parameters():
            p.requires_grad_(True)
        print(f"{i}: D {loss_D.item():.3f} G {loss_G.item():.3f}")
        end_of_step(inputs=[real, z], activations=[fake, loss_D, loss_G])


if __name__ == "__main__":
    torch.manual_seed(72)
    train(4)
