"""An arm is moved by what a camera sees (DrQ-v2): frames shifted on the device, an encoder that only the critic trains, returns over three steps, noise that fades."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, IterableDataset

OBS_SHAPE, ACTION_DIM, N_STEP, DISCOUNT = (9, 84, 84), 6, 3, 0.99


class Reacher:
    """Three frames of three colours, one above the other."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.t, self.obs = 0, self.rng.integers(0, 256, OBS_SHAPE, dtype=np.uint8)
        return self.obs

    def step(self, action):
        self.t += 1
        frame = np.roll(self.obs[-3:], int(3 * action[0]), axis=2)
        self.obs = np.concatenate((self.obs[3:], frame))
        return self.obs, float(1 - np.abs(action).mean()), self.t == 20


class ReplayBuffer(IterableDataset):
    def __init__(self, seed):
        self.episodes, self.current, self.rng = [], [], np.random.default_rng(seed)

    def add(self, obs, action, reward, done):
        self.current.append((obs, action, reward))
        if done:
            self.episodes.append(tuple(np.stack(part) for part in zip(*self.current)))
            self.current = []

    def __iter__(self):
        while True:
            obs, action, reward = self.episodes[self.rng.integers(len(self.episodes))]
            i = self.rng.integers(len(obs) - N_STEP)
            total = sum(DISCOUNT**k * reward[i + k] for k in range(N_STEP))
            numbers = np.float32([[total], [DISCOUNT**N_STEP]])
            yield obs[i], action[i].astype(np.float32), *numbers, obs[i + N_STEP]


def random_shifts(x, pad=4):
    n, _, h, _ = x.size()
    x = F.pad(x, (pad,) * 4, "replicate")
    eps = 1.0 / (h + 2 * pad)
    arange = torch.linspace(-1.0 + eps, 1.0 - eps, h + 2 * pad, device=x.device, dtype=x.dtype)[:h]
    arange = arange.unsqueeze(0).repeat(h, 1).unsqueeze(2)
    base_grid = torch.cat([arange, arange.transpose(1, 0)], dim=2).unsqueeze(0).repeat(n, 1, 1, 1)
    shift = torch.randint(0, 2 * pad + 1, size=(n, 1, 1, 2), device=x.device, dtype=x.dtype)
    shift *= 2.0 / (h + 2 * pad)
    return F.grid_sample(x, base_grid + shift, padding_mode="zeros", align_corners=False)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.repr_dim, widths = 32 * 35 * 35, ((OBS_SHAPE[0], 2), (32, 1), (32, 1), (32, 1))
        pairs = [(nn.Conv2d(n_in, 32, 3, stride=stride), nn.ReLU()) for n_in, stride in widths]
        self.convnet = nn.Sequential(*(layer for pair in pairs for layer in pair))

    def forward(self, obs):
        return self.convnet(obs / 255.0 - 0.5).flatten(1)


class TruncatedNormal(torch.distributions.Normal):
    def draw(self, clip=None):
        eps = torch.randn_like(self.loc) * self.scale
        x = self.loc + (eps if clip is None else eps.clamp(-clip, clip))
        return x - x.detach() + torch.clamp(x, -1 + 1e-6, 1 - 1e-6).detach()


def mlp(n_in, n, n_out):
    return nn.Sequential(nn.Linear(n_in, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n_out))


class Actor(nn.Module):
    def __init__(self, repr_dim, feature_dim=50, hidden_dim=768):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(repr_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())
        self.policy = mlp(feature_dim, hidden_dim, ACTION_DIM)

    def forward(self, obs, std):
        mu = torch.tanh(self.policy(self.trunk(obs)))
        return TruncatedNormal(mu, torch.ones_like(mu) * std)


class Critic(nn.Module):
    def __init__(self, repr_dim, feature_dim=50, hidden_dim=768):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(repr_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())
        self.Q1, self.Q2 = (mlp(feature_dim + ACTION_DIM, hidden_dim, 1) for _ in range(2))

    def forward(self, obs, action):
        h_action = torch.cat([self.trunk(obs), action], dim=-1)
        return self.Q1(h_action), self.Q2(h_action)


def weight_init(m):
    if isinstance(m, (nn.Linear, nn.Conv2d)):
        nn.init.orthogonal_(m.weight.data, gain=2**0.5 if isinstance(m, nn.Conv2d) else 1.0)
        m.bias.data.fill_(0.0)


class DrQV2Agent:
    def __init__(self, device, lr=1e-4, critic_target_tau=0.01, stddev_clip=0.3):
        self.device, self.tau, self.stddev_clip = device, critic_target_tau, stddev_clip
        self.encoder = Encoder().apply(weight_init).to(device)
        self.actor = Actor(self.encoder.repr_dim).apply(weight_init).to(device)
        self.critic = Critic(self.encoder.repr_dim).apply(weight_init).to(device)
        self.critic_target = Critic(self.encoder.repr_dim).to(device)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.encoder_opt, self.actor_opt, self.critic_opt = (
            torch.optim.Adam(net.parameters(), lr=lr) for net in (self.encoder, self.actor, self.critic)
        )

    @torch.no_grad()
    def act(self, obs, step):
        obs = torch.as_tensor(obs, device=self.device).unsqueeze(0)
        return self.actor(self.encoder(obs), max(0.1, 1.0 - step / 200)).draw().cpu().numpy()[0]

    def update(self, replay_iter, step):
        obs, action, reward, discount, next_obs = (part.to(self.device) for part in next(replay_iter))
        obs, next_obs = random_shifts(obs.float()), random_shifts(next_obs.float())
        features = self.encoder(obs)
        stddev = max(0.1, 1.0 - step / 200)
        with torch.no_grad():
            next_features = self.encoder(next_obs)
            next_action = self.actor(next_features, stddev).draw(clip=self.stddev_clip)
            target_Q = reward + discount * torch.min(*self.critic_target(next_features, next_action))
        Q1, Q2 = self.critic(features, action)
        critic_loss = F.mse_loss(Q1, target_Q) + F.mse_loss(Q2, target_Q)
        self.encoder_opt.zero_grad()
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()

        features = features.detach()
        dist = self.actor(features, stddev)
        taken = dist.draw(clip=self.stddev_clip)
        actor_loss = -torch.min(*self.critic(features, taken)).mean()
        self.actor_opt.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.actor_opt.step()
        with torch.no_grad():
            for param, target_param in zip(self.critic.parameters(), self.critic_target.parameters()):
                target_param.data.copy_(self.tau * param.data + (1 - self.tau) * target_param.data)
        end_of_step(
            inputs=[obs, action, reward, discount, next_obs],
            activations=[features, next_features, next_action, target_Q, Q1, Q2, critic_loss]
            + [dist.loc, dist.scale, taken, actor_loss],
        )
        print(f"{step}: critic {critic_loss.item():.3f}, actor {actor_loss.item():.3f}")


def main(num_seed_frames=60, num_train_frames=90, batch_size=24):
    rng = np.random.default_rng(903)
    torch.manual_seed(903)
    agent = DrQV2Agent(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    env, replay = Reacher(903), ReplayBuffer(903)
    replay_iter = iter(DataLoader(replay, batch_size=batch_size))
    obs = env.reset()
    for step in range(num_train_frames):
        action = rng.uniform(-1, 1, ACTION_DIM) if step < num_seed_frames else agent.act(obs, step)
        next_obs, reward, done = env.step(action)
        replay.add(obs, action, reward, done)
        obs = env.reset() if done else next_obs
        if step >= num_seed_frames and step % 2 == 0:
            agent.update(replay_iter, step)


if __name__ == "__main__":
    main()
