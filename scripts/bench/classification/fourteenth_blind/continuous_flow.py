"""The density of a table of particles is learned by a continuous flow (FFJORD): torchdiffeq with the adjoint, a trace by Hutchinson's estimate, kinetic energy held down, LAMB, an average of the weights in a dictionary that evaluates."""

import math

import torch
from programs import end_of_step
from pytorch_optimizer import Lamb
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchdiffeq import odeint, odeint_adjoint

DIMENSIONS = 43


class ConcatSquash(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.layer, self.gate, self.bias = (
            nn.Linear(n_in, n_out),
            nn.Linear(1, n_out),
            nn.Linear(1, n_out, bias=False),
        )

    def forward(self, t, x):
        t = t.view(1, 1)
        return self.layer(x) * torch.sigmoid(self.gate(t)) + self.bias(t)


class Velocity(nn.Module):
    def __init__(self, width=512, depth=3):
        super().__init__()
        sizes = [DIMENSIONS] + [width] * (depth - 1) + [DIMENSIONS]
        self.layers = nn.ModuleList(ConcatSquash(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, t, x):
        for layer in self.layers[:-1]:
            x = nn.functional.softplus(layer(t, x))
        return self.layers[-1](t, x)


class AugmentedODE(nn.Module):
    """Moves points, and says how log density and kinetic energy change."""

    def __init__(self, velocity):
        super().__init__()
        self.velocity, self.noise, self.n_calls = velocity, None, 0

    def forward(self, t, states):
        self.n_calls += 1
        x = states[0]
        with torch.enable_grad():
            x = x.requires_grad_(True)
            dx = self.velocity(t, x)
            (e_dzdx,) = torch.autograd.grad(dx, x, self.noise, create_graph=True)
            divergence = (e_dzdx * self.noise).sum(dim=1, keepdim=True)
        return dx, -divergence, dx.pow(2).mean(dim=1, keepdim=True)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.ode = AugmentedODE(Velocity())
        self.register_buffer("times", torch.tensor([1.0, 0.0]))

    def log_prob(self, x):
        self.ode.noise = torch.randint(0, 2, x.shape, device=x.device).to(x) * 2 - 1
        self.ode.n_calls = 0
        zero = torch.zeros(len(x), 1, device=x.device)
        solve = odeint_adjoint if self.training else odeint
        z, change, energy = solve(
            self.ode, (x, zero, zero), self.times, rtol=1e-3, atol=1e-3, method="dopri5"
        )
        log_base = -0.5 * (z[-1] ** 2 + math.log(2 * math.pi)).sum(1, keepdim=True)
        return log_base - change[-1], energy[-1].abs().mean()


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.kept = {}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def apply_to(self, model):
        for name, p in model.named_parameters():
            self.kept[name] = p.detach().clone()
            p.copy_(self.shadow[name])

    @torch.no_grad()
    def restore(self, model):
        for name, p in model.named_parameters():
            p.copy_(self.kept[name])
        self.kept.clear()


def particles(n):
    mixing = torch.randn(DIMENSIONS, DIMENSIONS) / DIMENSIONS**0.5
    hidden = torch.randn(n, DIMENSIONS)
    data = torch.tanh(hidden @ mixing) + 0.3 * hidden
    return (data - data.mean(0)) / data.std(0)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    data = particles(6000)
    train_loader = DataLoader(TensorDataset(data[600:]), batch_size=600, shuffle=True, drop_last=True)
    held_out = DataLoader(TensorDataset(data[:600]), batch_size=600)
    model = Flow().to(device)
    optimizer = Lamb(model.parameters(), lr=2e-3, weight_decay=1e-6)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    ema = EMA(model)

    for step, (x,) in enumerate(train_loader):
        model.train()
        x = x.to(device)
        optimizer.zero_grad()
        log_prob, energy = model.log_prob(x)
        loss = -log_prob.mean() + 0.05 * energy
        forward_calls = model.ode.n_calls
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        ema.update(model)
        if step % 2 == 1:
            model.eval()
            ema.apply_to(model)
            with torch.no_grad():
                tested = (
                    torch.cat([model.log_prob(batch.to(device))[0] for (batch,) in held_out]).mean().item()
                )
            ema.restore(model)
            print(f"step {step}: loss {loss.item():.3f}, held out {tested:.3f}, {forward_calls} calls")
        end_of_step(inputs=[x, model.ode.noise], weights=ema.shadow, activations=[loss, log_prob, energy])


if __name__ == "__main__":
    main()
