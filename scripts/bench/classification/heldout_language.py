"""Entries that were written without a look at any rule, as people write programs of their kinds: language.

Some bring an optimizer of their own: these take no other, whatever a setup says.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from setups import Iterations, Known, Setup, Tensors, make_optimizer, states_of
from torch import nn
from torch.nn import functional

Batch = dict[str, torch.Tensor]
DEVICE = "cuda"


# --- language models


class StaticCache:
    """Keys and values of every layer, made once for the longest text."""

    def __init__(self, n_layers: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.keys = [torch.zeros(*shape, dtype=dtype, device=DEVICE) for _ in range(n_layers)]
        self.values = [torch.zeros(*shape, dtype=dtype, device=DEVICE) for _ in range(n_layers)]

    def update(
        self, layer: int, place: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put what is new in its place, and return everything."""
        self.keys[layer].index_copy_(2, place, key)
        self.values[layer].index_copy_(2, place, value)
        return self.keys[layer], self.values[layer]


def _turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the two halves of every head by its position."""
    left, right = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class GroupedAttention(nn.Module):
    """Attention with rotated positions, and fewer heads of keys than of queries."""

    def __init__(self, layer: int, width: int, n_heads: int, n_groups: int) -> None:
        super().__init__()
        self.layer, self.n_heads, self.n_groups, self.size = layer, n_heads, n_groups, width // n_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, n_groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, n_groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        cache: StaticCache | None,
        place: torch.Tensor,
    ) -> torch.Tensor:
        """Attend to ``x``, and to what the cache has."""
        n, length, width = x.shape
        q = _turned(self.q_proj(x).view(n, length, self.n_heads, self.size).transpose(1, 2), *turns)
        k = _turned(self.k_proj(x).view(n, length, self.n_groups, self.size).transpose(1, 2), *turns)
        v = self.v_proj(x).view(n, length, self.n_groups, self.size).transpose(1, 2)
        if cache is not None:
            k, v = cache.update(self.layer, place, k, v)
        k, v = (part.repeat_interleave(self.n_heads // self.n_groups, dim=1) for part in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).contiguous().view(n, length, width))


class GatedLayer(nn.Module):
    """Attention and a gated network, each after a norm."""

    def __init__(self, layer: int, width: int) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn = GroupedAttention(layer, width, 6, 2)
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Transform the words of a batch."""
        x = x + self.self_attn(self.input_norm(x), *rest)
        h = self.post_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(h)) * self.up_proj(h))


@dataclass
class Output:
    """What a language model returns."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


class LanguageModel(nn.Module):
    """A decoder that computes its loss itself where it is given labels."""

    def __init__(self, n_words: int = 3000, width: int = 192, n_layers: int = 4, longest: int = 96) -> None:
        super().__init__()
        self.longest = longest
        self.embed_tokens = nn.Embedding(n_words, width)
        self.layers = nn.ModuleList(GatedLayer(number, width) for number in range(n_layers))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, n_words, bias=False)
        rates = 10_000 ** (-torch.arange(0, 32, 2).float() / 32)
        self.register_buffer("rates", rates, persistent=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: StaticCache | None = None,
        place: torch.Tensor | None = None,
    ) -> Output:
        """Return logits, and the loss if there are labels."""
        x = self.embed_tokens(input_ids)
        if place is None:
            place = torch.arange(input_ids.shape[1], device=x.device)
        angles = place[:, None].float() * self.rates[None].float()
        angles = torch.cat((angles, angles), dim=-1)
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        n_keys = self.longest if cache is not None else input_ids.shape[1]
        mask = torch.arange(n_keys, device=x.device)[None, :] <= place[:, None]
        mask = mask[None, None]
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, turns, mask, cache, place)
        logits = self.lm_head(self.norm(x))
        if labels is None:
            return Output(logits)
        shifted = logits.float()[:, :-1].contiguous()
        wanted = labels[:, 1:].contiguous()
        loss = functional.cross_entropy(
            shifted.view(-1, shifted.shape[-1]), wanted.view(-1), ignore_index=-100
        )
        return Output(logits, loss)


def _sampled(logits: torch.Tensor) -> torch.Tensor:
    """One word per text, by chance among the likeliest."""
    logits = logits[:, -1].float() / 0.8
    least = torch.topk(logits, 50).values[:, -1:]
    logits = logits.masked_fill(logits < least, -math.inf)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1)


@torch.inference_mode()
def _generate(model: LanguageModel, cache: StaticCache, texts: torch.Tensor, n_given: int) -> None:
    """Fill in the texts, whose first words are given."""
    place = torch.arange(n_given, device=DEVICE)
    word = _sampled(model(texts[:, :n_given], cache=cache, place=place).logits)
    texts[:, n_given : n_given + 1] = word
    for number in range(n_given, texts.shape[1] - 1):
        place = torch.tensor([number], device=DEVICE)
        word = _sampled(model(word, cache=cache, place=place).logits)
        texts[:, number + 1 : number + 2] = word


def generation(_setup: Setup) -> Iterations:
    """Texts are sampled in half precision, with a cache that is there from the start."""
    model = LanguageModel().to(DEVICE, dtype=torch.bfloat16).eval()
    cache = StaticCache(len(model.layers), (8, 2, model.longest, 32), torch.bfloat16)
    while True:
        prompts = torch.randint(0, 3000, (8, 64))
        texts = torch.zeros(8, 72, dtype=torch.long, device=DEVICE)
        texts[:, :64] = prompts.to(DEVICE)
        _generate(model, cache, texts, 64)
        texts.tolist()
        yield Known(inputs=(texts,), caches=(*cache.keys, *cache.values))


def _instructions() -> Iterator[Batch]:
    """Padded batches in which only the answers count."""
    while True:
        length = 48
        ids = torch.randint(0, 3000, (6, length))
        is_there = torch.arange(length)[None] < torch.randint(30, length + 1, (6, 1))
        labels = ids.masked_fill(~is_there, -100)
        labels[:, :10] = -100
        yield {"input_ids": ids, "attention_mask": is_there.long(), "labels": labels}


def to_device(batch: Batch) -> Batch:
    """Move a batch, as loops of trainers do."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}


def _compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = model(**batch)
    return outputs.loss


def _training_step(model: nn.Module, batch: Batch, n_parts: int) -> torch.Tensor:
    model.train()
    loss = _compute_loss(model, batch) / n_parts
    loss.backward()
    return loss.detach()


def finetune(setup: Setup) -> Iterations:
    """A language model is tuned as trainers do it: parts of a batch, autocast, groups, a schedule."""
    model = LanguageModel(n_layers=3).to(DEVICE)
    plain = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-4, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    batches, total = _instructions(), torch.tensor(0.0, device=DEVICE)
    while True:
        for _ in range(2):
            batch = to_device(next(batches))
            total += _training_step(model, batch, 2)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        total.item()
        total -= total
        yield Known(inputs=tuple(batch.values()))


# --- speech


class Recognizer(nn.Module):
    """Convolutions that shorten, recurrence both ways, and one chance per letter and time."""

    def __init__(self, n_bands: int = 80, width: int = 96, n_letters: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv1d(n_bands, width, 5, 2, 2), nn.BatchNorm1d(width), nn.GELU()),
            *(nn.Conv1d(width, width, 5, 2, 2), nn.BatchNorm1d(width), nn.GELU()),
        )
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, n_letters)

    def forward(self, sound: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log chances, time first, and how many times are valid."""
        x = self.stem(sound).transpose(1, 2)
        lengths = (lengths + 3) // 4
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        x, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(self.norm(x)).log_softmax(dim=-1).transpose(0, 1), lengths


def _sounds(n: int = 24, longest: int = 96) -> Tensors:
    """Normalized spectra with a stretch of time and a band masked, their lengths, and what is said."""
    sound, lengths = torch.randn(n, 80, longest), torch.randint(76, longest + 1, (n,))
    lengths[0] = longest
    texts, n_letters = torch.randint(1, 32, (n, 12)), torch.randint(5, 13, (n,))
    sound, lengths = sound.to(DEVICE), lengths.to(DEVICE)
    sound = (sound - sound.mean(dim=2, keepdim=True)) / (sound.std(dim=2, keepdim=True) + 1e-5)
    sound[:, 30:38, :] = 0
    sound[:, :, 40:60] = 0
    return sound, lengths, texts.to(DEVICE), n_letters.to(DEVICE)


def speech(setup: Setup) -> Iterations:
    """Letters from spectra of different lengths, by connectionist temporal classification."""
    model = Recognizer().to(DEVICE)
    optimizer = make_optimizer(setup, model.parameters())
    criterion = nn.CTCLoss(blank=0, zero_infinity=True)
    while True:
        sound, lengths, texts, n_letters = _sounds()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        chances, n_times = model(sound, lengths)
        loss = criterion(chances, texts, n_times, n_letters)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        chances.detach().argmax(dim=-1).t().cpu().tolist()
        yield Known(inputs=(sound, lengths, texts, n_letters), states=states_of(optimizer))


# --- letters


class Letters(nn.Module):
    """Two layers of gated recurrence written out; no part but the embedding is ever called."""

    def __init__(self, n_letters: int = 96, width: int = 160) -> None:
        super().__init__()
        self.width = width
        self.letters = nn.Embedding(n_letters, width)
        self.of_input, self.of_state, self.bias = (
            nn.ParameterList(nn.Parameter(torch.randn(*shape) * 0.05) for _ in range(2))
            for shape in ((width, 3 * width), (width, 3 * width), (3 * width,))
        )

    def cell(self, layer: int, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """One time step of one layer."""
        ahead = (x @ self.of_input[layer] + self.bias[layer]).chunk(3, dim=-1)
        back = (state @ self.of_state[layer]).chunk(3, dim=-1)
        keep, reset = torch.sigmoid(ahead[0] + back[0]), torch.sigmoid(ahead[1] + back[1])
        fresh = torch.tanh(ahead[2] + reset * back[2])
        return (1 - keep) * fresh + keep * state

    def read(self, text: torch.Tensor, states: Tensors) -> tuple[torch.Tensor, Tensors]:
        """Return the logits of every next letter, and the states at the end."""
        embedded, found, states = self.letters(text), [], list(states)
        for x in embedded.unbind(1):
            for layer in range(len(states)):
                states[layer] = x = self.cell(layer, x, states[layer])
            found.append(x)
        return functional.linear(torch.stack(found, dim=1), self.letters.weight), states


def letters(_setup: Setup) -> Iterations:
    """A long text is read in pieces, states go on from piece to piece, weights move by hand."""
    model = Letters().to(DEVICE)
    text = torch.randint(0, 96, (24, 2000), device=DEVICE)
    states: Tensors = [torch.zeros(24, model.width, device=DEVICE) for _ in range(2)]
    place = 0
    while True:
        part, following = text[:, place : place + 20], text[:, place + 1 : place + 21]
        logits, states = model.read(part, states)
        loss = functional.cross_entropy(logits.reshape(-1, 96), following.reshape(-1))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad.clamp(-1, 1)
                parameter.grad = None
        states = [state.detach() for state in states]
        place += 20
        yield Known(inputs=(text,), activations=(logits, *states))
