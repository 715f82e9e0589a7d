"""Proximal policy optimization: rollouts are gathered on the device, and learned from in shuffled parts."""

import torch
from programs import end_of_step
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(29)
device = "cuda"
N_STEPS, N_ENVIRONMENTS, N_FEATURES = 64, 32, 256


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(N_FEATURES, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
        self.actor, self.critic = nn.Linear(512, 18), nn.Linear(512, 1)

    def forward(self, seen, action=None):
        hidden = self.body(seen)
        policy = Categorical(logits=self.actor(hidden))
        action = policy.sample() if action is None else action
        return action, policy.log_prob(action), policy.entropy(), self.critic(hidden).squeeze(-1)


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
observations = torch.zeros(N_STEPS, N_ENVIRONMENTS, N_FEATURES, device=device)
actions = torch.zeros(N_STEPS, N_ENVIRONMENTS, dtype=torch.long, device=device)
log_probs, rewards, values = (torch.zeros(N_STEPS, N_ENVIRONMENTS, device=device) for _ in range(3))

now = torch.randn(N_ENVIRONMENTS, N_FEATURES).to(device)
for _ in range(4):
    for step in range(N_STEPS):
        observations[step] = now
        with torch.no_grad():
            actions[step], log_probs[step], _, values[step] = agent(now)
        rewards[step] = torch.rand(N_ENVIRONMENTS).to(device)
        now = torch.randn(N_ENVIRONMENTS, N_FEATURES).to(device)
    with torch.no_grad():
        following = agent(now)[3]
        advantages = torch.zeros_like(rewards)
        last = 0
        for step in reversed(range(N_STEPS)):
            delta = rewards[step] + 0.99 * following - values[step]
            advantages[step] = last = delta + 0.99 * 0.95 * last
            following = values[step]
        returns = advantages + values
    everything = (observations.flatten(0, 1), actions.flatten(), log_probs.flatten(), advantages.flatten())
    for _ in range(2):
        for part in torch.randperm(N_STEPS * N_ENVIRONMENTS, device=device).split(512):
            seen, action, before, advantage = (tensor[part] for tensor in everything)
            _, log_prob, entropy, value = agent(seen, action)
            ratio = (log_prob - before).exp()
            clipped = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            error = 0.5 * (value - returns.flatten()[part]).square().mean()
            loss = clipped + 0.5 * error - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    end_of_step(
        inputs=[now, observations, actions, log_probs, rewards, values, advantages, returns]
        + [seen, action, before, advantage, part],
        activations=[log_prob, entropy, value, ratio, loss],
    )
