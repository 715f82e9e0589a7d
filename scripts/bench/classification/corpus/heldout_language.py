"""Entries that were written without a look at any rule: text that is generated.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

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
        self.layer, self.n_heads, self.n_groups, self.size = (
            layer,
            n_heads,
            n_groups,
            width // n_heads,
        )
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
        k = _turned(
            self.k_proj(x).view(n, length, self.n_groups, self.size).transpose(1, 2), *turns
        )
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

    def __init__(
        self, n_words: int = 3000, width: int = 192, n_layers: int = 4, longest: int = 96
    ) -> None:
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
