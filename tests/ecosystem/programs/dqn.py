"""Deep Q-learning of a pole on a cart; the replay memory lies on the device."""

import math
import random

import torch
import torch.nn as nn
import torch.optim as optim
from own_count import print_count

device = torch.device("cuda")
BATCH, GAMMA, TAU, LR, CAPACITY = 128, 0.99, 0.005, 1e-4, 20_000


class CartPole:
    """The textbook's equations, Euler's method, 20 ms a step."""

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, v, angle, spin = self.state
        force = 10.0 if action == 1 else -10.0
        sin, cos = math.sin(angle), math.cos(angle)
        inner = (force + 0.05 * spin**2 * sin) / 1.1
        pull = (9.8 * sin - cos * inner) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = inner - 0.05 * pull * cos / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * pull]
        done = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.2095
        return self.state, 1.0, done


class Replay:
    def __init__(self, capacity):
        self.states = torch.zeros(capacity, 4, device=device)
        self.next_states = torch.zeros(capacity, 4, device=device)
        self.actions = torch.zeros(capacity, 1, dtype=torch.long, device=device)
        self.rewards = torch.zeros(capacity, device=device)
        self.done = torch.zeros(capacity, dtype=torch.bool, device=device)
        self.capacity, self.position, self.size = capacity, 0, 0

    def push(self, state, action, reward, next_state, done):
        i = self.position
        self.states[i] = state
        self.actions[i] = action
        self.rewards[i] = reward
        self.next_states[i] = next_state
        self.done[i] = done
        self.position = (i + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def sample(self, n):
        i = torch.randint(0, self.size, (n,), device=device)
        return self.states[i], self.actions[i], self.rewards[i], self.next_states[i], self.done[i]

    def tensors(self):
        return [self.states, self.next_states, self.actions, self.rewards, self.done]


def q_network():
    return nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))


random.seed(0)
torch.manual_seed(0)
policy_net = q_network().to(device)
target_net = q_network().to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = Replay(CAPACITY)
env = CartPole()
steps_done = 0


def select_action(state):
    global steps_done
    eps = 0.05 + 0.85 * math.exp(-steps_done / 1000)
    steps_done += 1
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)


def optimize_model():
    if memory.size < BATCH:
        return
    states, actions, rewards, next_states, done = memory.sample(BATCH)
    q = policy_net(states).gather(1, actions)
    with torch.no_grad():
        best = target_net(next_states).max(1).values
        best[done] = 0.0
    loss = nn.SmoothL1Loss()(q, (rewards + GAMMA * best).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    print_count([policy_net, target_net], optimizer, replay=memory.tensors())
    with torch.no_grad():
        for target, source in zip(target_net.parameters(), policy_net.parameters()):
            target.mul_(1 - TAU).add_(source, alpha=TAU)


state = torch.tensor(env.reset(), dtype=torch.float32, device=device).unsqueeze(0)
for t in range(BATCH + 5):
    action = select_action(state)
    observation, reward, terminated = env.step(action.item())
    next_state = torch.tensor(observation, dtype=torch.float32, device=device).unsqueeze(0)
    memory.push(state, action, reward, next_state, terminated)
    state = next_state
    optimize_model()
    if terminated:
        state = torch.tensor(env.reset(), dtype=torch.float32, device=device).unsqueeze(0)
print("done", memory.size)
