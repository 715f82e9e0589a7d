"""A team learns to fight together by QMIX, as PyMARL trains it: recurrent agents that share weights, a mixer whose weights depend on the state, whole episodes from a buffer on the host, targets copied now and then."""

import copy
from types import SimpleNamespace as SN

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step

args = SN(
    n_agents=8,
    n_actions=14,
    obs_shape=176,
    state_shape=322,
    episode_limit=20,
    rnn_hidden_dim=512,
    mixing_embed_dim=64,
    hypernet_embed=512,
    batch_size_run=4,
    batch_size=12,
    buffer_size=64,
    lr=5e-4,
    gamma=0.99,
    target_update_interval=2,
    device="cuda" if torch.cuda.is_available() else "cpu",
)


class RNNAgent(nn.Module):
    def __init__(self, input_shape, args):
        super().__init__()
        self.fc1 = nn.Linear(input_shape, args.rnn_hidden_dim)
        self.rnn = nn.GRUCell(args.rnn_hidden_dim, args.rnn_hidden_dim)
        self.fc2 = nn.Linear(args.rnn_hidden_dim, args.n_actions)

    def init_hidden(self):
        return self.fc1.weight.new_zeros(1, self.rnn.hidden_size)

    def forward(self, inputs, hidden_state):
        h = self.rnn(F.relu(self.fc1(inputs)), hidden_state)
        return self.fc2(h), h


class QMixer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_agents, self.embed_dim = args.n_agents, args.mixing_embed_dim

        def hypernet(width, n_out):
            return nn.Sequential(nn.Linear(args.state_shape, width), nn.ReLU(), nn.Linear(width, n_out))

        self.hyper_w_1 = hypernet(args.hypernet_embed, self.embed_dim * args.n_agents)
        self.hyper_w_final = hypernet(args.hypernet_embed, self.embed_dim)
        self.hyper_b_1 = nn.Linear(args.state_shape, self.embed_dim)
        self.V = hypernet(self.embed_dim, 1)

    def forward(self, agent_qs, states):
        bs = agent_qs.size(0)
        states, agent_qs = states.reshape(-1, states.size(-1)), agent_qs.reshape(-1, 1, self.n_agents)
        w1 = self.hyper_w_1(states).abs().view(-1, self.n_agents, self.embed_dim)
        b1 = self.hyper_b_1(states).view(-1, 1, self.embed_dim)
        hidden = F.elu(torch.bmm(agent_qs, w1) + b1)
        w_final = self.hyper_w_final(states).abs().view(-1, self.embed_dim, 1)
        y = torch.bmm(hidden, w_final) + self.V(states).view(-1, 1, 1)
        return y.view(bs, -1, 1)


class BasicMAC:
    def __init__(self, args):
        self.args, self.eye = args, torch.eye(args.n_agents, device=args.device)
        # What it sees, what it did last, and which one it is.
        self.agent = RNNAgent(args.obs_shape + args.n_actions + args.n_agents, args).to(args.device)

    def init_hidden(self, batch_size):
        self.hidden = self.agent.init_hidden().expand(batch_size * self.args.n_agents, -1)

    def forward(self, obs, last_action):
        ids = self.eye.expand(len(obs), -1, -1)
        inputs = torch.cat([obs, last_action, ids], dim=-1).flatten(0, 1)
        q, self.hidden = self.agent(inputs, self.hidden)
        return q.view(len(obs), self.args.n_agents, -1)

    @torch.no_grad()
    def select_actions(self, obs, last_action, avail, epsilon):
        q = self.forward(obs, last_action).masked_fill(avail == 0, -float("inf"))
        by_chance = torch.distributions.Categorical(avail.float()).sample()
        return torch.where(torch.rand_like(by_chance, dtype=torch.float) < epsilon, by_chance, q.argmax(-1))


class Skirmish:
    """Some battles at once on the host; only the shapes are those of a game."""

    def __init__(self, n):
        self.n = n

    def observe(self):
        avail = (torch.rand(self.n, args.n_agents, args.n_actions) < 0.7).int()
        avail[..., 1] = 1
        obs = torch.randn(self.n, args.n_agents, args.obs_shape)
        return {"obs": obs, "state": torch.randn(self.n, args.state_shape), "avail": avail}

    def step(self, actions):
        reward = torch.rand(self.n, 1) * (actions > 5).float().mean(1, keepdim=True)
        return reward, torch.rand(self.n, 1) < 0.03


def run_episodes(mac, epsilon):
    env, steps = Skirmish(args.batch_size_run), []
    mac.init_hidden(args.batch_size_run)
    last = torch.zeros(args.batch_size_run, args.n_agents, args.n_actions, device=args.device)
    alive = torch.ones(args.batch_size_run, 1)
    for _ in range(args.episode_limit):
        seen = env.observe()
        obs, avail = seen["obs"].to(args.device), seen["avail"].to(args.device)
        actions = mac.select_actions(obs, last, avail, epsilon)
        last = F.one_hot(actions, args.n_actions).float()
        reward, terminated = env.step(actions.cpu())
        happened = {"actions": actions.cpu(), "reward": reward, "terminated": terminated, "filled": alive}
        steps.append(seen | happened)
        alive = alive * ~terminated
    return {key: torch.stack([step[key] for step in steps], 1) for key in steps[0]}


class QLearner:
    def __init__(self, mac, args):
        self.args, self.mac = args, mac
        self.mixer = QMixer(args).to(args.device)
        self.params = [*mac.agent.parameters(), *self.mixer.parameters()]
        self.optimiser = torch.optim.RMSprop(self.params, lr=args.lr, alpha=0.99, eps=1e-5)
        self.target_mac, self.target_mixer = copy.deepcopy(mac), copy.deepcopy(self.mixer)

    def unroll(self, mac, batch, onehot):
        mac.init_hidden(len(batch["obs"]))
        last, out = torch.zeros_like(onehot[:, 0]), []
        for t in range(batch["obs"].shape[1]):
            out.append(mac.forward(batch["obs"][:, t], last))
            last = onehot[:, t]
        return torch.stack(out, dim=1)

    def train(self, batch):
        onehot = F.one_hot(batch["actions"], self.args.n_actions).float()
        mask = batch["filled"][:, :-1]
        mac_out = self.unroll(self.mac, batch, onehot)
        chosen = mac_out[:, :-1].gather(3, batch["actions"][:, :-1, :, None]).squeeze(3)
        with torch.no_grad():
            target_out = self.unroll(self.target_mac, batch, onehot)[:, 1:]
            best = mac_out.detach().masked_fill(batch["avail"] == 0, -9999999)[:, 1:].argmax(3, keepdim=True)
            target_max = self.target_mixer(target_out.gather(3, best).squeeze(3), batch["state"][:, 1:])
            going = 1 - batch["terminated"][:, :-1].float()
            targets = batch["reward"][:, :-1] + self.args.gamma * going * target_max
        td_error = (self.mixer(chosen, batch["state"][:, :-1]) - targets) * mask
        loss = (td_error**2).sum() / mask.sum()
        self.optimiser.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.params, 10)
        self.optimiser.step()
        return loss.item(), grad_norm.item()


torch.manual_seed(1004)
mac = BasicMAC(args)
learner, buffer, episode = QLearner(mac, args), [], 0
for step in range(12):
    episodes = run_episodes(mac, epsilon=max(0.05, 1 - step / 10))
    buffer += [{k: v[i] for k, v in episodes.items()} for i in range(args.batch_size_run)]
    buffer = buffer[-args.buffer_size :]
    if len(buffer) < args.batch_size:
        continue
    chosen = torch.randperm(len(buffer))[: args.batch_size].tolist()
    batch = {k: torch.stack([buffer[i][k] for i in chosen]).to(args.device) for k in buffer[0]}
    loss, grad_norm = learner.train(batch)
    episode += 1
    if episode % args.target_update_interval == 0:
        learner.target_mac.agent.load_state_dict(mac.agent.state_dict())
        learner.target_mixer.load_state_dict(learner.mixer.state_dict())
    print(f"{step}: loss {loss:.4f}, gradient {grad_norm:.2f}")
    target = [*learner.target_mac.agent.parameters(), *learner.target_mixer.parameters()]
    macs = (mac, learner.target_mac)
    end_of_step(inputs=[batch, [m.eye for m in macs]], activations=[m.hidden for m in macs], weights=target)
