"""A dancer filmed by several cameras becomes a radiance field in space and time, factorised into planes (K-Planes): a proposal network, all rays on the GPU, Adam with a rate per group, total variation, float32."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torchvision.utils import save_image

torch.manual_seed(13)
device = torch.device("cuda")

CAMERAS, FRAMES, HEIGHT, WIDTH = 6, 20, 80, 80
NEAR, FAR, BOUND = 1.0, 5.0, 1.6
PAIRS = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]


def load_recording():
    """Frames of the cameras on a circle, and the rays of all their pixels."""
    rays = {"origins": [], "directions": [], "times": [], "colors": []}
    ys, xs = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    focal = 1.2 * WIDTH
    local = torch.stack(
        [(xs - WIDTH / 2) / focal, -(ys - HEIGHT / 2) / focal, -torch.ones_like(xs)], -1
    ).float()
    for camera in range(CAMERAS):
        angle = 2 * math.pi * camera / CAMERAS
        position = torch.tensor([3 * math.sin(angle), 0.5, 3 * math.cos(angle)])
        forward = F.normalize(position, dim=0)
        right = F.normalize(torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0]), forward), dim=0)
        rotation = torch.stack([right, torch.linalg.cross(forward, right), forward], dim=1)
        directions = F.normalize(local @ rotation.T, dim=-1).reshape(-1, 3)
        for frame in range(FRAMES):
            rays["origins"].append(position.expand_as(directions))
            rays["directions"].append(directions)
            rays["times"].append(torch.full((len(directions), 1), 2 * frame / (FRAMES - 1) - 1))
            rays["colors"].append(torch.rand(len(directions), 3))
    return {name: torch.cat(parts) for name, parts in rays.items()}


class Planes(nn.Module):
    def __init__(self, channels, resolutions, times):
        super().__init__()
        self.scales = nn.ModuleList()
        for resolution in resolutions:
            sizes = [resolution, resolution, resolution, times]
            planes = nn.ParameterList()
            for a, b in PAIRS:
                plane = torch.empty(1, channels, sizes[b], sizes[a])
                planes.append(nn.init.ones_(plane) if b == 3 else nn.init.uniform_(plane, 0.1, 0.5))
            self.scales.append(planes)

    def forward(self, points):
        features = []
        for planes in self.scales:
            product = 1.0
            for plane, (a, b) in zip(planes, PAIRS):
                grid = points[None, None, :, [a, b]]
                sampled = F.grid_sample(plane, grid, align_corners=True, padding_mode="border")
                product = product * sampled[0, :, 0].T
            features.append(product)
        return torch.cat(features, dim=-1)

    def regularisation(self):
        variation = smoothness = sparse = 0.0
        for planes in self.scales:
            for plane, (_, b) in zip(planes, PAIRS):
                if b < 3:
                    variation = variation + (plane[..., 1:, :] - plane[..., :-1, :]).square().mean()
                    variation = variation + (plane[..., :, 1:] - plane[..., :, :-1]).square().mean()
                else:
                    first = plane[..., 1:, :] - plane[..., :-1, :]
                    smoothness = smoothness + (first[..., 1:, :] - first[..., :-1, :]).square().mean()
                    sparse = sparse + (1 - plane).abs().mean()
        return variation, smoothness, sparse


class Proposal(nn.Module):
    def __init__(self):
        super().__init__()
        self.planes = Planes(8, [64], FRAMES // 2)
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, points):
        return F.softplus(self.net(self.planes(points)) - 1).squeeze(-1)


def encode_directions(directions):
    parts = [directions]
    for power in range(4):
        parts += [torch.sin(2**power * directions), torch.cos(2**power * directions)]
    return torch.cat(parts, dim=-1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.planes = Planes(16, [64, 128, 256], FRAMES // 2)
        self.sigma = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 16))
        self.color = nn.Sequential(
            nn.Linear(15 + 27, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3), nn.Sigmoid()
        )

    def forward(self, points, directions):
        hidden = self.sigma(self.planes(points))
        density = F.softplus(hidden[:, 0] - 1)
        color = self.color(torch.cat([hidden[:, 1:], encode_directions(directions)], dim=-1))
        return density, color


def weights_of(density, edges):
    alpha = density * (edges[:, 1:] - edges[:, :-1])
    passed = torch.cumsum(torch.cat([torch.zeros_like(alpha[:, :1]), alpha[:, :-1]], dim=-1), dim=-1)
    return (1 - torch.exp(-alpha)) * torch.exp(-passed)


def resample(edges, weights, count):
    weights = weights.detach() + 0.01
    cdf = torch.cumsum(weights / weights.sum(-1, keepdim=True), dim=-1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], dim=-1)
    u = torch.linspace(0, 1, count + 1, device=edges.device).expand(len(edges), -1).contiguous()
    above = torch.searchsorted(cdf, u, right=True).clamp(1, edges.shape[1] - 1)
    low, high = cdf.gather(1, above - 1), cdf.gather(1, above)
    start, stop = edges.gather(1, above - 1), edges.gather(1, above)
    return start + (u - low) / (high - low).clamp_min(1e-6) * (stop - start)


def interlevel(edges, weights, coarse_edges, coarse_weights):
    """Weights of the field must stay under the bound that the proposal gives."""
    total = torch.cat([torch.zeros_like(coarse_weights[:, :1]), coarse_weights.cumsum(-1)], dim=-1)
    right = torch.searchsorted(coarse_edges, edges[:, 1:].contiguous(), right=True).clamp(
        max=total.shape[1] - 1
    )
    left = (torch.searchsorted(coarse_edges, edges[:, :-1].contiguous(), right=True) - 1).clamp(min=0)
    bound = total.gather(1, right) - total.gather(1, left)
    weights = weights.detach()
    return ((weights - bound).clamp_min(0).square() / (weights + 1e-6)).mean()


class Renderer(nn.Module):
    def __init__(self, coarse=64, fine=32):
        super().__init__()
        self.coarse, self.fine = coarse, fine
        self.proposal = Proposal()
        self.field = Field()

    def points(self, origins, directions, times, edges):
        middle = (edges[:, 1:] + edges[:, :-1]) / 2
        positions = (origins[:, None] + directions[:, None] * middle[..., None]) / BOUND
        times = times[:, None].expand(-1, middle.shape[1], -1)
        return torch.cat([positions, times], dim=-1).reshape(-1, 4), middle

    def forward(self, origins, directions, times):
        count = len(origins)
        edges = torch.linspace(NEAR, FAR, self.coarse + 1, device=origins.device).expand(count, -1)
        if self.training:
            edges = edges + (torch.rand(count, 1, device=origins.device) - 0.5) * (FAR - NEAR) / self.coarse
        edges = edges.contiguous()
        points, _ = self.points(origins, directions, times, edges)
        coarse_weights = weights_of(self.proposal(points).view(count, -1), edges)
        fine_edges = resample(edges, coarse_weights, self.fine)
        points, middle = self.points(origins, directions, times, fine_edges)
        along = directions[:, None].expand(-1, self.fine, -1).reshape(-1, 3)
        density, color = self.field(points, along)
        weights = weights_of(density.view(count, -1), fine_edges)
        rgb = (weights[..., None] * color.view(count, -1, 3)).sum(1) + (1 - weights.sum(1, keepdim=True))
        depth = (weights * middle).sum(1)
        return rgb, depth, interlevel(fine_edges, weights, edges, coarse_weights)


@torch.no_grad()
def render_view(model, rays, start):
    model.eval()
    rows = slice(start, start + HEIGHT * WIDTH)
    colors, depths = [], []
    for origins, directions, times in zip(
        rays["origins"][rows].split(1600),
        rays["directions"][rows].split(1600),
        rays["times"][rows].split(1600),
    ):
        rgb, depth, _ = model(origins, directions, times)
        colors.append(rgb.cpu())
        depths.append(depth.cpu())
    model.train()
    picture = torch.cat(colors).view(HEIGHT, WIDTH, 3).permute(2, 0, 1)
    save_image(picture, "view.png")
    return -10 * math.log10(F.mse_loss(torch.cat(colors), rays["colors"][rows].cpu()).item())


rays = {name: value.to(device) for name, value in load_recording().items()}
importance = torch.ones(len(rays["colors"]), device=device)

model = Renderer().to(device)
grids = [p for name, p in model.named_parameters() if "planes" in name]
networks = [p for name, p in model.named_parameters() if "planes" not in name]
optimizer = torch.optim.Adam([{"params": grids, "lr": 1e-2}, {"params": networks, "lr": 2e-3}], eps=1e-15)
TOTAL, WARMUP = 3000, 50
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / TOTAL))
)

model.train()
for step in range(1, TOTAL + 1):
    chosen = torch.multinomial(importance, 1024, replacement=True)
    batch = {name: value[chosen] for name, value in rays.items()}
    rgb, depth, bound = model(batch["origins"], batch["directions"], batch["times"])
    color_loss = F.mse_loss(rgb, batch["colors"])
    variation, smoothness, sparse = model.field.planes.regularisation()
    loss = color_loss + bound + 2e-4 * variation + 1e-3 * smoothness + 1e-4 * sparse
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    importance[chosen] = (rgb.detach() - batch["colors"]).abs().mean(-1).clamp_min(0.05)
    print(f"step {step} loss {loss.item():.4f} psnr {-10 * math.log10(color_loss.item()):.2f}")
    if step % 1000 == 2:
        print(f"view psnr {render_view(model, rays, 0):.2f}")
    end_of_step(
        inputs=[rays, batch, chosen, importance],
        activations=[rgb, depth, bound, color_loss, variation, smoothness, sparse, loss],
    )
