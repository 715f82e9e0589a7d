"""An auto-decoder of signed distances, fitted to oriented point clouds that stay on the GPU, with normals and the eikonal term by double backward."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.nn.utils.parametrizations import weight_norm

torch.backends.cuda.matmul.allow_tf32 = True
device = "cuda"
N_SHAPES, N_POINTS, CODE = 24, 30_000, 128
SHAPES_PER_STEP, POINTS_PER_SHAPE = 4, 512


def superquadric(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and outward normals of a random ellipsoid with rounded bumps."""
    axes = 0.35 + 0.4 * torch.rand(3, generator=generator)
    direction = F.normalize(torch.randn(n, 3, generator=generator), dim=1)
    points = direction * axes
    normals = F.normalize(points / axes**2, dim=1)
    points = points + 0.02 * torch.sin(12 * direction[:, :1]) * normals
    return points, normals


class SignedDistance(nn.Module):
    """Eight layers with a skip, as in DeepSDF; starts near a sphere."""

    def __init__(
        self, code: int, width: int = 256, depth: int = 8, skip: int = 4, radius: float = 0.5
    ) -> None:
        super().__init__()
        first = 3 + code
        self.skip = skip
        self.layers = nn.ModuleList()
        for i in range(depth):
            n_in = first if i == 0 else width
            n_out = width - first if i + 1 == skip else width
            layer = nn.Linear(n_in, n_out)
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / n_out))
            nn.init.zeros_(layer.bias)
            if i == 0:
                nn.init.zeros_(layer.weight[:, 3:])
            self.layers.append(weight_norm(layer))
        self.last = nn.Linear(width, 1)
        nn.init.normal_(self.last.weight, math.sqrt(math.pi / width), 1e-5)
        nn.init.constant_(self.last.bias, -radius)
        self.activation = nn.Softplus(beta=100)

    def forward(self, points, codes):
        start = torch.cat([points, codes], dim=-1)
        h = start
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                h = torch.cat([h, start], dim=-1) / math.sqrt(2)
            h = self.activation(layer(h))
        return self.last(h).squeeze(-1)


def gradient(values, points):
    return torch.autograd.grad(values, points, torch.ones_like(values), create_graph=True)[0]


@torch.no_grad()
def inside_volume(model, code, resolution: int = 32, chunk: int = 8192) -> float:
    line = torch.linspace(-1, 1, resolution, device=device)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), -1).reshape(-1, 3)
    sdf = torch.cat([model(part, code.expand(len(part), -1)) for part in grid.split(chunk)])
    return (sdf < 0).float().mean().item() * 8


def main() -> None:
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    clouds = [superquadric(N_POINTS, generator) for _ in range(N_SHAPES)]
    points = torch.stack([cloud for cloud, _ in clouds]).to(device)
    normals = torch.stack([normal for _, normal in clouds]).to(device)
    neighbours = torch.stack(
        [torch.cdist(cloud[:256], cloud[:2048]).kthvalue(50, dim=1).values.mean() for cloud, _ in clouds]
    ).to(device)

    model = SignedDistance(CODE).to(device)
    codes = nn.Embedding(N_SHAPES, CODE, max_norm=1.0).to(device)
    nn.init.normal_(codes.weight, 0.0, 1 / math.sqrt(CODE))
    optimizer = torch.optim.Adam(
        [
            {"params": model.parameters(), "lr": 5e-4},
            {"params": codes.parameters(), "lr": 1e-3},
        ]
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=500, gamma=0.5)

    for step in range(1, 2001):
        shape = torch.randint(N_SHAPES, (SHAPES_PER_STEP,), device=device)
        picked = torch.randint(N_POINTS, (SHAPES_PER_STEP, POINTS_PER_SHAPE), device=device)
        surface = points[shape[:, None], picked].requires_grad_()
        normal = normals[shape[:, None], picked]
        near = surface.detach() + torch.randn_like(surface) * neighbours[shape].view(-1, 1, 1)
        far = torch.rand(SHAPES_PER_STEP, POINTS_PER_SHAPE // 4, 3, device=device) * 2.2 - 1.1
        space = torch.cat([near, far], dim=1).requires_grad_()

        code = codes(shape)[:, None]
        on_surface = model(surface, code.expand(-1, surface.shape[1], -1))
        off_surface = model(space, code.expand(-1, space.shape[1], -1))
        slope = gradient(on_surface, surface)
        space_slope = gradient(off_surface, space)

        fit = on_surface.abs().mean()
        facing = (slope - normal).norm(dim=-1).mean()
        eikonal = (space_slope.norm(dim=-1) - 1).square().mean()
        prior = code.square().sum(-1).mean()
        loss = fit + facing + 0.1 * eikonal + 1e-4 * prior

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()

        if step % 2 == 0:
            volume = inside_volume(model, codes.weight[:1])
            print(
                f"{step}: loss {loss.item():.4f}, eikonal {eikonal.item():.4f}, volume of the first {volume:.3f}"
            )
        end_of_step(
            inputs=[points, normals, neighbours, shape, picked, surface, normal, near, far, space],
            activations=[
                code,
                on_surface,
                off_surface,
                slope,
                space_slope,
                fit,
                facing,
                eikonal,
                prior,
                loss,
            ],
        )


if __name__ == "__main__":
    main()
