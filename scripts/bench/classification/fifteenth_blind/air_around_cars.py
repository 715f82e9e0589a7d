"""Pressure on cars and air around them are learned by a Transolver: points are gathered into slices that attend to each other, all cars lie on the device, all in bfloat16 with Kahan's summation in StableAdamW of pytorch_optimizer, one car after the other and two to a step, one cycle of rates, errors of other cars and their drag between."""

import numpy as np
import torch
from programs import end_of_step
from pytorch_optimizer import StableAdamW
from scipy.stats import spearmanr
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

N_TRAIN, N_TEST, PER_STEP = 6, 2, 2


def car(rng):
    """Points of a body and of the air near it, with signed distances and normals, and what flows there."""
    n_surface, n_volume = int(rng.integers(1100, 1400)), int(rng.integers(2600, 3200))
    size = rng.uniform([1.8, 0.7, 0.5], [2.6, 1.0, 0.8])
    direction = rng.normal(size=(n_surface + n_volume, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    away = np.concatenate([np.zeros(n_surface), rng.gamma(2, 0.4, n_volume)])
    places = direction * (size + away[:, None])
    normals = np.where(away[:, None] == 0, direction, 0)
    features = np.concatenate([places, away[:, None], normals], axis=1)
    slowed = np.exp(-away)[:, None]
    velocity = np.array([20.0, 0, 0]) * (1 - slowed) + 8 * slowed * np.cross(direction, [0, 0, 1])
    pressure = 120 * (1 - 2.25 * (1 - direction[:, :1] ** 2)) * slowed / size[1]
    return features, np.concatenate([velocity, pressure], axis=1), away == 0


def cars(n, seed):
    rng = np.random.default_rng(seed)
    return [car(rng) for _ in range(n)]


class PhysicsAttention(nn.Module):
    def __init__(self, dim, n_heads, n_slices, dropout=0.0):
        super().__init__()
        self.n_heads, size = n_heads, dim // n_heads
        self.temperature = nn.Parameter(torch.full((1, n_heads, 1, 1), 0.5))
        self.project_x, self.project_f = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.slice = nn.Linear(size, n_slices)
        nn.init.orthogonal_(self.slice.weight)
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, dim = x.shape
        features = self.project_f(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        places = self.project_x(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        weights = torch.softmax(self.slice(places) / self.temperature.clamp(0.1, 5), dim=-1)
        tokens = torch.einsum("bhnc,bhng->bhgc", features, weights) / (weights.sum(2) + 1e-5).unsqueeze(-1)
        q, k, v = self.qkv(tokens).chunk(3, dim=-1)
        tokens = nn.functional.scaled_dot_product_attention(q, k, v)
        x = torch.einsum("bhgc,bhng->bhnc", tokens, weights)
        return self.out(x.transpose(1, 2).reshape(b, n, dim))


class Block(nn.Module):
    def __init__(self, dim, n_heads, n_slices, ratio):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(dim), PhysicsAttention(dim, n_heads, n_slices)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transolver(nn.Module):
    def __init__(self, n_in=7, n_out=4, dim=256, n_layers=5, n_heads=8, n_slices=32, ratio=2):
        super().__init__()
        self.preprocess = nn.Sequential(nn.Linear(n_in, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.placeholder = nn.Parameter(torch.rand(dim) / dim)
        self.blocks = nn.ModuleList(Block(dim, n_heads, n_slices, ratio) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, n_out)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.preprocess(x.unsqueeze(0)) + self.placeholder
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).squeeze(0)


def to_device(found, coefficients, device):
    mean_in, std_in, mean_out, std_out = coefficients
    return [
        (
            torch.tensor((x - mean_in) / std_in).to(device, torch.bfloat16),
            torch.tensor((y - mean_out) / std_out).to(device, torch.bfloat16),
            torch.tensor(surface).to(device),
        )
        for x, y, surface in found
    ]


@torch.no_grad()
def test(model, found, coefficients, raw):
    model.eval()
    mean, std = (torch.tensor(each, dtype=torch.float32, device="cuda") for each in coefficients[2:])
    errors, drags, true_drags = [], [], []
    for (x, y, surface), (features, _, _) in zip(found, raw):
        out, y = model(x).float() * std + mean, y.float() * std + mean
        of_pressure = (out[surface, 3] - y[surface, 3]).norm() / y[surface, 3].norm()
        of_velocity = (out[~surface, :3] - y[~surface, :3]).norm() / y[~surface, :3].norm()
        errors.append((of_pressure.item(), of_velocity.item()))
        ahead = features[: int(surface.sum()), 4]
        drags.append((out[surface, 3].cpu().numpy() * ahead).mean())
        true_drags.append((y[surface, 3].cpu().numpy() * ahead).mean())
    model.train()
    return (*np.mean(errors, axis=0), spearmanr(drags, true_drags).statistic)


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    device = torch.device("cuda")
    train_raw, test_raw = cars(N_TRAIN, seed=1), cars(N_TEST, seed=2)
    all_in, all_out = (np.concatenate([each[i] for each in train_raw]) for i in (0, 1))
    coefficients = all_in.mean(0), all_in.std(0) + 1e-8, all_out.mean(0), all_out.std(0) + 1e-8
    train, held_out = (to_device(found, coefficients, device) for found in (train_raw, test_raw))

    model = Transolver().to(device, torch.bfloat16)
    optimizer = StableAdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-5, kahan_sum=True)
    n_epochs, n_steps = 2, N_TRAIN // PER_STEP
    scheduler = OneCycleLR(
        optimizer, max_lr=1e-3, epochs=n_epochs, steps_per_epoch=n_steps, cycle_momentum=False
    )
    for epoch in range(n_epochs):
        order, losses = rng.permutation(N_TRAIN), []
        for step in range(n_steps):
            for number in order[step * PER_STEP : (step + 1) * PER_STEP]:
                x, y, surface = train[number]
                out = model(x)
                of_velocity = nn.functional.mse_loss(out[:, :3], y[:, :3])
                of_pressure = nn.functional.mse_loss(out[surface, 3], y[surface, 3])
                loss = of_velocity + 0.5 * of_pressure
                (loss / PER_STEP).backward()
                losses.append((of_velocity.item(), of_pressure.item()))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            end_of_step(inputs=[train, held_out], activations=[out, of_velocity, of_pressure, loss])
            if (step + 1) % 2 == 0:
                pressure, velocity, rho = test(model, held_out, coefficients, test_raw)
                print(
                    f"train {np.mean(losses, axis=0)}, pressure {pressure:.3f}, velocity {velocity:.3f}, rho {rho:.2f}"
                )
        torch.save(model.state_dict(), f"model_{epoch}.pth")


if __name__ == "__main__":
    main()
