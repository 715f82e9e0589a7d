"""A player of games learns how likely each return is (C51): frames kept on the host as bytes, a target copied now and then."""

import numpy as np
import torch
from programs import end_of_step
from torch import nn, optim

N_ATOMS, V_MIN, V_MAX, GAMMA = 51, -10.0, 10.0, 0.99
N_ACTIONS, BATCH, TARGET_FREQUENCY, LEARNING_STARTS, TRAIN_FREQUENCY = 6, 32, 8, 40, 4


class Game:
    """Four frames in a row, as the wrappers of Atari games stack them."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.frames = None

    def reset(self):
        self.frames = self.random.integers(0, 256, (4, 84, 84), dtype=np.uint8)
        return self.frames

    def step(self, action):
        new = np.roll(self.frames[-1], int(action), axis=1)
        self.frames = np.concatenate((self.frames[1:], new[None]))
        return self.frames, float(self.random.normal()), bool(self.random.random() < 0.02)


class ReplayBuffer:
    def __init__(self, size, device, random):
        self.size, self.device, self.random = size, device, random
        self.pos, self.full = 0, False
        self.observations = np.zeros((size, 4, 84, 84), dtype=np.uint8)
        self.next_observations = np.zeros((size, 4, 84, 84), dtype=np.uint8)
        self.actions = np.zeros((size, 1), dtype=np.int64)
        self.rewards = np.zeros((size, 1), dtype=np.float32)
        self.dones = np.zeros((size, 1), dtype=np.float32)

    def add(self, obs, next_obs, action, reward, done):
        for kept, value in (
            (self.observations, obs),
            (self.next_observations, next_obs),
            (self.actions, action),
            (self.rewards, reward),
            (self.dones, done),
        ):
            kept[self.pos] = value
        self.pos = (self.pos + 1) % self.size
        self.full = self.full or self.pos == 0

    def sample(self, n):
        which = self.random.integers(0, self.size if self.full else self.pos, n)
        kept = self.observations, self.next_observations, self.actions, self.rewards, self.dones
        return [torch.tensor(values[which], device=self.device) for values in kept]


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("atoms", torch.linspace(V_MIN, V_MAX, steps=N_ATOMS))
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, N_ACTIONS * N_ATOMS),
        )

    def get_action(self, x, action=None):
        logits = self.network(x / 255.0)
        pmfs = torch.softmax(logits.view(len(x), N_ACTIONS, N_ATOMS), dim=2)
        q_values = (pmfs * self.atoms).sum(2)
        if action is None:
            action = torch.argmax(q_values, 1)
        return action, pmfs[torch.arange(len(x)), action]


def linear_schedule(start_e, end_e, duration, t):
    return max((end_e - start_e) / duration * t + start_e, end_e)


def projected(target_network, next_observations, rewards, dones):
    """The distribution of returns one step on, brought back to the bins."""
    _, next_pmfs = target_network.get_action(next_observations)
    next_atoms = rewards + GAMMA * target_network.atoms * (1 - dones)
    delta_z = target_network.atoms[1] - target_network.atoms[0]
    tz = next_atoms.clamp(V_MIN, V_MAX)
    b = (tz - V_MIN) / delta_z
    lower = b.floor().clamp(0, N_ATOMS - 1)
    upper = b.ceil().clamp(0, N_ATOMS - 1)
    d_m_l = (upper + (lower == upper).float() - b) * next_pmfs
    d_m_u = (b - lower) * next_pmfs
    target_pmfs = torch.zeros_like(next_pmfs)
    for i in range(target_pmfs.size(0)):
        target_pmfs[i].index_add_(0, lower[i].long(), d_m_l[i])
        target_pmfs[i].index_add_(0, upper[i].long(), d_m_u[i])
    return target_pmfs


def main(total_timesteps=80):
    random = np.random.default_rng(215)
    torch.manual_seed(215)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    q_network = QNetwork().to(device)
    optimizer = optim.Adam(q_network.parameters(), lr=2.5e-4, eps=0.01 / BATCH)
    target_network = QNetwork().to(device)
    target_network.load_state_dict(q_network.state_dict())
    rb, game = ReplayBuffer(256, device, random), Game(215)
    obs = game.reset()
    for global_step in range(total_timesteps):
        epsilon = linear_schedule(1, 0.05, 60, global_step)
        if random.random() < epsilon:
            action = int(random.integers(N_ACTIONS))
        else:
            actions, _ = q_network.get_action(torch.tensor(obs[None], device=device))
            action = actions.cpu().numpy()[0]
        next_obs, reward, done = game.step(action)
        rb.add(obs, next_obs, action, reward, done)
        obs = game.reset() if done else next_obs
        if global_step <= LEARNING_STARTS or global_step % TRAIN_FREQUENCY:
            continue
        observations, next_observations, taken, rewards, dones = data = rb.sample(BATCH)
        with torch.no_grad():
            target_pmfs = projected(target_network, next_observations, rewards, dones)
        _, old_pmfs = q_network.get_action(observations, taken.flatten())
        loss = (-(target_pmfs * old_pmfs.clamp(min=1e-5, max=1 - 1e-5).log()).sum(-1)).mean()
        if global_step % 8 == 0:
            old_val = (old_pmfs * q_network.atoms).sum(1)
            print(f"{global_step}: loss {loss.item():.4f}, q {old_val.mean().item():.4f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if global_step % TARGET_FREQUENCY == 0:
            target_network.load_state_dict(q_network.state_dict())
        end_of_step(inputs=data, activations=[target_pmfs, old_pmfs, loss])


if __name__ == "__main__":
    main()
