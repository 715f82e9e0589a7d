"""An ant learns to run from what others did, by implicit Q-learning as in CORL: all transitions lie on the device, expectiles of the value, two critics and copies that follow them, weighted imitation, returns in between."""

import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.distributions import Normal
from torch.optim.lr_scheduler import CosineAnnealingLR

EXP_ADV_MAX, LOG_STD_MIN, LOG_STD_MAX = 100.0, -20.0, 2.0


@dataclass
class TrainConfig:
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    state_dim: int = 111
    action_dim: int = 8
    hidden_dim: int = 768
    buffer_size: int = 30_000
    max_timesteps: int = 12
    batch_size: int = 256
    tau: float = 0.005
    beta: float = 3.0
    iql_tau: float = 0.7
    lr: float = 3e-4


class ReplayBuffer:
    def __init__(self, data, buffer_size, device):
        self._size, self.tensors = len(data["observations"]), []
        for part in data.values():
            part = part.reshape(self._size, -1)
            kept = torch.zeros((buffer_size, part.shape[1]), dtype=torch.float32, device=device)
            kept[: self._size] = torch.tensor(part, dtype=torch.float32, device=device)
            self.tensors.append(kept)

    def sample(self, batch_size):
        indices = np.random.randint(0, self._size, size=batch_size)  # noqa: NPY002
        return [part[indices] for part in self.tensors]


def make_dataset(config, rng):
    n = 20_000
    states = rng.normal(1.0, 3.0, (n, config.state_dim)).astype(np.float32)
    actions = np.tanh(rng.normal(size=(n, config.action_dim))).astype(np.float32)
    moved = np.pad(actions, ((0, 0), (0, config.state_dim - config.action_dim)))
    return {
        "observations": states,
        "actions": actions,
        "rewards": states[:, 0] * 0.1 + actions[:, 0],
        "next_observations": states * 0.95 + moved,
        "terminals": rng.random(n) < 0.002,
    }


class MLP(nn.Sequential):
    def __init__(self, dims, output_activation=None, dropout=0.0):
        layers = []
        for n_in, n_out in pairwise(dims[:-1]):
            layers += [nn.Linear(n_in, n_out), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout > 0.0 else []
        layers.append(nn.Linear(dims[-2], dims[-1]))
        if output_activation is not None:
            layers.append(output_activation())
        super().__init__(*layers)


class GaussianPolicy(nn.Module):
    def __init__(self, state_dim, act_dim, hidden_dim, n_hidden=3, dropout=0.0):
        super().__init__()
        self.net = MLP([state_dim, *([hidden_dim] * n_hidden), act_dim], nn.Tanh, dropout)
        self.log_std = nn.Parameter(torch.zeros(act_dim, dtype=torch.float32))

    def forward(self, obs):
        mean = self.net(obs)
        return Normal(mean, torch.exp(self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)))

    @torch.no_grad()
    def act(self, state):
        state = torch.tensor(state.reshape(1, -1), device=self.log_std.device, dtype=torch.float32)
        return self(state).mean.clamp(-1, 1).cpu().numpy().flatten()


class TwinQ(nn.Module):
    def __init__(self, state_dim, action_dim, hidden_dim, n_hidden=3):
        super().__init__()
        dims = [state_dim + action_dim, *([hidden_dim] * n_hidden), 1]
        self.q1, self.q2 = MLP(dims), MLP(dims)

    def both(self, state, action):
        sa = torch.cat([state, action], 1)
        return self.q1(sa).squeeze(-1), self.q2(sa).squeeze(-1)

    def forward(self, state, action):
        return torch.min(*self.both(state, action))


class ImplicitQLearning:
    def __init__(self, config):
        self.config, width = config, config.hidden_dim
        self.qf = TwinQ(config.state_dim, config.action_dim, width).to(config.device)
        self.q_target = copy.deepcopy(self.qf).requires_grad_(False)
        self.vf = MLP([config.state_dim, width, width, width, 1]).to(config.device)
        actor = GaussianPolicy(config.state_dim, config.action_dim, width, dropout=0.1)
        self.actor = actor.to(config.device)
        networks = (self.vf, self.qf, self.actor)
        optimizers = [torch.optim.Adam(net.parameters(), lr=config.lr) for net in networks]
        self.v_optimizer, self.q_optimizer, self.actor_optimizer = optimizers
        self.actor_lr_schedule = CosineAnnealingLR(self.actor_optimizer, config.max_timesteps)

    def _minimize(self, loss, optimizer):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def _update_v(self, observations, actions):
        with torch.no_grad():
            target_q = self.q_target(observations, actions)
        adv = target_q - self.vf(observations).squeeze(-1)
        v_loss = torch.mean(torch.abs(self.config.iql_tau - (adv < 0).float()) * adv**2)
        self._minimize(v_loss, self.v_optimizer)
        return adv, v_loss.item()

    def _update_q(self, next_v, observations, actions, rewards, terminals):
        targets = rewards + (1.0 - terminals.float()) * 0.99 * next_v.detach()
        qs = self.qf.both(observations, actions)
        q_loss = sum(F.mse_loss(q, targets) for q in qs) / len(qs)
        self._minimize(q_loss, self.q_optimizer)
        for source, target in zip(self.qf.parameters(), self.q_target.parameters()):
            target.data.copy_((1 - self.config.tau) * target.data + self.config.tau * source.data)
        return q_loss.item()

    def _update_policy(self, adv, observations, actions):
        exp_adv = torch.exp(self.config.beta * adv.detach()).clamp(max=EXP_ADV_MAX)
        bc_losses = -self.actor(observations).log_prob(actions).sum(-1, keepdim=False)
        policy_loss = torch.mean(exp_adv * bc_losses)
        self._minimize(policy_loss, self.actor_optimizer)
        self.actor_lr_schedule.step()
        return policy_loss.item()

    def train(self, batch):
        observations, actions, rewards, next_observations, dones = batch
        with torch.no_grad():
            next_v = self.vf(next_observations).squeeze(-1)
        adv, v_loss = self._update_v(observations, actions)
        q_loss = self._update_q(next_v, observations, actions, rewards.squeeze(-1), dones.squeeze(-1))
        policy_loss = self._update_policy(adv, observations, actions)
        return {"value_loss": v_loss, "q_loss": q_loss, "actor_loss": policy_loss}


def eval_actor(config, actor, rng, length=20):
    actor.eval()
    state, total = rng.normal(size=config.state_dim), 0.0
    for _ in range(length):
        action = actor.act(state)
        state = state * 0.95 + np.pad(action, (0, config.state_dim - config.action_dim))
        total += action[0]
    actor.train()
    return total


def main(config):
    torch.manual_seed(1104)
    rng = np.random.default_rng(1104)
    dataset = make_dataset(config, rng)
    mean, std = dataset["observations"].mean(0), dataset["observations"].std(0) + 1e-3
    for key in ("observations", "next_observations"):
        dataset[key] = (dataset[key] - mean) / std
    buffer = ReplayBuffer(dataset, config.buffer_size, config.device)
    trainer = ImplicitQLearning(config)
    for t in range(config.max_timesteps):
        batch = buffer.sample(config.batch_size)
        print(t, trainer.train(batch))
        end_of_step(inputs=[buffer.tensors, batch], weights=list(trainer.q_target.parameters()))
        if (t + 1) % 2 == 0:
            print(f"return {eval_actor(config, trainer.actor, rng):.2f}")


if __name__ == "__main__":
    main(TrainConfig())
