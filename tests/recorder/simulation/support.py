"""Small models, and what a test asks of a simulated run: its allocations and its frees in order."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MIB = 1 << 20


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


class Block(nn.Module):
    """A pre-norm transformer block with one fused projection."""

    def __init__(self, width: int, n_heads: int, dropout: float = 0.0):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.n_heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model; its head is its embedding where ``is_tied``."""

    def __init__(self, n_words=64, width=32, n_blocks=2, n_heads=4, *, is_tied=False, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(n_words, width)
        self.blocks = nn.ModuleList(Block(width, n_heads, dropout) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_words, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_step(model: nn.Module, optimizer: Any, tokens: Any) -> Any:
    """One training step on the next-word loss; gradients are left for the caller to look at."""
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss


@contextmanager
def recorded(**options: Any):
    """Record what happens inside; the dict is filled with the snapshot afterwards."""
    snapshot: dict[str, Any] = {}
    torch.cuda.memory._record_memory_history(**{"stacks": "python"} | options)
    yield snapshot
    snapshot.update(torch.cuda.memory._snapshot())
    torch.cuda.memory._record_memory_history(enabled=None)


def events(snapshot: dict[str, Any], *actions: str) -> list[dict[str, Any]]:
    """The first device's events with one of the given actions, in order."""
    return [entry for entry in snapshot["device_traces"][0] if entry["action"] in actions]


def sizes_allocated(run: Callable[[], Any], **options: Any) -> list[int]:
    """The requested bytes of every allocation during a call, in order."""
    with recorded(**options) as snapshot:
        kept = run()
    del kept
    return [entry["size"] for entry in events(snapshot, "alloc")]
