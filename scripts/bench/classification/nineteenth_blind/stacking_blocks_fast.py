"""PQN plays a falling-block game in many environments at once (as CleanRL's script): layer norms instead of target network and replay, lambda-returns, RAdam."""

import random
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell


@dataclass
class Args:
    seed: int = 1
    total_timesteps: int = 16 * 32 * 4
    learning_rate: float = 2.5e-4
    num_envs: int = 16
    num_steps: int = 32
    anneal_lr: bool = True
    gamma: float = 0.99
    q_lambda: float = 0.65
    num_minibatches: int = 4
    update_epochs: int = 2
    max_grad_norm: float = 10.0
    start_e: float = 1.0
    end_e: float = 0.001
    exploration_fraction: float = 0.1


class Blocks(gym.Env):
    """Squares fall; a paddle below stacks them; four frames of 84x84 are seen."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.paddle, self.block, self.height = 42, np.array([0, int(self.np_random.integers(4, 80))]), 0
        self.frames = np.zeros((4, 84, 84), np.uint8)
        return self._draw(), {}

    def _draw(self):
        frame = np.zeros((84, 84), np.uint8)
        y, x = self.block
        frame[y : y + 5, max(x - 3, 0) : x + 3] = 200
        frame[80 - self.height : 84, max(self.paddle - 6, 0) : self.paddle + 6] = 120
        self.frames = np.concatenate([self.frames[1:], frame[None]])
        return self.frames

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + (0, -4, 4, -8, 8, 0)[action], 6, 78))
        self.block[0] += 4
        reward, terminated = 0.0, False
        if self.block[0] >= 74 - self.height:
            caught = abs(self.block[1] - self.paddle) < 8
            reward, terminated = (1.0, False) if caught else (-1.0, True)
            self.height = min(self.height + 3, 40)
            self.block = np.array([0, int(self.np_random.integers(4, 80))])
        return self._draw(), reward, terminated, False, {}


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):  # noqa: B008
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


class QNetwork(nn.Module):
    def __init__(self, env):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 32, 8, stride=4)),
            nn.LayerNorm([32, 20, 20]),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)),
            nn.LayerNorm([64, 9, 9]),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1)),
            nn.LayerNorm([64, 7, 7]),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(3136, 512)),
            nn.LayerNorm(512),
            nn.ReLU(),
            layer_init(nn.Linear(512, env.single_action_space.n)),
        )

    def forward(self, x):
        return self.network(x / 255.0)


def linear_schedule(start_e, end_e, duration, t):
    return max((end_e - start_e) / duration * t + start_e, end_e)


args = Args()
batch_size = args.num_envs * args.num_steps
minibatch_size = batch_size // args.num_minibatches
num_iterations = args.total_timesteps // batch_size
random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)
device = torch.device("cuda")

envs = gym.vector.SyncVectorEnv([Blocks] * args.num_envs)
q_network = QNetwork(envs).to(device)
optimizer = torch.optim.RAdam(q_network.parameters(), lr=args.learning_rate)

obs = torch.zeros((args.num_steps, args.num_envs) + envs.single_observation_space.shape).to(device)
actions = torch.zeros((args.num_steps, args.num_envs) + envs.single_action_space.shape).to(device)
rewards = torch.zeros((args.num_steps, args.num_envs)).to(device)
dones = torch.zeros((args.num_steps, args.num_envs)).to(device)
values = torch.zeros((args.num_steps, args.num_envs)).to(device)

global_step = 0
next_obs, _ = envs.reset(seed=args.seed)
next_obs = torch.Tensor(next_obs).to(device)
next_done = torch.zeros(args.num_envs).to(device)

for iteration in range(1, num_iterations + 1):
    if args.anneal_lr:
        optimizer.param_groups[0]["lr"] = (1.0 - (iteration - 1.0) / num_iterations) * args.learning_rate

    for step in range(args.num_steps):
        global_step += args.num_envs
        obs[step] = next_obs
        dones[step] = next_done
        epsilon = linear_schedule(
            args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, global_step
        )
        random_actions = torch.randint(0, envs.single_action_space.n, (args.num_envs,)).to(device)
        with torch.no_grad():
            q_values = q_network(next_obs)
            max_actions = torch.argmax(q_values, dim=1)
            values[step] = q_values[torch.arange(args.num_envs), max_actions].flatten()
        explore = torch.rand((args.num_envs,)).to(device) < epsilon
        action = torch.where(explore, random_actions, max_actions)
        actions[step] = action
        next_obs, reward, terminations, truncations, infos = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_done = torch.Tensor(np.logical_or(terminations, truncations)).to(device)
        next_obs = torch.Tensor(next_obs).to(device)

    with torch.no_grad():
        returns = torch.zeros_like(rewards).to(device)
        for t in reversed(range(args.num_steps)):
            if t == args.num_steps - 1:
                next_value, _ = torch.max(q_network(next_obs), dim=-1)
                nextnonterminal = 1.0 - next_done
                returns[t] = rewards[t] + args.gamma * next_value * nextnonterminal
            else:
                nextnonterminal = 1.0 - dones[t + 1]
                next_value = values[t + 1]
                bootstrap = args.q_lambda * returns[t + 1] + (1 - args.q_lambda) * next_value
                returns[t] = rewards[t] + args.gamma * bootstrap * nextnonterminal

    b_obs = obs.reshape((-1,) + envs.single_observation_space.shape)
    b_actions = actions.reshape((-1,) + envs.single_action_space.shape)
    b_returns = returns.reshape(-1)
    rollout = [obs, actions, rewards, dones, values, returns, next_obs, next_done]

    b_inds = np.arange(batch_size)
    for epoch in range(args.update_epochs):
        np.random.shuffle(b_inds)
        for start in range(0, batch_size, minibatch_size):
            mb_inds = b_inds[start : start + minibatch_size]
            mb_obs = b_obs[mb_inds]
            old_val = q_network(mb_obs).gather(1, b_actions[mb_inds].unsqueeze(-1).long()).squeeze()
            loss = F.mse_loss(b_returns[mb_inds], old_val)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
            optimizer.step()
            tell(inputs=mb_obs, gradients=[p.grad for p in q_network.parameters()])

    print(f"step {global_step}: loss {loss.item():.4f}, q {old_val.mean().item():.3f}, epsilon {epsilon:.2f}")
    end_of_step(inputs=[rollout, mb_obs], activations=[old_val, loss])
