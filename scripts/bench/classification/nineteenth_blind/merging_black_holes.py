"""Neural posterior estimation of merging black holes: strains are simulated on the GPU for every step, a residual network summarizes them (in bfloat16) for a conditional spline flow of Pyro."""

import math

import pyro
import pyro.distributions as dist
import pyro.distributions.transforms as T
import torch
from programs import end_of_step
from torch import nn

pyro.set_rng_seed(29)
device = torch.device("cuda")
names = ["chirp_mass", "mass_ratio", "log_distance", "inclination", "time", "phase"]
n_samples, n_detectors, rate = 2048, 2, 2048.0


class Simulator:
    """Inspiral-like chirps of two detectors in coloured noise, whitened, drawn where they are needed."""

    def __init__(self, device):
        self.low = torch.tensor([15.0, 0.25, 5.0, 0.0, -0.05, 0.0], device=device)
        self.high = torch.tensor([45.0, 1.0, 7.0, math.pi, 0.05, 2 * math.pi], device=device)
        self.times = torch.arange(n_samples, device=device) / rate - 0.8
        f = torch.fft.rfftfreq(n_samples, 1 / rate).to(device).clamp(min=20.0)
        self.asd = (f / 150.0) ** -2 + 1 + (f / 300.0) ** 1.5
        self.delays = torch.tensor([0.0, 0.007], device=device)

    @torch.no_grad()
    def __call__(self, n):
        u = torch.rand(n, len(names), device=self.low.device)
        theta = self.low + (self.high - self.low) * u
        mass, ratio, distance, inclination, shift, phase = theta.unbind(1)
        tau = (shift[:, None, None] + self.delays[None, :, None] - self.times).clamp(min=1e-3)
        scale = (mass / 30.0)[:, None, None]
        angle = -2 * (tau / (5 * scale * 5e-5 * 30)).pow(0.625) * (1 + 0.1 * ratio[:, None, None])
        amplitude = torch.exp(6 - distance)[:, None, None] * scale**1.25 * tau**-0.25
        amplitude = (
            amplitude * torch.stack([(1 + inclination.cos() ** 2) / 2, inclination.cos()], 1)[:, :, None]
        )
        strain = amplitude * torch.cos(angle + phase[:, None, None]) * (self.times < shift[:, None, None])
        white = torch.fft.irfft(torch.fft.rfft(strain) / self.asd, n=n_samples)
        return (u * 2 - 1) * 2.5, white + torch.randn_like(white)


class ResidualBlock(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(c_in, c_out, 7, stride, padding=3, bias=False),
            nn.BatchNorm1d(c_out),
            nn.GELU(),
            nn.Conv1d(c_out, c_out, 7, padding=3, bias=False),
            nn.BatchNorm1d(c_out),
        )
        self.skip = nn.Conv1d(c_in, c_out, 1, stride)

    def forward(self, x):
        return nn.functional.gelu(self.body(x) + self.skip(x))


class Posterior(nn.Module):
    def __init__(self, context=128, n_transforms=4):
        super().__init__()
        widths = [n_detectors, 32, 64, 96, 128, 192]
        self.embedding = nn.Sequential(
            *[ResidualBlock(a, b, 4 if i < 2 else 2) for i, (a, b) in enumerate(zip(widths, widths[1:]))],
            nn.Flatten(),
            nn.Linear(widths[-1] * n_samples // 128, 512),
            nn.GELU(),
            nn.Linear(512, context),
        )
        d = len(names)
        self.flows = nn.ModuleList(
            T.conditional_spline_autoregressive(
                d, context, hidden_dims=[256, 256], count_bins=8, bound=4.0, order="linear"
            )
            for _ in range(n_transforms)
        )
        self.permutations = [T.Permute(torch.randperm(d, device=device)) for _ in range(n_transforms - 1)]
        self.register_buffer("loc", torch.zeros(d))
        self.register_buffer("scale", torch.ones(d))

    def forward(self, strain):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            context = self.embedding(strain)
        context = context.float()
        transforms = []
        for flow, permutation in zip(self.flows, [*self.permutations, None]):
            transforms.append(flow.inv)
            if permutation is not None:
                transforms.append(permutation)
        base = dist.Normal(self.loc, self.scale).to_event(1)
        return dist.ConditionalTransformedDistribution(base, transforms).condition(context)


simulate = Simulator(device)
posterior = Posterior().to(device)
optimizer = torch.optim.AdamW(
    [
        {"params": posterior.embedding.parameters(), "lr": 3e-4},
        {"params": posterior.flows.parameters(), "lr": 1e-3},
    ],
    weight_decay=1e-3,
)
steps_per_epoch, epochs = 4, 2
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps_per_epoch * epochs)
held_out = simulate(64)

for epoch in range(epochs):
    posterior.train()
    for step in range(steps_per_epoch):
        theta, strain = simulate(256)
        loss = -posterior(strain).log_prob(theta).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(posterior.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} step {step}: {loss.item():.3f}, norm {norm.item():.2f}")
        end_of_step(
            inputs=[
                theta,
                strain,
                held_out,
                simulate.low,
                simulate.high,
                simulate.times,
                simulate.asd,
                simulate.delays,
            ],
            activations=loss,
        )
    posterior.eval()
    with torch.no_grad():
        print("held out", -posterior(held_out[1]).log_prob(held_out[0]).mean().item())
