"""Entries that no rule was or will be changed for: a world that is dreamed of, and weights that learn fast.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.distributions import Normal, OneHotCategoricalStraightThrough, kl_divergence
from torch.func import functional_call
from torch.nn import functional

DEVICE = "cuda"
Tensors = dict[str, torch.Tensor]


# --- dreamed of


class LaProp:
    """Clips every gradient by its weight's norm, divides it by its usual size, and only then averages."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, clip: float = 0.3) -> None:
        self.params, self.lr, self.clip, self.count = list(params), lr, clip, 0
        self.mu = [torch.zeros_like(p) for p in self.params]
        self.nu = [torch.zeros_like(p) for p in self.params]

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        """Go back from a loss and move; return the norm of the gradients."""
        for p in self.params:
            p.grad = None
        loss.backward()
        return self._move()

    @torch.no_grad()
    def _move(self) -> torch.Tensor:
        self.count += 1
        norms = []
        for p, mu, nu in zip(self.params, self.mu, self.nu, strict=True):
            norm = p.grad.norm()
            bound = self.clip * torch.clamp(p.norm(), min=1e-3)
            grad = p.grad * torch.clamp(bound / (norm + 1e-6), max=1.0)
            nu.mul_(0.999).addcmul_(grad, grad, value=0.001)
            root = torch.sqrt(nu / (1 - 0.999**self.count)) + 1e-20
            mu.mul_(0.9).add_(grad / root, alpha=0.1)
            p.sub_(self.lr * mu / (1 - 0.9**self.count))
            norms.append(norm)
        return torch.stack(norms).norm()


class Replay:
    """Everything that was seen and done, in a ring on the device; images are bytes."""

    def __init__(self, capacity: int, n_actions: int, size: int) -> None:
        self.capacity, self.place, self.n_kept = capacity, 0, 0
        self.data = {
            "image": torch.zeros(capacity, 3, size, size, dtype=torch.uint8, device=DEVICE),
            "action": torch.zeros(capacity, n_actions, device=DEVICE),
            "reward": torch.zeros(capacity, device=DEVICE),
            "is_first": torch.zeros(capacity, device=DEVICE),
        }

    def add(self, **step: torch.Tensor) -> None:
        """Put the step of all environments where the oldest one is."""
        n = len(step["reward"])
        for name, value in step.items():
            self.data[name][self.place : self.place + n] = value
        self.place = (self.place + n) % self.capacity
        self.n_kept = min(self.n_kept + n, self.capacity)

    def sample(self, n: int, length: int, n_envs: int) -> Tensors:
        """Draw pieces of what single environments went through, time first."""
        start = torch.randint(0, max(1, self.n_kept - length * n_envs), (n,), device=DEVICE)
        rows = start[None] + n_envs * torch.arange(length, device=DEVICE)[:, None]
        return {name: kept[rows] for name, kept in self.data.items()}


def mlp(n_in: int, n_out: int, width: int = 192, n_layers: int = 2) -> nn.Sequential:
    """Linear maps with norms between."""
    layers: list[nn.Module] = []
    for number in range(n_layers):
        layers += [nn.Linear(width if number else n_in, width, bias=False), nn.LayerNorm(width), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(width, n_out))


class RSSM(nn.Module):
    """A state of two parts: one follows from the past, the other is drawn, with or without a look."""

    def __init__(self, n_actions: int, embed: int, deter: int = 192, groups: int = 16) -> None:
        super().__init__()
        self.deter, self.groups = deter, groups
        self.inp = nn.Sequential(nn.Linear(groups**2 + n_actions, deter), nn.LayerNorm(deter), nn.SiLU())
        self.cell = nn.GRUCell(deter, deter)
        self.prior_net, self.post_net = mlp(deter, groups**2), mlp(deter + embed, groups**2, n_layers=1)

    def initial(self, n: int) -> Tensors:
        """The state before anything happened."""
        return {
            "deter": torch.zeros(n, self.deter, device=DEVICE),
            "stoch": torch.zeros(n, self.groups**2, device=DEVICE),
        }

    def dist(self, logit: torch.Tensor) -> OneHotCategoricalStraightThrough:
        """What the drawn part is drawn from, a little of it even."""
        probs = 0.99 * logit.unflatten(-1, (self.groups, self.groups)).softmax(-1) + 0.01 / self.groups
        return OneHotCategoricalStraightThrough(probs=probs, validate_args=False)

    def img_step(self, state: Tensors, action: torch.Tensor) -> Tensors:
        """Go on with closed eyes."""
        x = self.inp(torch.cat([state["stoch"], action], -1))
        deter = self.cell(x, state["deter"])
        logit = self.prior_net(deter)
        return {"deter": deter, "stoch": self.dist(logit).rsample().flatten(-2), "logit": logit}

    def obs_step(
        self, state: Tensors, action: torch.Tensor, embed: torch.Tensor, first: torch.Tensor
    ) -> tuple[Tensors, Tensors]:
        """Go on, then look; return the state after and before that."""
        keep = (1.0 - first)[:, None]
        state = {name: state[name] * keep for name in ("deter", "stoch")}
        prior = self.img_step(state, action * keep)
        logit = self.post_net(torch.cat([prior["deter"], embed], -1))
        post = {"deter": prior["deter"], "stoch": self.dist(logit).rsample().flatten(-2), "logit": logit}
        return post, prior

    def observe(self, embed: torch.Tensor, action: torch.Tensor, first: torch.Tensor) -> Sequence[Tensors]:
        """Follow pieces of what happened."""
        state, found = self.initial(embed.shape[1]), []
        for step in zip(action, embed, first, strict=True):
            state, prior = self.obs_step(state, *step)
            found.append((state, prior))
        return [
            {name: torch.stack([part[name] for part in row]) for name in row[0]}
            for row in zip(*found, strict=True)
        ]

    def kl(self, post: Tensors, prior: Tensors) -> torch.Tensor:
        """How much the look tells, where each side is brought to the other."""
        one = kl_divergence(self.dist(post["logit"].detach()), self.dist(prior["logit"])).sum(-1)
        other = kl_divergence(self.dist(post["logit"]), self.dist(prior["logit"].detach())).sum(-1)
        return 0.5 * torch.clamp(one, min=1.0) + 0.1 * torch.clamp(other, min=1.0)


def features(state: Tensors) -> torch.Tensor:
    """Both parts of a state."""
    return torch.cat([state["stoch"], state["deter"]], -1)


class WorldModel(nn.Module):
    """Sees images, keeps a state, and tells from it image, reward and what comes next."""

    def __init__(self, n_actions: int, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_in, n_out in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(n_in, n_out, 4, 2, 1), nn.GroupNorm(1, n_out), nn.SiLU()]
        self.encoder = nn.Sequential(*layers, nn.Flatten())
        self.rssm = RSSM(n_actions, 4 * width * 16)
        n_state = self.rssm.groups**2 + self.rssm.deter
        layers = [nn.Linear(n_state, 4 * width * 16), nn.Unflatten(-1, (4 * width, 4, 4))]
        for n_in, n_out in ((4 * width, 2 * width), (2 * width, width)):
            layers += [nn.ConvTranspose2d(n_in, n_out, 4, 2, 1), nn.GroupNorm(1, n_out), nn.SiLU()]
        self.decoder = nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1))
        self.reward = mlp(n_state, 1)

    def loss(self, data: Tensors) -> tuple[torch.Tensor, Tensors, Tensors]:
        """Return the loss, the states that were inferred, and metrics."""
        image = data["image"].float() / 255.0 - 0.5
        embed = self.encoder(image.flatten(0, 1)).unflatten(0, image.shape[:2])
        post, prior = self.rssm.observe(embed, data["action"], data["is_first"])
        post["feat"] = feat = features(post)
        losses = {
            "image": (self.decoder(feat.flatten(0, 1)) - image.flatten(0, 1)).square().sum((1, 2, 3)),
            "reward": (self.reward(feat).squeeze(-1) - data["reward"]).square(),
            "kl": self.rssm.kl(post, prior),
        }
        total = sum(value.mean() for value in losses.values())
        return total, post, {name: value.detach().mean() for name, value in losses.items()}


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Let modules stay as they are meanwhile."""
    for module in modules:
        module.requires_grad_(requires_grad=False)
    yield
    for module in modules:
        module.requires_grad_(requires_grad=True)


class Dreamer(nn.Module):
    """A world model, who acts in it, and who judges that."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.wm = WorldModel(n_actions)
        n_state = self.wm.rssm.groups**2 + self.wm.rssm.deter
        self.actor, self.critic = mlp(n_state, 2 * n_actions), mlp(n_state, 1)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(requires_grad=False)
        self.to(DEVICE)
        self.model_opt = LaProp(self.wm.parameters(), 4e-5)
        self.actor_opt, self.critic_opt = (LaProp(m.parameters(), 3e-5) for m in (self.actor, self.critic))

    def policy(self, feat: torch.Tensor) -> Normal:
        """What to do."""
        mean, std = self.actor(feat).chunk(2, -1)
        return Normal(torch.tanh(mean), 0.9 * torch.sigmoid(std) + 0.1, validate_args=False)

    def forward(
        self, image: torch.Tensor, first: torch.Tensor, state: Tensors, action: torch.Tensor
    ) -> tuple[Tensors, torch.Tensor]:
        """Look at images and choose what to do."""
        embed = self.wm.encoder(image.float() / 255.0 - 0.5)
        state, _ = self.wm.rssm.obs_step(state, action, embed, first)
        return state, self.policy(features(state)).sample()

    def imagine(self, post: Tensors, horizon: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
        """Go on from every state with closed eyes; return all states, and how uncertain the actions were."""
        state = {name: value.detach().flatten(0, 1) for name, value in post.items()}
        feats, entropies = [state["feat"]], []
        for _ in range(horizon):
            choice = self.policy(feats[-1].detach())
            state = self.wm.rssm.img_step(state, choice.rsample())
            feats.append(features(state))
            entropies.append(choice.entropy().sum(-1))
        return torch.stack(feats), torch.stack(entropies)

    def train_behavior(self, post: Tensors) -> Tensors:
        """Let the actor and the critic learn from what is imagined."""
        with frozen(self.wm, self.critic):
            feats, entropies = self.imagine(post)
            reward, value = self.wm.reward(feats).squeeze(-1), self.critic(feats).squeeze(-1)
            last = value[-1]
            returns: list[torch.Tensor] = []
            for r, v in zip(reward[1:].flip(0), value[1:].flip(0), strict=True):
                last = r + 0.99 * (0.05 * v + 0.95 * last)
                returns.insert(0, last)
            wanted = torch.stack(returns)
            actor_loss = -(wanted - value[:-1]).mean() - 3e-4 * entropies.mean()
            actor_norm = self.actor_opt(actor_loss)
        seen = feats[:-1].detach()
        value = self.critic(seen).squeeze(-1)
        with torch.no_grad():
            slow = self.slow_critic(seen).squeeze(-1)
        critic_loss = (value - wanted.detach()).square().mean() + 0.1 * (value - slow).square().mean()
        critic_norm = self.critic_opt(critic_loss)
        with torch.no_grad():
            for s, d in zip(self.slow_critic.parameters(), self.critic.parameters(), strict=True):
                s.data.mul_(0.98).add_(d.data, alpha=0.02)
        losses = {"actor": actor_loss.detach(), "critic": critic_loss.detach()}
        return losses | {"actor_norm": actor_norm, "critic_norm": critic_norm}


def world_model(_setup: Setup) -> Iterations:
    """A world is learned from bytes on the device; actor and critic learn in dreams; an optimizer by hand."""
    n_envs, n_actions, size = 8, 6, 32
    agent, replay = Dreamer(n_actions), Replay(4800, n_actions, size)
    state, action = agent.wm.rssm.initial(n_envs), torch.zeros(n_envs, n_actions, device=DEVICE)
    while True:
        for _ in range(2 if replay.n_kept else 10):
            image = torch.randint(0, 256, (n_envs, 3, size, size), dtype=torch.uint8).to(DEVICE)
            reward, first = torch.rand(n_envs).to(DEVICE), (torch.rand(n_envs) < 0.02).float().to(DEVICE)
            replay.add(image=image, action=action, reward=reward, is_first=first)
            with torch.no_grad():
                state, action = agent(image, first, state, action)
            action.cpu().numpy()
        data = replay.sample(24, 7, n_envs)
        model_loss, post, metrics = agent.wm.loss(data)
        metrics["model_norm"] = agent.model_opt(model_loss)
        metrics |= agent.train_behavior(post)
        optimizers = (agent.model_opt, agent.actor_opt, agent.critic_opt)
        yield Known(
            inputs=(*replay.data.values(), *data.values(), image, reward, first),
            states=[state for optimizer in optimizers for state in (*optimizer.mu, *optimizer.nu)],
            activations=(*state.values(), action, *post.values(), model_loss, *metrics.values()),
        )


# --- learn fast


class ConvNet(nn.Module):
    """Four convolutions with norms that look at the batch only, and one linear map."""

    def __init__(self, n_way: int, width: int = 64) -> None:
        super().__init__()
        blocks = [
            nn.Sequential(
                nn.Conv2d(width if number else 3, width, 3, 2, 1),
                nn.BatchNorm2d(width, track_running_stats=False),
                nn.ReLU(),
            )
            for number in range(4)
        ]
        self.features, self.classifier = nn.Sequential(*blocks), nn.Linear(9 * width, n_way)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes of an episode."""
        return self.classifier(self.features(x).flatten(1))


class MetaLearner:
    """Weights from which a few steps lead to any task, and how long these steps are."""

    def __init__(self, n_way: int, n_inner: int = 2, inner_lr: float = 0.05) -> None:
        self.n_inner = n_inner
        self.net = ConvNet(n_way).to(DEVICE)
        self.rates = nn.ParameterDict(
            {
                name.replace(".", "-"): nn.Parameter(torch.full((n_inner,), inner_lr))
                for name, _ in self.net.named_parameters()
            }
        ).to(DEVICE)
        self.optimizer = torch.optim.Adam([*self.net.parameters(), *self.rates.parameters()], lr=1e-3)

    def adapted(self, x: torch.Tensor, y: torch.Tensor, *, is_second_order: bool) -> Tensors:
        """Weights after a few steps on the examples of a task."""
        fast = dict(self.net.named_parameters())
        for step in range(self.n_inner):
            loss = functional.cross_entropy(functional_call(self.net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=is_second_order)
            fast = {
                name: weight - self.rates[name.replace(".", "-")][step] * grad
                for (name, weight), grad in zip(fast.items(), grads, strict=True)
            }
        return fast

    def outer_step(self, tasks: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """Learn from how well the adapted weights do on other examples; return how well that is."""
        losses, n_right = [], torch.zeros((), device=DEVICE)
        for x_spt, y_spt, x_qry, y_qry in tasks:
            fast = self.adapted(x_spt, y_spt, is_second_order=True)
            logits = functional_call(self.net, fast, (x_qry,))
            losses.append(functional.cross_entropy(logits, y_qry))
            n_right += (logits.detach().argmax(1) == y_qry).float().mean()
        self.optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        nn.utils.clip_grad_value_(self.net.parameters(), 10.0)
        self.optimizer.step()
        return n_right / len(tasks)

    def evaluate(self, x_spt: torch.Tensor, y_spt: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
        """How many examples of a new task are right after adapting to it."""
        fast = self.adapted(x_spt, y_spt, is_second_order=False)
        with torch.no_grad():
            return float((functional_call(self.net, fast, (x,)).argmax(1) == y).float().mean())


def _episode(n_way: int, n_shot: int, n_query: int, size: int = 40) -> list[torch.Tensor]:
    """Examples of a few classes to learn from, and others to be asked about."""
    means, found = torch.randn(n_way, 3, 1, 1), []
    for n in (n_shot, n_query):
        y = torch.arange(n_way).repeat_interleave(n)[torch.randperm(n_way * n)]
        found += [(means[y] + torch.randn(n_way * n, 3, size, size)).to(DEVICE), y.to(DEVICE)]
    return found


def meta_learning(_setup: Setup) -> Iterations:
    """Steps on small tasks are part of forward, and backward goes through them; then a task for a test."""
    learner, curve = MetaLearner(5), []
    while True:
        tasks = [_episode(5, 5, 6) for _ in range(2)]
        accuracy = learner.outer_step(tasks)
        held_out = _episode(5, 5, 6)
        curve.append(learner.evaluate(*held_out))
        yield Known(
            inputs=[tensor for task in (*tasks, held_out) for tensor in task], activations=(accuracy,)
        )
