"""Walkers on the device are evolved without any gradient of a network (OpenAI's evolution strategy): mirrored noise, policies of a whole population under one vmap, ranks instead of rewards, Adam on the weights' mean."""

import torch
from programs import end_of_step, tell
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

N_JOINTS, N_PAIRS, N_EPISODES, N_MOMENTS = 16, 96, 12, 24
OBSERVATION = 3 * N_JOINTS + 4


class Policy(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(OBSERVATION, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, N_JOINTS),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.net(x)


class Walkers:
    """Bodies of joints that push against the ground, a batch of them."""

    def __init__(self, shape, device):
        self.shape, self.device = shape, device
        self.phase = torch.linspace(0, torch.pi, N_JOINTS, device=device)

    def reset(self):
        self.angle = 0.1 * torch.randn(*self.shape, N_JOINTS, device=self.device)
        self.speed = torch.zeros(*self.shape, N_JOINTS, device=self.device)
        self.body = torch.zeros(*self.shape, 4, device=self.device)
        return self.observe()

    def observe(self):
        return torch.cat([self.angle.sin(), self.angle.cos(), self.speed / 5, self.body], dim=-1)

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.5 * action - 0.1 * self.angle
        self.angle = (self.angle + 0.1 * self.speed).clamp(-2, 2)
        push = (self.speed * torch.cos(self.angle + self.phase)).mean(-1)
        tilt = 0.95 * self.body[..., 1] + 0.1 * self.angle.mean(-1)
        self.body = torch.stack([0.9 * self.body[..., 0] + push, tilt, push, tilt.abs()], dim=-1)
        reward = self.body[..., 0] - 0.01 * action.pow(2).mean(-1) - 0.1 * tilt.abs()
        return self.observe(), reward, tilt.abs() < 1.0


class RunningNorm:
    def __init__(self, size, device):
        self.mean, self.var, self.count = (
            torch.zeros(size, device=device),
            torch.ones(size, device=device),
            1e-4,
        )

    def update(self, x):
        x = x.flatten(0, -2)
        mean, var, n = x.mean(0), x.var(0), len(x)
        delta, total = mean - self.mean, self.count + n
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + delta * n / total, total

    def __call__(self, x):
        return ((x - self.mean) / (self.var + 1e-8).sqrt()).clamp(-5, 5)


def centered_ranks(rewards):
    ranks = torch.empty_like(rewards)
    ranks[rewards.argsort()] = torch.linspace(-0.5, 0.5, len(rewards), device=rewards.device)
    return ranks


@torch.no_grad()
def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    policy = Policy().to(device)
    shapes = {name: (p.shape, p.numel()) for name, p in policy.named_parameters()}
    mean = parameters_to_vector(policy.parameters()).clone()
    optimizer = torch.optim.Adam([mean], lr=0.02, betas=(0.9, 0.99))
    sigma, decay = 0.05, 0.005
    walkers, alone = Walkers((2 * N_PAIRS, N_EPISODES), device), Walkers((16,), device)
    norm = RunningNorm(OBSERVATION, device)
    act = vmap(lambda weights, x: functional_call(policy, weights, (x,)))

    def unflatten(vectors):
        pieces = vectors.split([n for _, n in shapes.values()], dim=-1)
        return {name: piece.view(-1, *shape) for (name, (shape, _)), piece in zip(shapes.items(), pieces)}

    for generation in range(4):
        noise = torch.randn(N_PAIRS, len(mean), device=device)
        noise = torch.cat([noise, -noise])
        population = torch.add(mean, noise, alpha=sigma)
        weights = unflatten(population)
        observed = walkers.reset()
        total = torch.zeros(walkers.shape, device=device)
        alive = torch.ones(walkers.shape, dtype=torch.bool, device=device)
        for _ in range(N_MOMENTS):
            norm.update(observed)
            action = act(weights, norm(observed))
            observed, reward, upright = walkers.step(action + 0.01 * torch.randn_like(action))
            total += reward * alive
            alive &= upright
        fitness = total.mean(1)
        ranks = centered_ranks(fitness)
        tell(weights=population, inputs=noise)
        mean.grad = -(noise.T @ ranks) / (2 * N_PAIRS * sigma) + decay * mean
        del noise, population, weights
        optimizer.step()
        vector_to_parameters(mean, policy.parameters())

        if generation % 2 == 1:
            seen, scores = alone.reset(), torch.zeros(alone.shape, device=device)
            for _ in range(N_MOMENTS):
                seen, reward, _ = alone.step(policy(norm(seen)))
                scores += reward
            print(
                f"generation {generation}: {fitness.mean().item():.3f} of all, best {fitness.max().item():.3f}, mean {scores.mean().item():.3f}"
            )
            torch.save(policy.state_dict(), "walker.pt")
        end_of_step(
            inputs=[
                observed,
                reward,
                upright,
                total,
                alive,
                fitness,
                ranks,
                vars(walkers),
                vars(alone),
                norm.mean,
                norm.var,
            ],
            weights=mean,
            gradients=mean.grad,
            activations=action,
        )


if __name__ == "__main__":
    main()
