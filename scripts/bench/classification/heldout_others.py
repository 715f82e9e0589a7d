"""Entries that were written without a look at any rule, as people write programs of their kinds: other data.

Some bring an optimizer of their own: these take no other, whatever a setup says.
"""

import math
from typing import Any

import torch
from heldout_language import DEVICE
from setups import Iterations, Known, Setup, make_optimizer, states_of
from torch import nn
from torch.distributions import Normal
from torch.nn import functional

# --- reinforcement learning


class Agent(nn.Module):
    """What acts and what judges, side by side; it is never called, only its methods are."""

    def __init__(self, n_seen: int, n_actions: int, width: int = 128) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            *(nn.Linear(n_seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        )
        self.actor_mean = nn.Sequential(
            *(nn.Linear(n_seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()),
            nn.Linear(width, n_actions),
        )
        self.actor_log_std = nn.Parameter(torch.zeros(1, n_actions))

    def value(self, seen: torch.Tensor) -> torch.Tensor:
        """How good a state is."""
        return self.critic(seen)

    def act(
        self, seen: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose an action unless one is given; return it with its log probability, entropy and value."""
        mean = self.actor_mean(seen)
        chances = Normal(mean, self.actor_log_std.expand_as(mean).exp())
        if action is None:
            action = chances.sample()
        return action, chances.log_prob(action).sum(1), chances.entropy().sum(1), self.critic(seen)


def policy(setup: Setup) -> Iterations:
    """Proximal policy optimization: play into buffers on the device, then learn from them in minibatches."""
    n_steps, n_envs, n_seen, n_actions = 16, 128, 48, 6
    agent = Agent(n_seen, n_actions).to(DEVICE)
    optimizer = make_optimizer(setup, agent.parameters())
    shapes = ((n_steps, n_envs, n_seen), (n_steps, n_envs, n_actions), *[(n_steps, n_envs)] * 4)
    buffers = tuple(torch.zeros(shape).to(DEVICE) for shape in shapes)
    seen, actions, log_chances, rewards, dones, values = buffers
    next_seen = torch.randn(n_envs, n_seen).to(DEVICE)
    next_done = torch.zeros(n_envs).to(DEVICE)
    while True:
        for step in range(n_steps):
            seen[step], dones[step] = next_seen, next_done
            with torch.no_grad():
                action, log_chance, _, value = agent.act(next_seen)
                values[step] = value.flatten()
            actions[step], log_chances[step] = action, log_chance
            action.cpu().numpy()
            rewards[step] = torch.rand(n_envs).to(DEVICE).view(-1)
            next_seen = torch.randn(n_envs, n_seen).to(DEVICE)
            next_done = (torch.rand(n_envs) < 0.02).float().to(DEVICE)
        with torch.no_grad():
            following = agent.value(next_seen).reshape(1, -1)
            advantages = torch.zeros_like(rewards).to(DEVICE)
            last: Any = 0
            for step in reversed(range(n_steps)):
                goes_on = 1.0 - (next_done if step == n_steps - 1 else dones[step + 1])
                after = following if step == n_steps - 1 else values[step + 1]
                delta = rewards[step] + 0.99 * after * goes_on - values[step]
                advantages[step] = last = delta + 0.99 * 0.95 * goes_on * last
            returns = advantages + values
        flat_seen, flat_actions = seen.reshape(-1, n_seen), actions.reshape(-1, n_actions)
        flat_chances, flat_advantages = log_chances.reshape(-1), advantages.reshape(-1)
        flat_returns = returns.reshape(-1)
        for _ in range(2):
            for pick in torch.randperm(n_steps * n_envs).split(512):
                _, new_chance, entropy, new_value = agent.act(flat_seen[pick], flat_actions[pick])
                ratio = (new_chance - flat_chances[pick]).exp()
                part = flat_advantages[pick]
                part = (part - part.mean()) / (part.std() + 1e-8)
                loss = torch.max(-part * ratio, -part * ratio.clamp(0.8, 1.2)).mean()
                miss = 0.5 * ((new_value.view(-1) - flat_returns[pick]) ** 2).mean()
                loss = loss - 0.01 * entropy.mean() + 0.5 * miss
                optimizer.zero_grad(set_to_none=setup.set_to_none)
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        yield Known(inputs=(*buffers, advantages, returns, next_seen, next_done), states=states_of(optimizer))


# --- graphs


class GraphAttention(nn.Module):
    """Every node sums up what its neighbours say, weighted by attention."""

    def __init__(self, n_in: int, n_out: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.linear, self.root = (
            nn.Linear(n_in, n_out * n_heads, bias=False),
            nn.Linear(n_in, n_out * n_heads),
        )
        self.of_source = nn.Parameter(torch.randn(1, n_heads, n_out) * 0.1)
        self.of_target = nn.Parameter(torch.randn(1, n_heads, n_out) * 0.1)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Pass messages along all edges."""
        source, target = edges
        h = self.linear(x).view(len(x), self.n_heads, -1)
        score = (h * self.of_source).sum(-1)[source] + (h * self.of_target).sum(-1)[target]
        score = functional.leaky_relu(score, 0.2)
        index = target[:, None].expand_as(score)
        highest = torch.full((len(x), self.n_heads), -math.inf, device=x.device)
        highest = highest.scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - highest[target]).exp()
        total = torch.zeros(len(x), self.n_heads, device=x.device).scatter_add_(0, index, weight)
        weight = functional.dropout(weight / (total[target] + 1e-16), 0.2, self.training)
        mixed = torch.zeros_like(h).index_add_(0, target, h[source] * weight[:, :, None])
        return mixed.flatten(1) + self.root(x)


class GraphNet(nn.Module):
    """Three layers of messages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            (GraphAttention(200, 16, 4), GraphAttention(64, 16, 4), GraphAttention(64, 7, 1))
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the logits of every node's classes."""
        for layer in self.layers[:-1]:
            x = functional.elu(layer(functional.dropout(x, 0.3, self.training), edges))
        return self.layers[-1](x, edges)


def graph(setup: Setup) -> Iterations:
    """The nodes of one graph are classified, all at once; after every epoch all are looked at."""
    n_nodes, n_edges = 1500, 7000
    x, edges = torch.rand(n_nodes, 200).to(DEVICE), torch.randint(0, n_nodes, (2, n_edges)).to(DEVICE)
    y, is_train = torch.randint(0, 7, (n_nodes,)).to(DEVICE), (torch.rand(n_nodes) < 0.5).to(DEVICE)
    model = GraphNet().to(DEVICE)
    optimizer = make_optimizer(setup, model.parameters())

    def train() -> float:
        model.train()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        out = model(x, edges)
        loss = functional.cross_entropy(out[is_train], y[is_train])
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test() -> list[float]:
        model.eval()
        answer = model(x, edges).argmax(dim=-1)
        return [float((answer[mask] == y[mask]).float().mean()) for mask in (is_train, ~is_train)]

    while True:
        train()
        test()
        yield Known(inputs=(x, edges, y, is_train), states=states_of(optimizer))


# --- radiance


class Frequencies(nn.Module):
    """Coordinates as sines and cosines."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("rates", 2.0 ** torch.arange(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the coordinates with all their waves."""
        angles = (x[..., None] * self.rates).flatten(-2)
        return torch.cat((x, angles.sin(), angles.cos()), dim=-1)


class Field(nn.Module):
    """Density and colour of points, seen from a direction."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.points, self.directions = Frequencies(8), Frequencies(3)
        n_point, n_direction = 3 + 6 * 8, 3 + 6 * 3
        self.layers = nn.ModuleList(
            nn.Linear(n, width) for n in (n_point, width, width, width + n_point, width)
        )
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.colour = nn.Sequential(
            nn.Linear(width + n_direction, width // 2), nn.ReLU(), nn.Linear(width // 2, 3)
        )

    def forward(self, points: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        """Return colour and density, four numbers per point."""
        encoded = self.points(points)
        h = encoded
        for number, layer in enumerate(self.layers):
            h = functional.relu(layer(torch.cat((encoded, h), dim=-1) if number == 3 else h))
        colour = self.colour(torch.cat((self.feature(h), self.directions(directions)), dim=-1))
        return torch.cat((colour, self.density(h)), dim=-1)


def _rendered(raw: torch.Tensor, depth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum up along every ray; return its colour and the weights of its points."""
    gaps = depth[:, 1:] - depth[:, :-1]
    gaps = torch.cat((gaps, torch.full_like(gaps[:, :1], 1e10)), dim=-1)
    opacity = 1 - torch.exp(-functional.relu(raw[..., 3]) * gaps)
    clear = torch.cat((torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10), dim=-1)
    weights = opacity * torch.cumprod(clear, dim=-1)[:, :-1]
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(dim=1), weights


def _finer(depth: torch.Tensor, weights: torch.Tensor, n: int) -> torch.Tensor:
    """More depths where the weights are high, by inverting their sum."""
    middle = 0.5 * (depth[:, 1:] + depth[:, :-1])
    chance = weights[:, 1:-1] + 1e-5
    summed = torch.cumsum(chance / chance.sum(dim=-1, keepdim=True), dim=-1)
    summed = torch.cat((torch.zeros_like(summed[:, :1]), summed), dim=-1)
    drawn = torch.rand(len(depth), n, device=depth.device)
    above = torch.searchsorted(summed, drawn, right=True).clamp(max=summed.shape[-1] - 1)
    below = (above - 1).clamp(min=0)
    low, high = summed.gather(1, below), summed.gather(1, above)
    share = (drawn - low) / (high - low).clamp(min=1e-5)
    found = middle.gather(1, below) + share * (middle.gather(1, above) - middle.gather(1, below))
    return torch.sort(torch.cat((depth, found), dim=-1), dim=-1).values


def radiance(setup: Setup) -> Iterations:
    """A coarse and a fine field learn a scene from rays that lie on the device."""
    coarse, fine = Field(64).to(DEVICE), Field().to(DEVICE)
    optimizer = make_optimizer(setup, [*coarse.parameters(), *fine.parameters()])
    origins = torch.randn(12_000, 3).to(DEVICE)
    directions = functional.normalize(torch.randn(12_000, 3), dim=-1).to(DEVICE)
    colours = torch.rand(12_000, 3).to(DEVICE)
    depths = torch.linspace(2.0, 6.0, 16, device=DEVICE)
    step = 0
    while True:
        pick = torch.randint(0, len(origins), (96,), device=DEVICE)
        origin, direction, wanted = origins[pick], directions[pick], colours[pick]
        depth = depths + torch.rand(96, 16, device=DEVICE) * (4.0 / 16)
        points = origin[:, None] + direction[:, None] * depth[..., None]
        seen, weights = _rendered(coarse(points, direction[:, None].expand_as(points)), depth)
        depth = _finer(depth, weights.detach(), 16)
        points = origin[:, None] + direction[:, None] * depth[..., None]
        better, _ = _rendered(fine(points, direction[:, None].expand_as(points)), depth)
        loss = functional.mse_loss(better, wanted) + functional.mse_loss(seen, wanted)
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        step += 1
        for group in getattr(optimizer, "param_groups", ()):
            group["lr"] = 5e-4 * 0.1 ** (step / 1000)
        yield Known(
            inputs=(origins, directions, colours, depths, pick, origin, direction, wanted),
            states=states_of(optimizer),
        )
