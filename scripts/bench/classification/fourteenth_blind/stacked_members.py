"""Twelve members of an ensemble learn the dynamics of a robot at once by torch.func: stacked weights under one vmap, a mixture of Gaussians at the end of each, batches of their own, Lion, the best weights of every member kept."""

import copy
import math

import torch
import torch.nn.functional as F
from programs import end_of_step
from pytorch_optimizer import Lion
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

N_MEMBERS, N_ELITES = 12, 5
OBSERVATION, ACTION, N_MIXTURES = 48, 12, 5


class MixtureDensity(nn.Module):
    """What changes in the next moment, as a mixture of diagonal Gaussians."""

    def __init__(self, width=256, depth=4):
        super().__init__()
        self.out = OBSERVATION + 1
        sizes = [OBSERVATION + ACTION] + [width] * depth
        self.body = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.weights = nn.Linear(width, N_MIXTURES)
        self.means = nn.Linear(width, N_MIXTURES * self.out)
        self.log_stds = nn.Linear(width, N_MIXTURES * self.out)

    def forward(self, x):
        for layer, norm in zip(self.body, self.norms):
            x = F.silu(norm(layer(x)))
        shape = (*x.shape[:-1], N_MIXTURES, self.out)
        log_std = 0.5 - F.softplus(0.5 - self.log_stds(x).view(shape))
        log_std = -6 + F.softplus(log_std + 6)
        return self.weights(x).log_softmax(-1), self.means(x).view(shape), log_std


def nll(log_weights, means, log_stds, y):
    z = (y.unsqueeze(-2) - means) * torch.exp(-log_stds)
    log_probs = -(0.5 * z**2 + log_stds + 0.5 * math.log(2 * math.pi)).sum(-1)
    return -torch.logsumexp(log_weights + log_probs, dim=-1).mean()


def transitions(n):
    torch.manual_seed(0)
    observed, acted = torch.randn(n, OBSERVATION), torch.rand(n, ACTION) * 2 - 1
    mixing = torch.randn(OBSERVATION + ACTION, OBSERVATION) / 8
    x = torch.cat([observed, acted], dim=-1)
    change = torch.tanh(x @ mixing) + 0.1 * torch.randn(n, OBSERVATION)
    reward = change[:, :1] - 0.1 * acted.pow(2).sum(-1, keepdim=True)
    return x, torch.cat([change, reward], dim=-1)


def main():
    device = torch.device("cuda")
    x, y = (data.to(device) for data in transitions(20_000))
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    n_held_out = 1000
    x_test, y_test = x[:n_held_out], y[:n_held_out]
    x_train, y_train = x[n_held_out:], y[n_held_out:]

    members = [MixtureDensity().to(device) for _ in range(N_MEMBERS)]
    params, buffers = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")
    del members

    def call(params, buffers, x):
        return functional_call(base, (params, buffers), (x,))

    def loss_of_member(params, buffers, x, y):
        return nll(*call(params, buffers, x), y)

    losses_of_all = vmap(loss_of_member)
    losses_on_same = vmap(loss_of_member, in_dims=(0, 0, None, None))
    optimizer = Lion(list(params.values()), lr=1e-4, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    bootstrapped = torch.randint(len(x_train), (N_MEMBERS, len(x_train)), device=device)
    best = {name: weight.detach().clone() for name, weight in params.items()}
    best_loss = torch.full((N_MEMBERS,), math.inf, device=device)

    batch_size, step = 256, 0
    for epoch in range(2):
        order = torch.rand(N_MEMBERS, len(x_train), device=device).argsort(dim=1)
        for start in range(0, len(x_train) - batch_size, batch_size):
            rows = torch.gather(bootstrapped, 1, order[:, start : start + batch_size])
            x_batch, y_batch = (x_train[rows] - mean) / std, y_train[rows]
            optimizer.zero_grad()
            losses = losses_of_all(params, buffers, x_batch, y_batch)
            loss = losses.sum()
            loss.backward()
            nn.utils.clip_grad_norm_(params.values(), 10.0 * N_MEMBERS**0.5)
            optimizer.step()
            scheduler.step()
            if step % 2 == 1:
                with torch.no_grad():
                    held_out = losses_on_same(params, buffers, (x_test[:256] - mean) / std, y_test[:256])
                    better = held_out < best_loss
                    best_loss = torch.where(better, held_out, best_loss)
                    for name, weight in params.items():
                        best[name][better] = weight.detach()[better]
                elites = best_loss.argsort()[:N_ELITES].tolist()
                print(
                    f"step {step}: loss {loss.item() / N_MEMBERS:.3f}, held out {held_out.mean().item():.3f}, elites {elites}"
                )
            step += 1
            end_of_step(
                inputs=[x, y, mean, std, bootstrapped, order, rows, x_batch, y_batch],
                weights=[params, buffers, best],
                gradients=[weight.grad for weight in params.values()],
                activations=[losses, loss],
            )


if __name__ == "__main__":
    main()
