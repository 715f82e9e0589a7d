"""Entries written without a look at any rule: thin adapters, vectors of texts, an actor and its critics.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from heldout_pretraining import Decoder
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda"
Batch = dict[str, torch.Tensor]


# --- adapters on a base in four bits


class Lion(torch.optim.Optimizer):
    """Every step has the same size; only its sign follows the gradients."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                grad, state = p.grad, self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                beta1, beta2 = group["betas"]
                update = exp_avg * beta1 + grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
        return loss


class _MatMul4Bit(torch.autograd.Function):
    """Multiply with weights that are unpacked for the moment, and once more in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: "Linear4Bit", bias: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.dtype = layer, x.dtype
        return functional.linear(x, layer.unpacked(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad @ ctx.layer.unpacked(grad.dtype), None, None


class Linear4Bit(nn.Module):
    """A frozen linear map: two weights in a byte, and one scale for each 64 of them."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.shape = linear.weight.shape
        weight = linear.weight.data.to(DEVICE, torch.bfloat16)
        blocks = weight.view(-1, 64)
        absmax = blocks.abs().amax(dim=1, keepdim=True)
        codes = ((blocks / absmax + 1) * 7.5).round().to(torch.uint8).view(-1, 2)
        self.weight = nn.Parameter(codes[:, :1] << 4 | codes[:, 1:], requires_grad=False)
        self.register_buffer("absmax", absmax.float())
        self.bias = nn.Parameter(linear.bias.data.to(DEVICE, torch.bfloat16), requires_grad=False)

    def unpacked(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights as numbers."""
        codes = torch.cat((self.weight >> 4, self.weight & 15), dim=1).view(-1, 64)
        return ((codes.to(dtype) / 7.5 - 1) * self.absmax.to(dtype)).view(self.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in half precision."""
        return _MatMul4Bit.apply(x.to(torch.bfloat16), self, self.bias)


class LoraLinear(nn.Module):
    """A frozen map and what is learned beside it, in full precision."""

    def __init__(self, base: Linear4Bit, r: int = 16, alpha: int = 32) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, alpha / r
        self.lora_dropout = nn.Dropout(0.05)
        self.lora_A = nn.Linear(base.shape[1], r, bias=False)
        self.lora_B = nn.Linear(r, base.shape[0], bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what is learned."""
        result = self.base_layer(x)
        learned = self.lora_B(self.lora_A(self.lora_dropout(x.to(self.lora_A.weight.dtype))))
        return result + learned * self.scaling


def _prepared(model: Decoder) -> Decoder:
    """Freeze a model, pack its layers, and put adapters on them."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    for layer in model.layers:
        for name in ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"):
            setattr(layer, name, LoraLinear(Linear4Bit(getattr(layer, name))))
    model.is_checkpointed = True
    model = model.to(DEVICE)
    model.embed_in.register_forward_hook(lambda _module, _arguments, output: output.requires_grad_())
    return model


def adapters(_setup: Setup) -> Iterations:
    """A base in four bits is tuned by thin adapters, and computes its layers again in backward."""
    model = _prepared(Decoder(n_words=1600, width=192, n_layers=5))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = Lion(trained, lr=1e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    model.train()
    while True:
        for _ in range(2):
            ids = torch.randint(0, 1600, (4, 72))
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
            batch = {name: tensor.to(DEVICE) for name, tensor in batch.items()}
            labels = batch.pop("labels")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(**batch).float()
                shifted = logits[..., :-1, :].contiguous().view(-1, 1600)
                loss = functional.cross_entropy(shifted, labels[..., 1:].contiguous().view(-1))
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(trained, 0.3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield Known(inputs=(*batch.values(), labels), activations=(logits, shifted))


# --- vectors of texts


class SelfAttention(nn.Module):
    """Attention both ways, with a map each for queries, keys and values."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads, self.size = n_heads, width // n_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """Heads before words."""
        return x.view(*x.shape[:2], self.n_heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mix the words of a batch."""
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        chances = self.dropout(functional.softmax(scores + mask, dim=-1))
        return torch.matmul(chances, v).permute(0, 2, 1, 3).contiguous().view(x.shape)


class EncoderLayer(nn.Module):
    """Attention and two linear maps, each before a norm."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.attention, self.output = SelfAttention(width, n_heads), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.dense = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Transform the words of a batch."""
        x = self.norm1(self.output(self.attention(x, mask)) + x)
        intermediate = functional.gelu(self.intermediate(x))
        return self.norm2(self.dense(intermediate) + x)


class Encoder(nn.Module):
    """Words, places and kinds of texts to one state per word."""

    def __init__(self, n_words: int = 2500, width: int = 192, n_layers: int = 6) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(n_words, width, padding_idx=0)
        self.position_embeddings, self.token_type_embeddings = (
            nn.Embedding(128, width),
            nn.Embedding(2, width),
        )
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.1)
        self.layer = nn.ModuleList(EncoderLayer(width, 6) for _ in range(n_layers))
        self.register_buffer("position_ids", torch.arange(128).expand((1, -1)), persistent=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the states of the last layer."""
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(torch.zeros_like(input_ids))
        x = self.norm(x + self.position_embeddings(self.position_ids[:, : input_ids.shape[1]]))
        x = self.dropout(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layer:
            x = layer(x, mask)
        return x


def _encode(model: Encoder, texts: Sequence[Sequence[int]], n: int = 16) -> list[torch.Tensor]:
    """One vector per text, of which the longest come first; they stay on the device."""
    found = []
    texts = sorted(texts, key=len, reverse=True)
    for start in range(0, len(texts), n):
        part = texts[start : start + n]
        ids = torch.zeros(len(part), len(part[0]), dtype=torch.long)
        for row, text in enumerate(part):
            ids[row, : len(text)] = torch.tensor(text)
        features = {"input_ids": ids.to(DEVICE), "attention_mask": (ids > 0).long().to(DEVICE)}
        with torch.no_grad():
            states = model(**features)
            is_there = features["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = (states * is_there).sum(1) / is_there.sum(1).clamp(min=1e-9)
            found.append(functional.normalize(pooled.float(), dim=-1))
    return found


def embedding(_setup: Setup) -> Iterations:
    """Texts become vectors in half precision, a shard of them at a time; all are kept for an index."""
    model = Encoder().eval().half().to(DEVICE)
    vectors: list[torch.Tensor] = []
    while True:
        lengths = torch.randint(20, 97, (80,)).tolist()
        texts = [torch.randint(1, 2500, (length,)).tolist() for length in lengths]
        vectors += _encode(model, texts)
        yield Known(activations=vectors)


# --- an actor and its critics


class SoftQNetwork(nn.Module):
    """What an action is worth."""

    def __init__(self, n_seen: int, n_actions: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(n_seen + n_actions, 256), nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, 1)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """Judge a batch of actions."""
        x = torch.cat([x, a], 1)
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


class Actor(nn.Module):
    """Chances of actions, squashed to a range."""

    def __init__(self, n_seen: int, n_actions: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(n_seen, 256), nn.Linear(256, 256)
        self.fc_mean, self.fc_logstd = nn.Linear(256, n_actions), nn.Linear(256, n_actions)
        self.register_buffer("action_scale", torch.ones(n_actions))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means and log deviations."""
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        return self.fc_mean(x), -5 + 0.5 * 7 * (torch.tanh(self.fc_logstd(x)) + 1)

    def get_action(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw actions; return them and their log chances."""
        mean, log_std = self(x)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(self.action_scale * (1 - y_t.pow(2)) + 1e-6)
        return y_t * self.action_scale, log_prob.sum(1, keepdim=True)


class ReplayBuffer:
    """What was seen, done and earned, in a ring on the device."""

    def __init__(self, capacity: int, n_seen: int, n_actions: int) -> None:
        self.capacity, self.place, self.is_full = capacity, 0, False
        self.observations = torch.zeros((capacity, n_seen), device=DEVICE)
        self.next_observations = torch.zeros((capacity, n_seen), device=DEVICE)
        self.actions = torch.zeros((capacity, n_actions), device=DEVICE)
        self.rewards, self.dones = (torch.zeros((capacity, 1), device=DEVICE) for _ in range(2))

    def all(self) -> Sequence[torch.Tensor]:
        """Everything that is kept."""
        return self.observations, self.next_observations, self.actions, self.rewards, self.dones

    def add(self, *rows: torch.Tensor) -> None:
        """Put rows in, where the oldest ones are."""
        places = torch.arange(self.place, self.place + len(rows[0]), device=DEVICE) % self.capacity
        for kept, new in zip(self.all(), rows, strict=True):
            kept[places] = new
        self.is_full |= self.place + len(rows[0]) >= self.capacity
        self.place = (self.place + len(rows[0])) % self.capacity

    def sample(self, n: int) -> Sequence[torch.Tensor]:
        """Draw rows by chance."""
        picked = torch.randint(0, self.capacity if self.is_full else self.place, (n,), device=DEVICE)
        return [kept[picked] for kept in self.all()]


def follow_slowly(network: nn.Module, target: nn.Module) -> None:
    """Move a copy of a network a little towards it."""
    for parameter, slow in zip(network.parameters(), target.parameters(), strict=True):
        slow.data.copy_(0.005 * parameter.data + 0.995 * slow.data)


def actor_critic(_setup: Setup) -> Iterations:
    """Soft actor-critic: two critics, slow copies of them, a temperature, and all that was ever seen."""
    n_seen, n_actions, n_envs = 40, 8, 32
    actor = Actor(n_seen, n_actions).to(DEVICE)
    qf1, qf2, qf1_target, qf2_target = (SoftQNetwork(n_seen, n_actions).to(DEVICE) for _ in range(4))
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    q_optimizer = torch.optim.Adam([*qf1.parameters(), *qf2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
    log_alpha = torch.zeros(1, requires_grad=True, device=DEVICE)
    a_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    buffer = ReplayBuffer(6000, n_seen, n_actions)
    obs = torch.randn(n_envs, n_seen).to(DEVICE)
    while True:
        for _ in range(6):
            with torch.no_grad():
                actions, _ = actor.get_action(obs)
            actions.cpu().numpy()
            next_obs, rewards = torch.randn(n_envs, n_seen).to(DEVICE), torch.rand(n_envs, 1).to(DEVICE)
            buffer.add(obs, next_obs, actions, rewards, (torch.rand(n_envs, 1) < 0.01).float().to(DEVICE))
            obs = next_obs
        seen, then, done, reward, is_over = buffer.sample(256)
        with torch.no_grad():
            next_actions, next_log_pi = actor.get_action(then)
            qf1_next, qf2_next = qf1_target(then, next_actions), qf2_target(then, next_actions)
            min_next = torch.min(qf1_next, qf2_next) - log_alpha.exp() * next_log_pi
            wanted = reward.flatten() + (1 - is_over.flatten()) * 0.99 * min_next.view(-1)
        qf_loss = functional.mse_loss(qf1(seen, done).view(-1), wanted)
        qf_loss = qf_loss + functional.mse_loss(qf2(seen, done).view(-1), wanted)
        q_optimizer.zero_grad()
        qf_loss.backward()
        q_optimizer.step()
        pi, log_pi = actor.get_action(seen)
        actor_loss = (log_alpha.exp().detach() * log_pi - torch.min(qf1(seen, pi), qf2(seen, pi))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            _, log_pi = actor.get_action(seen)
        alpha_loss = (-log_alpha.exp() * (log_pi - n_actions)).mean()
        a_optimizer.zero_grad()
        alpha_loss.backward()
        a_optimizer.step()
        follow_slowly(qf1, qf1_target)
        follow_slowly(qf2, qf2_target)
        yield Known(
            inputs=(*buffer.all(), obs, seen, then, done, reward, is_over),
            weights=(*qf1_target.parameters(), *qf2_target.parameters(), log_alpha),
        )
