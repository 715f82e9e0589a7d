"""A soft actor and two critics learn to steer: what happened is kept on the device, copies of the critics follow them."""

import copy

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

N_SEEN, N_ACTIONS, N_ENVS, CAPACITY, BATCH = 60, 8, 16, 10_000, 256
GAMMA, TAU = 0.99, 0.005


def mlp(n_in, n_out, hidden=400):
    return nn.Sequential(
        nn.Linear(n_in, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden - 100),
        nn.ReLU(),
        nn.Linear(hidden - 100, n_out),
    )


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(N_SEEN, 2 * N_ACTIONS)

    def forward(self, seen):
        mean, log_std = self.net(seen).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        x = normal.rsample()
        action = torch.tanh(x)
        log_prob = normal.log_prob(x) - torch.log(1 - action.square() + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)


class Critics(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(N_SEEN + N_ACTIONS, 1), mlp(N_SEEN + N_ACTIONS, 1)

    def forward(self, seen, action):
        x = torch.cat([seen, action], -1)
        return self.q1(x), self.q2(x)


class ReplayBuffer:
    def __init__(self, device):
        widths = {"seen": N_SEEN, "action": N_ACTIONS, "reward": 1, "then": N_SEEN, "done": 1}
        self.kept = {name: torch.zeros(CAPACITY, width, device=device) for name, width in widths.items()}
        self.at = self.size = 0

    def add(self, **rows):
        for name, value in rows.items():
            self.kept[name][self.at : self.at + N_ENVS] = value
        self.at = (self.at + N_ENVS) % CAPACITY
        self.size = min(self.size + N_ENVS, CAPACITY)

    def sample(self, n):
        which = torch.randint(0, self.size, (n,), device=self.kept["seen"].device)
        return [values[which] for values in self.kept.values()]


class Environments:
    """Many of them at once, on the host."""

    def __init__(self):
        self.moves, self.steering = 0.1 * torch.randn(N_SEEN, N_SEEN), torch.randn(N_ACTIONS, N_SEEN)
        self.state = torch.randn(N_ENVS, N_SEEN)

    def step(self, action):
        self.state = torch.tanh(self.state @ self.moves + action @ self.steering)
        return self.state, -self.state.square().mean(1, keepdim=True), torch.zeros(N_ENVS, 1)


torch.manual_seed(92)
device = torch.device("cuda")
actor, critics = Actor().to(device), Critics().to(device)
targets = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True, device=device)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam(critics.parameters(), lr=1e-3)
alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
buffer, environments = ReplayBuffer(device), Environments()
now = environments.state.to(device)
for step in range(40):
    with torch.no_grad():
        action, _ = actor(now)
    then, reward, done = (part.to(device) for part in environments.step(action.cpu()))
    buffer.add(seen=now, action=action, reward=reward, then=then, done=done)
    now = then
    if buffer.size < 2 * BATCH:
        continue
    seen, did, reward, after, done = sample = buffer.sample(BATCH)
    alpha = log_alpha.exp().detach()
    with torch.no_grad():
        next_action, next_log_prob = actor(after)
        q_next = torch.min(*targets(after, next_action)) - alpha * next_log_prob
        wanted = reward + GAMMA * (1 - done) * q_next
    q1, q2 = critics(seen, did)
    critic_loss = F.mse_loss(q1, wanted) + F.mse_loss(q2, wanted)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    new_action, log_prob = actor(seen)
    actor_loss = (alpha * log_prob - torch.min(*critics(seen, new_action))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    alpha_loss = -(log_alpha.exp() * (log_prob.detach() - N_ACTIONS)).mean()
    alpha_optimizer.zero_grad()
    alpha_loss.backward()
    alpha_optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(targets.parameters(), critics.parameters()):
            slow.lerp_(fast, TAU)
    print(step, critic_loss.item(), actor_loss.item(), log_alpha.item())
    end_of_step(
        inputs=[now, action, buffer.kept, sample],
        activations=[q1, q2, new_action, log_prob, critic_loss, actor_loss, alpha_loss]
        + [alpha, next_action, next_log_prob, q_next, wanted],
        weights=[log_alpha, *targets.parameters()],
    )
