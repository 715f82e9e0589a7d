"""A player of a small game learns in what it imagines, as Dreamer does: a recurrent world model with discrete latents, an actor that dreams on from every state, a critic with bins and a slow copy, LaProp with adaptive clipping."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from pytorch_optimizer import LaProp
from torch import nn
from torch.distributions import Independent, OneHotCategoricalStraightThrough, kl_divergence

SIZE, N_ACTIONS, N_ENVS = 64, 5, 4
DETER, GROUPS, CLASSES, HIDDEN = 384, 16, 16, 256
STOCH = GROUPS * CLASSES
BATCH, LENGTH, HORIZON, GAMMA, LAMBDA = 6, 24, 10, 0.997, 0.95
BINS = 127


def symlog(x):
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x):
    return torch.sign(x) * torch.expm1(x.abs())


def mlp(n_in, n_out, depth=2, width=HIDDEN):
    layers = []
    for i in range(depth):
        layers += [nn.Linear(n_in if i == 0 else width, width, bias=False), nn.RMSNorm(width), nn.SiLU()]
    head = nn.Linear(width, n_out)
    nn.init.zeros_(head.bias)
    return nn.Sequential(*layers, head)


class Bins(nn.Module):
    """A number as chances of bins (two hot), on a symlog scale."""

    def __init__(self, n_in):
        super().__init__()
        self.net = mlp(n_in, BINS)
        nn.init.zeros_(self.net[-1].weight)
        self.register_buffer("bins", torch.linspace(-15, 15, BINS))

    def forward(self, x):
        return self.net(x)

    def mean(self, logits):
        return symexp((logits.softmax(-1) * self.bins).sum(-1))

    def loss(self, logits, target):
        target = symlog(target).clamp(-15, 15)
        above = torch.bucketize(target, self.bins).clamp(1, BINS - 1)
        low, high = self.bins[above - 1], self.bins[above]
        weight = ((target - low) / (high - low)).unsqueeze(-1)
        two_hot = F.one_hot(above - 1, BINS) * (1 - weight) + F.one_hot(above, BINS) * weight
        return -(two_hot * logits.log_softmax(-1)).sum(-1)


class Encoder(nn.Module):
    def __init__(self, depth=24):
        super().__init__()
        sizes = [3, depth, 2 * depth, 4 * depth, 8 * depth]
        self.layers = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.GroupNorm(1, b), nn.SiLU())
                for a, b in zip(sizes, sizes[1:])
            ]
        )
        self.n_out = 8 * depth * 16

    def forward(self, x):
        return self.layers(x).flatten(1)


class Decoder(nn.Module):
    def __init__(self, n_in, depth=24):
        super().__init__()
        self.depth = depth
        self.first = nn.Linear(n_in, 8 * depth * 16)
        sizes = [8 * depth, 4 * depth, 2 * depth, depth]
        self.layers = nn.Sequential(
            *[
                nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.GroupNorm(1, b), nn.SiLU())
                for a, b in zip(sizes, sizes[1:])
            ],
            nn.ConvTranspose2d(depth, 3, 4, 2, 1),
        )

    def forward(self, x):
        return torch.sigmoid(self.layers(self.first(x).view(-1, 8 * self.depth, 4, 4)))


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.before = nn.Sequential(nn.Linear(STOCH + N_ACTIONS, HIDDEN), nn.RMSNorm(HIDDEN), nn.SiLU())
        self.cell = nn.GRUCell(HIDDEN, DETER)
        self.prior = mlp(DETER, STOCH, 1)
        self.posterior = mlp(DETER + self.encoder.n_out, STOCH, 1)
        self.decoder = Decoder(DETER + STOCH)
        self.reward, self.goes_on = Bins(DETER + STOCH), mlp(DETER + STOCH, 1)

    def start(self, n):
        device = self.cell.weight_hh.device
        return torch.zeros(n, DETER, device=device), torch.zeros(n, STOCH, device=device)

    def distribution(self, logits):
        logits = logits.view(*logits.shape[:-1], GROUPS, CLASSES)
        probs = 0.99 * logits.softmax(-1) + 0.01 / CLASSES
        return Independent(OneHotCategoricalStraightThrough(probs=probs), 1)

    def imagine_step(self, deter, stoch, action):
        deter = self.cell(self.before(torch.cat([stoch, action], -1)), deter)
        logits = self.prior(deter)
        return deter, self.distribution(logits).rsample().flatten(1), logits

    def observe_step(self, deter, stoch, action, embedded, first):
        keep = (1 - first).unsqueeze(-1)
        deter = self.cell(self.before(torch.cat([stoch * keep, action * keep], -1)), deter * keep)
        logits = self.posterior(torch.cat([deter, embedded], -1))
        return deter, self.distribution(logits).rsample().flatten(1), logits

    def loss(self, pictures, actions, rewards, first, last):
        n, length = pictures.shape[:2]
        embedded = self.encoder(pictures.flatten(0, 1)).view(n, length, -1)
        deter, stoch = self.start(n)
        deters, stochs, posts = [], [], []
        for t in range(length):
            deter, stoch, post = self.observe_step(deter, stoch, actions[:, t], embedded[:, t], first[:, t])
            deters.append(deter), stochs.append(stoch), posts.append(post)
        deters, stochs, posts = (torch.stack(found, 1) for found in (deters, stochs, posts))
        priors = self.prior(deters)
        features = torch.cat([deters, stochs], -1)
        painted = self.decoder(features.flatten(0, 1)).view_as(pictures)
        picture_loss = (painted - pictures).pow(2).sum((2, 3, 4)).mean()
        reward_loss = self.reward.loss(self.reward(features), rewards).mean()
        end_loss = F.binary_cross_entropy_with_logits(self.goes_on(features).squeeze(-1), 1 - last)
        post, prior = self.distribution(posts), self.distribution(priors)
        dynamics = kl_divergence(self.distribution(posts.detach()), prior).clamp_min(1.0).mean()
        representation = kl_divergence(post, self.distribution(priors.detach())).clamp_min(1.0).mean()
        return (
            picture_loss + reward_loss + end_loss + dynamics + 0.1 * representation,
            deters.detach(),
            stochs.detach(),
        )


class Game:
    """A dot is to be led to a spot; on the host."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.at, self.goal, self.time = (
            self.rng.integers(4, SIZE - 4, 2),
            self.rng.integers(4, SIZE - 4, 2),
            0,
        )
        return self.picture()

    def picture(self):
        picture = np.zeros((3, SIZE, SIZE), np.uint8)
        for channel, (y, x) in enumerate((self.at, self.goal)):
            picture[channel, y - 3 : y + 4, x - 3 : x + 4] = 255
        return picture

    def step(self, action):
        moves = np.array([(0, 0), (0, 4), (0, -4), (4, 0), (-4, 0)])
        self.at = np.clip(self.at + moves[action], 4, SIZE - 5)
        self.time += 1
        found = np.abs(self.at - self.goal).max() < 6
        return self.picture(), float(found), bool(found or self.time >= 100)


class Replay:
    def __init__(self, rng, size=2000):
        self.rng, self.size, self.n = rng, size, 0
        self.pictures = np.zeros((N_ENVS, size, 3, SIZE, SIZE), np.uint8)
        self.actions = np.zeros((N_ENVS, size, N_ACTIONS), np.float32)
        self.rewards, self.first, self.last = (np.zeros((N_ENVS, size), np.float32) for _ in range(3))

    def add(self, *entries):
        for kept, entry in zip((self.pictures, self.actions, self.rewards, self.first, self.last), entries):
            kept[:, self.n % self.size] = entry
        self.n += 1

    def sample(self, device):
        envs = self.rng.integers(0, N_ENVS, BATCH)
        starts = self.rng.integers(0, min(self.n, self.size) - LENGTH + 1, BATCH)
        rows = starts[:, None] + np.arange(LENGTH)
        held = (self.pictures, self.actions, self.rewards, self.first, self.last)
        batch = [torch.from_numpy(kept[envs[:, None], rows]).to(device) for kept in held]
        batch[3][:, 0] = 1.0
        return batch


def clip_adaptively(parameters, factor=0.3, eps=1e-3):
    for p in parameters:
        if p.grad is not None:
            limit = factor * p.detach().norm().clamp_min(eps)
            p.grad.mul_((limit / p.grad.norm().clamp_min(1e-6)).clamp_max(1.0))


def optimize(optimizer, parameters, loss):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    clip_adaptively(parameters)
    optimizer.step()


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    device = torch.device("cuda")
    world = WorldModel().to(device)
    actor = mlp(DETER + STOCH, N_ACTIONS, 3).to(device)
    critic = Bins(DETER + STOCH).to(device)
    slow_critic = copy.deepcopy(critic).requires_grad_(False)
    groups = [list(model.parameters()) for model in (world, actor, critic)]
    optimizers = [
        LaProp(group, lr=lr, betas=(0.9, 0.999), eps=1e-20) for group, lr in zip(groups, (3e-4, 1e-4, 1e-4))
    ]
    return_range = torch.ones((), device=device)

    games, replay = [Game(rng) for _ in range(N_ENVS)], Replay(rng)
    pictures, first = np.stack([game.reset() for game in games]), np.ones(N_ENVS, np.float32)
    rewards, last = np.zeros(N_ENVS, np.float32), np.zeros(N_ENVS, np.float32)
    deter, stoch = world.start(N_ENVS)
    action = torch.zeros(N_ENVS, N_ACTIONS, device=device)

    def play(n_moves, random=False):
        nonlocal pictures, first, rewards, last, deter, stoch, action
        for _ in range(n_moves):
            replay.add(pictures, action.cpu().numpy(), rewards, first, last)
            if random:
                action = F.one_hot(torch.randint(N_ACTIONS, (N_ENVS,), device=device), N_ACTIONS).float()
            else:
                with torch.no_grad():
                    embedded = world.encoder(torch.from_numpy(pictures).to(device).float() / 255)
                    deter, stoch, _ = world.observe_step(
                        deter, stoch, action, embedded, torch.from_numpy(first).to(device)
                    )
                    logits = actor(torch.cat([deter, stoch], -1))
                    action = OneHotCategoricalStraightThrough(logits=logits).sample()
            first = last.copy()
            moved = [
                game.step(a) if not done else (game.reset(), 0.0, False)
                for game, a, done in zip(games, action.argmax(-1).tolist(), first)
            ]
            pictures = np.stack([m[0] for m in moved])
            rewards, last = (np.array([m[i] for m in moved], np.float32) for i in (1, 2))

    play(60, random=True)
    for step in range(4):
        play(4)
        seen, actions, reward, begins, ends = replay.sample(device)
        seen = seen.float() / 255
        world_loss, deters, stochs = world.loss(seen, actions, reward, begins, ends)
        optimize(optimizers[0], groups[0], world_loss)

        world.requires_grad_(False)
        d, s = deters.flatten(0, 1), stochs.flatten(0, 1)
        features, log_probs, entropies = [torch.cat([d, s], -1)], [], []
        for _ in range(HORIZON):
            policy = OneHotCategoricalStraightThrough(logits=actor(features[-1].detach()))
            chosen = policy.sample()
            log_probs.append(policy.log_prob(chosen)), entropies.append(policy.entropy())
            with torch.no_grad():
                d, s, _ = world.imagine_step(d, s, chosen)
            features.append(torch.cat([d, s], -1))
        features = torch.stack(features)
        with torch.no_grad():
            dreamed = world.reward.mean(world.reward(features))
            discount = GAMMA * torch.sigmoid(world.goes_on(features).squeeze(-1))
            values = slow_critic.mean(slow_critic(features))
            returns = [values[-1]]
            for t in reversed(range(HORIZON)):
                ahead = (1 - LAMBDA) * values[t + 1] + LAMBDA * returns[-1]
                returns.append(dreamed[t + 1] + discount[t + 1] * ahead)
            returns = torch.stack(returns[:0:-1])
            weights = torch.cumprod(torch.cat([torch.ones_like(discount[:1]), discount[1:-1]]), 0)
            low, high = torch.quantile(returns, torch.tensor([0.05, 0.95], device=device))
            return_range.lerp_(high - low, 0.01)
            advantage = (returns - values[:-1]) / return_range.clamp_min(1.0)
        actor_loss = -(weights * (torch.stack(log_probs) * advantage + 3e-4 * torch.stack(entropies))).mean()
        optimize(optimizers[1], groups[1], actor_loss)
        critic_loss = (weights * critic.loss(critic(features[:-1]), returns)).mean()
        optimize(optimizers[2], groups[2], critic_loss)
        world.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(slow_critic.parameters()), list(critic.parameters()), 0.02)

        print(
            f"step {step}: world {world_loss.item():.1f}, actor {actor_loss.item():.4f}, critic {critic_loss.item():.3f}"
        )
        end_of_step(
            inputs=[seen, actions, reward, begins, ends, action, features],
            activations=[
                world_loss,
                actor_loss,
                critic_loss,
                deter,
                stoch,
                deters,
                stochs,
                d,
                s,
                chosen,
                log_probs,
                entropies,
                dreamed,
                discount,
                values,
                returns,
                weights,
                advantage,
                low,
                high,
                ahead,
            ],
            weights=return_range,
        )


if __name__ == "__main__":
    main()
