"""A deep Markov model of river levels by stochastic variational inference in Pyro: ClippedAdam, annealed KL."""

import pyro
import pyro.distributions as dist
import torch
from programs import end_of_step
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import ClippedAdam
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
pyro.set_rng_seed(17)


class Emitter(nn.Module):
    def __init__(self, gauges, z_dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.loc, self.scale = nn.Linear(hidden, gauges), nn.Linear(hidden, gauges)

    def forward(self, z):
        hidden = self.net(z)
        return self.loc(hidden), nn.functional.softplus(self.scale(hidden)) + 1e-3


class GatedTransition(nn.Module):
    def __init__(self, z_dim, hidden):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(z_dim, hidden), nn.ReLU(), nn.Linear(hidden, z_dim), nn.Sigmoid())
        self.proposed = nn.Sequential(nn.Linear(z_dim, hidden), nn.ReLU(), nn.Linear(hidden, z_dim))
        self.loc, self.scale = nn.Linear(z_dim, z_dim), nn.Linear(z_dim, z_dim)
        self.loc.weight.data = torch.eye(z_dim)
        self.loc.bias.data = torch.zeros(z_dim)

    def forward(self, z):
        gate, proposed = self.gate(z), self.proposed(z)
        loc = (1 - gate) * self.loc(z) + gate * proposed
        return loc, nn.functional.softplus(self.scale(torch.relu(proposed)))


class Combiner(nn.Module):
    def __init__(self, z_dim, rnn_dim):
        super().__init__()
        self.z_to_hidden = nn.Linear(z_dim, rnn_dim)
        self.loc, self.scale = nn.Linear(rnn_dim, z_dim), nn.Linear(rnn_dim, z_dim)

    def forward(self, z, h):
        hidden = 0.5 * (torch.tanh(self.z_to_hidden(z)) + h)
        return self.loc(hidden), nn.functional.softplus(self.scale(hidden))


class DMM(nn.Module):
    def __init__(self, gauges=88, z_dim=100, hidden=200, rnn_dim=600):
        super().__init__()
        self.emitter = Emitter(gauges, z_dim, hidden)
        self.trans = GatedTransition(z_dim, hidden)
        self.combiner = Combiner(z_dim, rnn_dim)
        self.rnn = nn.RNN(gauges, rnn_dim, nonlinearity="relu", batch_first=True)
        self.z_0 = nn.Parameter(torch.zeros(z_dim))
        self.z_q_0 = nn.Parameter(torch.zeros(z_dim))
        self.h_0 = nn.Parameter(torch.zeros(1, 1, rnn_dim))

    def model(self, levels, annealing=1.0):
        pyro.module("dmm", self)
        z = self.z_0.expand(len(levels), -1)
        with pyro.plate("windows", len(levels)):
            for t in pyro.markov(range(levels.shape[1])):
                loc, scale = self.trans(z)
                with poutine.scale(scale=annealing):
                    z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1))
                loc, scale = self.emitter(z)
                pyro.sample(f"x_{t}", dist.Normal(loc, scale).to_event(1), obs=levels[:, t])

    def guide(self, levels, annealing=1.0):
        pyro.module("dmm", self)
        reversed_output, _ = self.rnn(levels.flip(1), self.h_0.expand(1, len(levels), -1).contiguous())
        output = reversed_output.flip(1)
        z = self.z_q_0.expand(len(levels), -1)
        with pyro.plate("windows", len(levels)):
            for t in pyro.markov(range(levels.shape[1])):
                loc, scale = self.combiner(z, output[:, t])
                with poutine.scale(scale=annealing):
                    z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).to_event(1))


time = torch.arange(24) / 24
phases = torch.rand(256, 1, 88)
levels = torch.sin(2 * torch.pi * (time[None, :, None] + phases)) + 0.1 * torch.randn(256, 24, 88)
loader = DataLoader(TensorDataset(levels), batch_size=64, shuffle=True)

dmm = DMM().to(device)
optimizer = ClippedAdam(
    {"lr": 3e-4, "betas": (0.96, 0.999), "clip_norm": 10.0, "lrd": 0.99996, "weight_decay": 2.0}
)
svi = SVI(dmm.model, dmm.guide, optimizer, Trace_ELBO())
steps = 0
for epoch in range(2):
    for (batch,) in loader:
        batch = batch.to(device)
        annealing = min(1.0, 0.2 + 0.01 * steps)
        loss = svi.step(batch, annealing)
        steps += 1
        if steps % 2 == 0:
            with torch.no_grad():
                print(
                    f"step {steps}: {loss / batch.numel():.3f}, {svi.evaluate_loss(batch) / batch.numel():.3f}"
                )
        end_of_step(inputs=batch)
