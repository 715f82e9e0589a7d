"""A player explores where a network cannot guess what another, random one says (RND), as CleanRL writes it in one file: PPO with two values, rollouts on the device, pictures and rewards normalized by running means, only a quarter of steps teaches the guesser."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.distributions.categorical import Categorical

TOTAL_TIMESTEPS, NUM_ENVS, NUM_STEPS, NUM_MINIBATCHES, UPDATE_EPOCHS = 512, 8, 8, 2, 2
GAMMA, INT_GAMMA, GAE_LAMBDA, CLIP_COEF, ENT_COEF = 0.999, 0.99, 0.95, 0.1, 0.001
INT_COEF, EXT_COEF, UPDATE_PROPORTION = 1.0, 2.0, 0.25


class Rooms:
    """Rooms of bright dots that scroll as one walks; few of them are worth anything."""

    n_actions = 18

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.world = (rng.random((256, 256)) < 0.05).astype(np.uint8) * 255
        self.frames = np.zeros((n, 4, 84, 84), np.uint8)
        self.at = rng.integers(0, 170, (n, 2))

    def step(self, action):
        moves = np.stack([action % 3 - 1, action // 3 % 3 - 1], axis=1) * 4
        self.at = np.clip(self.at + moves, 0, 171)
        views = np.stack([self.world[y : y + 84, x : x + 84] for y, x in self.at])
        self.frames = np.concatenate([self.frames[:, 1:], views[:, None]], axis=1)
        done = self.rng.random(self.n) < 0.01
        return self.frames, (self.at.sum(1) > 330).astype(np.float32), done


class RunningMeanStd:
    def __init__(self, shape=()):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, x):
        mean, var, n = x.mean(0), x.var(0), len(x)
        delta, total = mean - self.mean, self.count + n
        m2 = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean, self.var, self.count = self.mean + delta * n / total, m2 / total, total


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


def convolutions(channels, activation):
    return [
        layer_init(nn.Conv2d(channels, 32, 8, stride=4)), activation(),
        layer_init(nn.Conv2d(32, 64, 4, stride=2)), activation(),
        layer_init(nn.Conv2d(64, 64, 3, stride=1)), activation(),
        nn.Flatten(),
    ]  # fmt: skip


class Agent(nn.Module):
    def __init__(self, n_actions):
        super().__init__()
        head = [layer_init(nn.Linear(64 * 7 * 7, 256)), nn.ReLU(), layer_init(nn.Linear(256, 448)), nn.ReLU()]
        self.network = nn.Sequential(*convolutions(4, nn.ReLU), *head)
        self.extra_layer = nn.Sequential(layer_init(nn.Linear(448, 448), std=0.1), nn.ReLU())
        hidden = [layer_init(nn.Linear(448, 448), std=0.01), nn.ReLU()]
        self.actor = nn.Sequential(*hidden, layer_init(nn.Linear(448, n_actions), std=0.01))
        self.critic_ext = layer_init(nn.Linear(448, 1), std=0.01)
        self.critic_int = layer_init(nn.Linear(448, 1), std=0.01)

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        features = self.extra_layer(hidden) + hidden
        if action is None:
            action = probs.sample()
        values = self.critic_ext(features).flatten(), self.critic_int(features).flatten()
        return action, probs.log_prob(action), probs.entropy(), *values


class RNDModel(nn.Module):
    def __init__(self):
        super().__init__()
        out = 64 * 7 * 7
        head = [layer_init(nn.Linear(out, 512)), nn.ReLU(), layer_init(nn.Linear(512, 512)), nn.ReLU()]
        self.predictor = nn.Sequential(*convolutions(1, nn.LeakyReLU), *head, layer_init(nn.Linear(512, 512)))
        self.target = nn.Sequential(*convolutions(1, nn.LeakyReLU), layer_init(nn.Linear(out, 512)))
        self.target.requires_grad_(False)

    def forward(self, next_obs):
        return self.predictor(next_obs), self.target(next_obs)


def advantages_of(rewards, values, next_value, nonterminal, gamma, lam):
    advantages, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else next_value
        delta = rewards[t] + gamma * following * nonterminal[t] - values[t]
        advantages[t] = last = delta + gamma * lam * nonterminal[t] * last
    return advantages


if __name__ == "__main__":
    batch_size, rng = NUM_ENVS * NUM_STEPS, np.random.default_rng(1205)
    torch.manual_seed(1205)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs = Rooms(NUM_ENVS, rng)
    agent, rnd_model = Agent(envs.n_actions).to(device), RNDModel().to(device)
    combined_parameters = list(agent.parameters()) + list(rnd_model.predictor.parameters())
    optimizer = torch.optim.Adam(combined_parameters, lr=1e-4, eps=1e-5)
    obs_rms, reward_rms = RunningMeanStd((1, 84, 84)), RunningMeanStd()
    shape = (NUM_STEPS, NUM_ENVS)
    obs = torch.zeros((*shape, 4, 84, 84), device=device)
    storage = [torch.zeros(shape, device=device) for _ in range(7)]
    actions, logprobs, rewards, curiosity_rewards, dones, ext_values, int_values = storage

    def normalized(frames):
        mean = torch.from_numpy(obs_rms.mean).to(device)
        var = torch.from_numpy(obs_rms.var).to(device)
        return ((frames - mean) / torch.sqrt(var)).clip(-5, 5).float()

    next_obs = torch.Tensor(envs.step(np.zeros(NUM_ENVS, int))[0]).to(device)
    next_done = torch.zeros(NUM_ENVS, device=device)
    num_iterations = TOTAL_TIMESTEPS // batch_size
    for iteration in range(1, num_iterations + 1):
        optimizer.param_groups[0]["lr"] = (1 - (iteration - 1) / num_iterations) * 1e-4
        for step in range(NUM_STEPS):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value_ext, value_int = agent.get_action_and_value(next_obs)
                ext_values[step], int_values[step] = value_ext, value_int
            actions[step], logprobs[step] = action, logprob
            frames, reward, done = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward, device=device)
            next_obs, next_done = torch.Tensor(frames).to(device), torch.Tensor(done).to(device)
            with torch.no_grad():
                predicted, target = rnd_model(normalized(next_obs[:, 3:]))
                curiosity_rewards[step] = (target - predicted).pow(2).sum(1) / 2
        reward_rms.update(curiosity_rewards.cpu().numpy().flatten())
        curiosity_rewards /= float(np.sqrt(reward_rms.var))
        with torch.no_grad():
            *_, next_ext, next_int = agent.get_action_and_value(next_obs)
            alive = 1.0 - torch.cat([dones[1:], next_done[None]])
            ext_advantages = advantages_of(rewards, ext_values, next_ext, alive, GAMMA, GAE_LAMBDA)
            alive = torch.ones_like(alive)  # curiosity goes on when a game ends
            int_advantages = advantages_of(
                curiosity_rewards, int_values, next_int, alive, INT_GAMMA, GAE_LAMBDA
            )
        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten().long(), logprobs.flatten()
        b_ext_returns = (ext_advantages + ext_values).flatten()
        b_int_returns = (int_advantages + int_values).flatten()
        b_advantages = (int_advantages * INT_COEF + ext_advantages * EXT_COEF).flatten()
        obs_rms.update(b_obs[:, 3:].cpu().numpy())
        rnd_next_obs = normalized(b_obs[:, 3:])
        for _ in range(UPDATE_EPOCHS):
            for mb in torch.randperm(batch_size, device=device).split(batch_size // NUM_MINIBATCHES):
                predict, target = rnd_model(rnd_next_obs[mb])
                forward_loss = F.mse_loss(predict, target.detach(), reduction="none").mean(-1)
                mask = (torch.rand(len(forward_loss), device=device) < UPDATE_PROPORTION).float()
                forward_loss = (forward_loss * mask).sum() / mask.sum().clamp(min=1)
                answers = agent.get_action_and_value(b_obs[mb], b_actions[mb])
                _, newlogprob, entropy, new_ext, new_int = answers
                ratio = (newlogprob - b_logprobs[mb]).exp()
                advantage = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                clipped = ratio.clamp(1 - CLIP_COEF, 1 + CLIP_COEF)
                pg_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                v_loss = F.mse_loss(new_ext, b_ext_returns[mb]) + F.mse_loss(new_int, b_int_returns[mb])
                loss = pg_loss - ENT_COEF * entropy.mean() + 0.5 * v_loss + forward_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(combined_parameters, 0.5)
                optimizer.step()
        end_of_step(
            inputs=[obs, storage, next_obs, next_done, rnd_next_obs, mb, mask, alive, ext_advantages, int_advantages,
                    b_actions, b_ext_returns, b_int_returns, b_advantages, advantage],
            activations=[predict, target, ratio, clipped, newlogprob, entropy, new_ext, new_int, loss],
        )  # fmt: skip
        print(f"{iteration}: curious {curiosity_rewards.mean().item():.3f}, guess {forward_loss.item():.4f}")
