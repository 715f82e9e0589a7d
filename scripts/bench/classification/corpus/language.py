"""Entries that read sequences: transformers, tied weights, experts, recurrence, a cache of keys."""

import torch
from setups import Iterations, Known, Setup, Tensors, train
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 2048, 128
Caches = list[tuple[torch.Tensor, torch.Tensor] | None]


class Attention(nn.Module):
    """Attention with one projection for queries, keys and values."""

    def __init__(self, width: int, n_heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.n_heads, self.is_causal = n_heads, is_causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Attend to ``x``, and to what a cache has of earlier words."""
        n, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(n, length, 3, self.n_heads, width // self.n_heads)
            .permute(2, 0, 3, 1, 4)
        )
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        is_causal = self.is_causal and length > 1
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width)), (k, v)


class Block(nn.Module):
    """A pre-norm layer: attention, then two linear maps."""

    def __init__(self, width: int, n_heads: int, *, is_causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, n_heads, is_causal=is_causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the words of a batch."""
        x = x + self.dropout(self.attention(self.norm1(x))[0])
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """A language model of pre-norm layers, with its output tied to its input if asked."""

    def __init__(self, *, n_layers: int = 3, is_tied: bool = False) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, 4) for _ in range(n_layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        x = self.words(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def words(n: int = 8, length: int = 64) -> Tensors:
    """A batch of random words."""
    return (torch.randint(0, WORDS, (n, length)).cuda(),)


def next_word(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The loss of predicting every word from those before it."""
    logits = model(batch)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def transformer(setup: Setup) -> Iterations:
    """A pre-norm language model."""
    return train(Transformer().to("cuda"), words, next_word, setup)


def tied(setup: Setup) -> Iterations:
    """The same with tied embeddings; the loss sees the logits as floats, as many do."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch).float()
        shifted = logits[:, :-1].contiguous().view(-1, WORDS)
        return functional.cross_entropy(shifted, batch[:, 1:].contiguous().view(-1))

    return train(Transformer(is_tied=True).cuda(), words, loss, setup)


class EncoderDecoder(nn.Module):
    """torch's own layers, with embeddings of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.core = nn.Transformer(WIDTH, 4, 2, 2, 256, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the logits of the target's words."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.core(self.source(source), self.target(target), tgt_mask=mask))


def encoder_decoder(setup: Setup) -> Iterations:
    """Translation with label smoothing."""
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def loss(model: nn.Module, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return criterion(model(source, target).flatten(0, 1), target.flatten())

    return train(EncoderDecoder().cuda(), lambda: (*words(8, 32), *words(8, 32)), loss, setup)


class Lstm(nn.Module):
    """Two recurrent layers over embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        return self.head(self.lstm(self.words(batch))[0])


def lstm(setup: Setup) -> Iterations:
    """Recurrence over words."""
    return train(Lstm().cuda(), lambda: words(16, 32), next_word, setup)


class Experts(nn.Module):
    """Every word goes to the two of four experts that a gate chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix what the chosen experts say."""
        flat = x.flatten(0, 1)
        chance, chosen = self.gate(flat).softmax(-1).topk(2)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            result.index_add_(0, rows, expert(flat[rows]) * chance[rows, place, None])
        return result.view_as(x)


class ExpertModel(nn.Module):
    """A language model whose second half of every layer is a mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(4))
        self.attentions = nn.ModuleList(Attention(WIDTH, 4, is_causal=True) for _ in range(2))
        self.experts = nn.ModuleList(Experts() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        x = self.words(batch)
        for i, (attention, experts) in enumerate(zip(self.attentions, self.experts, strict=True)):
            x = x + attention(self.norms[2 * i](x))[0]
            x = x + experts(self.norms[2 * i + 1](x))
        return self.head(x)


def experts(setup: Setup) -> Iterations:
    """A mixture of experts."""
    return train(ExpertModel().cuda(), words, next_word, setup)


def cached_inference(setup: Setup) -> Iterations:
    """Words are generated one by one under no_grad; keys and values are kept and grow."""
    model = Transformer().cuda().eval()
    (part,) = words(16, 32)
    caches: Caches = [None] * len(model.blocks)
    with torch.no_grad():
        while True:
            logits, caches = _decode(model, part, caches)
            kept = [tensor for cache in caches if cache for tensor in cache]
            yield Known(inputs=(part,), caches=kept)
            part = logits[:, -1:].argmax(-1)


def _decode(model: Transformer, part: torch.Tensor, caches: Caches) -> tuple[torch.Tensor, Caches]:
    """One call of the model with a cache per layer, as libraries generate text."""
    x = model.words(part)
    grown: Caches = []
    for block, cache in zip(model.blocks, caches, strict=True):
        y, larger = block.attention(block.norm1(x), cache)
        x = x + y
        x = x + block.down(functional.gelu(block.up(block.norm2(x))))
        grown.append(larger)
    return model.head(model.norm(x)), grown
