"""Variational Monte Carlo of a beryllium atom with a FermiNet: walkers on the GPU moved by Metropolis, local energies with exact Laplacians, clipped, Adam with an inverse decay."""

import torch
from programs import end_of_step
from torch import nn

torch.manual_seed(5)
device = "cuda"
Z, up, down = 4.0, 2, 2
n = up + down


class FermiNet(nn.Module):
    def __init__(self, one=128, two=16, layers=3, determinants=4):
        super().__init__()
        self.first, self.second = nn.ModuleList(), nn.ModuleList()
        a, b = 4, 4
        for i in range(layers):
            self.first.append(nn.Linear(3 * a + 2 * b, one))
            if i < layers - 1:
                self.second.append(nn.Linear(b, two))
            a, b = one, two
        self.orbitals_up = nn.Linear(one, determinants * up)
        self.orbitals_down = nn.Linear(one, determinants * down)
        self.decay_up = nn.Parameter(torch.ones(determinants, up))
        self.decay_down = nn.Parameter(torch.ones(determinants, down))
        self.weights = nn.Parameter(torch.ones(determinants))
        self.determinants = determinants

    def forward(self, r):
        r = r.view(-1, n, 3)
        distance = r.square().sum(-1, keepdim=True).add(1e-12).sqrt()
        pair = r[:, :, None] - r[:, None]
        eye = torch.eye(n, device=r.device)[None, :, :, None]
        length = (pair.square().sum(-1, keepdim=True) + eye).sqrt() * (1 - eye)
        h, g = torch.cat([r, distance], -1), torch.cat([pair, length], -1)
        for i, layer in enumerate(self.first):
            means = [
                h[:, :up].mean(1, keepdim=True).expand_as(h),
                h[:, up:].mean(1, keepdim=True).expand_as(h),
            ]
            pairs = [g[:, :, :up].mean(2), g[:, :, up:].mean(2)]
            new = torch.tanh(layer(torch.cat([h, *means, *pairs], -1)))
            h = new + h if new.shape == h.shape else new
            if i < len(self.second):
                new = torch.tanh(self.second[i](g))
                g = new + g if new.shape == g.shape else new
        logs, signs = 0, 1
        for linear, decay, part, count in (
            (self.orbitals_up, self.decay_up, slice(0, up), up),
            (self.orbitals_down, self.decay_down, slice(up, n), down),
        ):
            phi = linear(h[:, part]).view(-1, count, self.determinants, count).transpose(1, 2)
            envelope = torch.exp(-decay.abs()[None, :, None, :] * distance[:, part].unsqueeze(1))
            sign, log = torch.linalg.slogdet(phi * envelope)
            logs, signs = logs + log, signs * sign
        top = logs.max(1, keepdim=True).values.detach()
        return top.squeeze(1) + (self.weights * signs * (logs - top).exp()).sum(1).abs().add(1e-30).log()


def local_energy(net, r):
    r = r.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(r).sum(), r, create_graph=True)
    laplacian = torch.zeros(len(r), device=r.device)
    for i in range(3 * n):
        (row,) = torch.autograd.grad(slope[:, i].sum(), r, retain_graph=i < 3 * n - 1)
        laplacian += row[:, i]
    kinetic = -0.5 * (laplacian + slope.detach().square().sum(1))
    x = r.detach().view(-1, n, 3)
    i, j = torch.triu_indices(n, n, 1, device=r.device)
    return kinetic - Z * (1 / x.norm(dim=-1)).sum(1) + (1 / (x[:, i] - x[:, j]).norm(dim=-1)).sum(1)


@torch.no_grad()
def metropolis(net, r, width, steps=5):
    log, accepted = net(r), 0.0
    for _ in range(steps):
        proposal = r + width * torch.randn_like(r)
        new = net(proposal)
        move = torch.rand_like(new).log() < 2 * (new - log)
        r, log = torch.where(move[:, None], proposal, r), torch.where(move, new, log)
        accepted += move.float().mean().item() / steps
    return r, accepted


net = FermiNet().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.99))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t / 1000))
walkers = torch.randn(512, 3 * n).to(device)
width = 0.2
walkers, _ = metropolis(net, walkers, width, 10)

for iteration in range(4):
    walkers, accepted = metropolis(net, walkers, width)
    width *= 1.1 if accepted > 0.55 else 0.9
    energy = local_energy(net, walkers)
    median = energy.median()
    spread = 5 * (energy - median).abs().mean()
    clipped = energy.clamp(median - spread, median + spread)
    loss = 2 * ((clipped - clipped.mean()) * net(walkers)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(f"{iteration} {energy.mean().item():.3f} +- {energy.std().item():.3f}, {accepted:.2f} accepted")
    end_of_step(inputs=[walkers], activations=[loss])
