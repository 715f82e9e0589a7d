"""Entries that no rule was or will be changed for: bytes read by a state space, words guessed ahead.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda")
State = tuple[torch.Tensor, torch.Tensor]


# --- a state space


def orthogonalized(update: torch.Tensor, n_steps: int = 5) -> torch.Tensor:
    """Bring all singular values of a matrix near one, by Newton and Schulz, in half precision."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.bfloat16()
    is_tall = x.size(-2) > x.size(-1)
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Matrices move along their orthogonalized momentum, everything else as Adam has it."""

    def __init__(self, matrices: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> None:
        super().__init__(
            [
                {"params": list(matrices), "lr": 0.02, "momentum": 0.95, "use_muon": True},
                {"params": list(others), "lr": 3e-4, "betas": (0.9, 0.95), "use_muon": False},
            ],
            {"weight_decay": 0.01},
        )

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
                update = self._by_momentum(p, group) if group["use_muon"] else self._by_adam(p, group)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.reshape(p.shape), alpha=-group["lr"])
        return loss

    def _by_momentum(self, p: nn.Parameter, group: dict[str, Any]) -> torch.Tensor:
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p)
        buffer = state["momentum_buffer"]
        buffer.lerp_(p.grad, 1 - group["momentum"])
        update = p.grad.lerp(buffer, group["momentum"])
        update = orthogonalized(update.flatten(1))
        return update * max(1.0, update.size(-2) / update.size(-1)) ** 0.5

    def _by_adam(self, p: nn.Parameter, group: dict[str, Any]) -> torch.Tensor:
        state = self.state[p]
        if len(state) == 0:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(p.grad, 1 - beta1)
        state["exp_avg_sq"].lerp_(p.grad.square(), 1 - beta2)
        mean = state["exp_avg"] / (1 - beta1 ** state["step"])
        square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
        return mean / (square.sqrt() + 1e-8)


class MambaBlock(nn.Module):
    """A short convolution, then a recurrence whose coefficients depend on what is read."""

    def __init__(self, d_model: int, d_state: int, d_conv: int = 4, expand: int = 2) -> None:
        super().__init__()
        self.d_inner, self.d_state, self.d_conv = expand * d_model, d_state, d_conv
        self.dt_rank = math.ceil(d_model / 16)
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        rates = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log, self.D = nn.Parameter(torch.log(rates)), nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def forward(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Transform a piece of text, and return the state after it."""
        tail, h = state
        u, gate = self.in_proj(x).chunk(2, dim=-1)
        u = torch.cat((tail, u.transpose(1, 2)), dim=-1)
        tail = u[..., 1 - self.d_conv :]
        u = functional.silu(self.conv1d(u)).transpose(1, 2)
        y, h = self.scan(u, h)
        return self.out_proj(y * functional.silu(gate)), (tail, h)

    def scan(self, u: torch.Tensor, h: torch.Tensor) -> State:
        """Go through the times one by one."""
        dt, b, c = self.x_proj(u).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = functional.softplus(self.dt_proj(dt))
        decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.A_log.float()))
        drive = dt.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        ys = []
        for decay_t, drive_t, c_t in zip(decay.unbind(1), drive.unbind(1), c.unbind(1), strict=True):
            h = decay_t * h + drive_t
            ys.append(torch.einsum("bdn,bn->bd", h, c_t))
        return torch.stack(ys, dim=1) + u * self.D, h


class Mamba(nn.Module):
    """A model of bytes that carries its states from piece to piece."""

    def __init__(self, d_model: int = 192, n_layer: int = 4, d_state: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, d_model)
        self.layers = nn.ModuleList(MambaBlock(d_model, d_state) for _ in range(n_layer))
        self.norms = nn.ModuleList(nn.RMSNorm(d_model) for _ in range(n_layer))
        self.norm_f, self.lm_head = nn.RMSNorm(d_model), nn.Linear(d_model, 256, bias=False)

    def initial_states(self, n: int) -> list[State]:
        """States before anything was read."""
        return [
            (
                torch.zeros(n, layer.d_inner, layer.d_conv - 1, device=DEVICE),
                torch.zeros(n, layer.d_inner, layer.d_state, device=DEVICE),
            )
            for layer in self.layers
        ]

    def forward(self, piece: torch.Tensor, states: list[State]) -> tuple[torch.Tensor, list[State]]:
        """Return the logits of every next byte, and the states after the piece."""
        x, after = self.embedding(piece), []
        for layer, norm, state in zip(self.layers, self.norms, states, strict=True):
            y, state = layer(norm(x), state)
            x = x + y
            after.append(state)
        return self.lm_head(self.norm_f(x)), after


def state_space(_setup: Setup) -> Iterations:
    """Bytes that lie on the device are read in pieces, states go on, matrices move by Muon."""
    n, length = 8, 40
    model = Mamba().to(DEVICE)
    matrices = [p for name, p in model.named_parameters() if name.endswith("proj.weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("proj.weight")]
    optimizer = Muon(matrices, others)
    corpus = torch.randint(0, 256, (n, 20_000), dtype=torch.uint8).to(DEVICE)
    smoothed = torch.tensor(math.log(256), device=DEVICE)
    place, states = 0, model.initial_states(n)
    while True:
        if place + length + 1 > corpus.shape[1]:
            place, states = 0, model.initial_states(n)
        piece = corpus[:, place : place + length + 1].long()
        logits, states = model(piece[:, :-1], states)
        loss = functional.cross_entropy(logits.reshape(-1, 256), piece[:, 1:].reshape(-1))
        loss.backward()
        states = [(tail.detach(), h.detach()) for tail, h in states]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        smoothed.lerp_(loss.detach(), 0.02)
        place += length
        yield Known(
            inputs=(corpus, piece),
            activations=(logits, loss, smoothed, *(tensor for state in states for tensor in state)),
        )


# --- guessed ahead


@dataclass
class ModelArgs:
    """Sizes of a model."""

    dim: int
    n_layers: int
    n_heads: int
    hidden_dim: int
    vocab_size: int = 4096
    max_seq_len: int = 1024

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.dim // self.n_heads


def rotated(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers, as complex ones are multiplied."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cos, sin = freqs[..., 0], freqs[..., 1]
    turned = torch.stack(
        (pairs[..., 0] * cos - pairs[..., 1] * sin, pairs[..., 1] * cos + pairs[..., 0] * sin), dim=-1
    )
    return turned.flatten(-2).type_as(x)


class TransformerBlock(nn.Module):
    """Attention to a cache, and a gated network."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.wqkv = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)
        self.w13 = nn.Linear(args.dim, 2 * args.hidden_dim, bias=False)
        self.w2 = nn.Linear(args.hidden_dim, args.dim, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(args.dim), nn.RMSNorm(args.dim)

    def attend(
        self,
        x: torch.Tensor,
        cache: torch.Tensor,
        input_pos: torch.Tensor,
        freqs: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Put keys and values of the new words in the cache, and attend to all of it."""
        n, length, dim = x.shape
        q, k, v = self.wqkv(x).view(n, length, 3, self.args.n_heads, self.args.head_dim).unbind(2)
        q, k = (rotated(part.transpose(1, 2), freqs) for part in (q, k))
        cache[0][:, :, input_pos] = k
        cache[1][:, :, input_pos] = v.transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
        return self.wo(y.transpose(1, 2).contiguous().view(n, length, dim))

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        """Transform the new words."""
        h = x + self.attend(self.attention_norm(x), *rest)
        gate, up = self.w13(self.ffn_norm(h)).chunk(2, dim=-1)
        return h + self.w2(functional.silu(gate) * up)


class Llama(nn.Module):
    """A language model whose cache is one tensor that is made before anything is read."""

    cache: torch.Tensor

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm, self.output = nn.RMSNorm(args.dim), nn.Linear(args.dim, args.vocab_size, bias=False)
        rates = 10_000 ** (-torch.arange(0, args.head_dim, 2).float() / args.head_dim)
        angles = torch.outer(torch.arange(args.max_seq_len).float(), rates)
        table = torch.stack((angles.cos(), angles.sin()), dim=-1)
        self.register_buffer("freqs_cis", table, persistent=False)
        mask = torch.ones(args.max_seq_len, args.max_seq_len, dtype=torch.bool).tril()
        self.register_buffer("causal_mask", mask, persistent=False)

    def setup_cache(self, n: int) -> None:
        """Make room for the keys and values of the longest text."""
        args = self.args
        shape = (args.n_layers, 2, n, args.n_heads, args.max_seq_len, args.head_dim)
        self.cache = torch.zeros(shape, dtype=self.output.weight.dtype, device=DEVICE)

    def forward(self, tokens: torch.Tensor, input_pos: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        freqs, mask = self.freqs_cis[input_pos], self.causal_mask[input_pos][None, None]
        x = self.tok_embeddings(tokens)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            x = layer(x, cache, input_pos, freqs, mask)
        return self.output(self.norm(x))


class Sampler(nn.Module):
    """Draws words from logits, without waiting for the device."""

    def __init__(self, temperature: float = 0.9) -> None:
        super().__init__()
        self.temperature = temperature

    def probs(self, logits: torch.Tensor) -> torch.Tensor:
        """Chances of all words."""
        return torch.softmax(logits.float() / max(self.temperature, 1e-5), dim=-1)

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a word by chance for each row, and the chances."""
        probs = self.probs(logits)
        noise = torch.empty_like(probs).exponential_(1)
        return torch.argmax(probs / noise, dim=-1, keepdim=True), probs


class RejectionSampler(nn.Module):
    """Says how many guesses stand, and what the first that does not is to be drawn from."""

    def forward(
        self, guessed: torch.Tensor, chances: Sequence[torch.Tensor], wanted: torch.Tensor
    ) -> tuple[int, torch.Tensor]:
        """Compare the chances that a small model and a large one gave to the same words."""
        drafted = torch.stack(list(chances))
        rows = torch.arange(len(guessed), device=guessed.device)
        p, q = drafted[rows, guessed], wanted[rows, guessed]
        rejected = (torch.rand_like(p) > torch.clamp(q / p, max=1.0)).nonzero()
        if len(rejected) == 0:
            return len(guessed), wanted[-1]
        n_kept = int(rejected[0])
        rest = torch.clamp(wanted[n_kept] - drafted[n_kept], min=0.0)
        return n_kept, rest / rest.sum()


class Speculator:
    """A small model that guesses, a large one that judges, and what draws the words."""

    def __init__(self, target: Llama, draft: Llama, n_ahead: int = 4) -> None:
        self.target, self.draft, self.n_ahead = target, draft, n_ahead
        self.sampler, self.rejection_sampler = Sampler(), RejectionSampler()

    def advance(self, last: torch.Tensor, place: int) -> list[torch.Tensor]:
        """Return the words of the small model that the large one accepts, and one of its own."""
        words, chances = [last], []
        for number in range(self.n_ahead):
            input_pos = torch.tensor([place + number], device=DEVICE)
            word, probs = self.sampler(self.draft(words[-1].view(1, 1), input_pos)[0, -1])
            words.append(word)
            chances.append(probs)
        input_pos = torch.arange(place, place + self.n_ahead + 1, device=DEVICE)
        _, wanted = self.sampler(self.target(torch.cat(words).view(1, -1), input_pos)[0])
        n_kept, rest = self.rejection_sampler(torch.cat(words[1:]), chances, wanted)
        if n_kept == self.n_ahead:
            self.draft(words[-1].view(1, 1), input_pos[-1:])
        return [*words[1 : 1 + n_kept], torch.multinomial(rest, 1)]

    @torch.inference_mode()
    def generate(self, prompt: torch.Tensor, n_new: int) -> tuple[torch.Tensor, float]:
        """Continue a prompt; return all its words, and how many came of each round."""
        n_given, n_rounds = prompt.size(0), 0
        sequence = torch.empty(n_given + n_new + self.n_ahead, dtype=prompt.dtype, device=DEVICE)
        sequence[:n_given] = prompt
        input_pos = torch.arange(n_given, device=DEVICE)
        last, _ = self.sampler(self.target(prompt.view(1, -1), input_pos)[0, -1])
        self.draft(prompt.view(1, -1), input_pos)
        sequence[n_given] = last
        place = n_given
        while place < n_given + n_new - 1:
            words = self.advance(last, place)
            sequence[place + 1 : place + 1 + len(words)] = torch.cat(words)
            place, n_rounds, last = place + len(words), n_rounds + 1, words[-1]
        return sequence[: place + 1], (place - n_given) / n_rounds


def speculative(_setup: Setup) -> Iterations:
    """Prompt after prompt, a small model guesses and a large one judges; both have caches for good."""
    target = Llama(ModelArgs(dim=512, n_layers=4, n_heads=8, hidden_dim=1408))
    draft = Llama(ModelArgs(dim=192, n_layers=2, n_heads=3, hidden_dim=512))
    for model in (target, draft):
        model.to(device=DEVICE, dtype=torch.bfloat16).eval()
        model.setup_cache(1)
    speculator, accepted = Speculator(target, draft), []
    while True:
        encoded = torch.randint(0, 4096, (160,)).to(DEVICE)
        sequence, n_accepted = speculator.generate(encoded, 10)
        accepted.append(n_accepted)
        sequence.tolist()
        yield Known(inputs=(encoded, sequence), caches=(target.cache, draft.cache))
