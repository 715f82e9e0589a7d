"""An entry that was written without a look at any rule: a language model is trained from nothing.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from dataclasses import dataclass

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
Pair = tuple[torch.Tensor, torch.Tensor]


# --- pretraining


@dataclass
class GPTConfig:
    """Sizes of a model."""

    block_size: int = 64
    vocab_size: int = 1536
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    dropout: float = 0.0


class LayerNorm(nn.Module):
    """A norm without a bias."""

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize the last dimension."""
        return functional.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class CausalSelfAttention(nn.Module):
    """Every word attends to those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the words of a batch."""
        n, length, width = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (
            part.view(n, length, self.n_head, width // self.n_head).transpose(1, 2)
            for part in (q, k, v)
        )
        dropout = self.dropout if self.training else 0
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=dropout, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(n, length, width)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    """Two linear maps."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform every word by itself."""
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        return self.dropout(x)


class Block(nn.Module):
    """Attention and two linear maps, each after a norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1, self.attn = LayerNorm(config.n_embd), CausalSelfAttention(config)
        self.ln_2, self.mlp = LayerNorm(config.n_embd), MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the words of a batch."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A language model whose output is tied to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": LayerNorm(config.n_embd),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * config.n_layer))

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> Pair:
        """Return logits and the loss."""
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = functional.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1
        )
        return logits, loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Decay matrices only."""
        decayed = [p for p in self.parameters() if p.requires_grad and p.dim() >= 2]
        plain = [p for p in self.parameters() if p.requires_grad and p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)


def _get_batch(text: torch.Tensor, config: GPTConfig, n: int = 8) -> Pair:
    """Pieces of a long text that lies in main memory, and the same pieces one word further."""
    places = torch.randint(len(text) - config.block_size, (n,))
    x = torch.stack([text[i : i + config.block_size] for i in places])
    y = torch.stack([text[i + 1 : i + 1 + config.block_size] for i in places])
    return x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)


def pretraining(_setup: Setup) -> Iterations:
    """A small GPT: parts of a batch, the next one fetched meanwhile, an evaluation now and then."""
    config = GPTConfig()
    text = torch.randint(0, config.vocab_size, (20_000,))
    model = GPT(config).to(DEVICE)
    optimizer = model.configure_optimizers()
    context = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def estimate_loss() -> torch.Tensor:
        model.eval()
        losses = torch.zeros(3)
        for number in range(3):
            x, y = _get_batch(text, config)
            with context:
                _, loss = model(x, y)
            losses[number] = loss.item()
        model.train()
        return losses.mean()

    x, y = _get_batch(text, config)
    n_iterations, n_parts = 0, 4
    while True:
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1.0, (n_iterations + 1) / 100)
        if n_iterations % 2000 == 0:
            estimate_loss()
        for _ in range(n_parts):
            with context:
                _, loss = model(x, y)
                loss = loss / n_parts
            x, y = _get_batch(text, config)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        n_iterations += 1
        yield Known(inputs=(x, y))


# --- preferences


class Rotary(nn.Module):
    """Angles of all positions, in tables that are made once."""

    def __init__(self, size: int, longest: int = 128) -> None:
        super().__init__()
        angles = torch.outer(
            torch.arange(longest).float(), 10_000 ** (-torch.arange(0, size, 2) / size)
        )
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos_cached", angles.cos(), persistent=False)
        self.register_buffer("sin_cached", angles.sin(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate what every head has of every position."""
        cos, sin = (
            table[: x.shape[-2]].to(x.dtype) for table in (self.cos_cached, self.sin_cached)
        )
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class ParallelLayer(nn.Module):
    """Attention and two linear maps side by side, whose results are added at once."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.input_layernorm, self.post_attention_layernorm = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rotary = Rotary(width // n_heads)
        self.dense_h_to_4h, self.dense_4h_to_h = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mix the words of a batch, with the scores written out."""
        n, length, width = x.shape
        qkv = self.query_key_value(x).view(n, length, self.n_heads, -1).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        scores = (
            self.rotary(q) @ self.rotary(k).transpose(-1, -2) / math.sqrt(width // self.n_heads)
        )
        scores = scores + mask
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        return self.dense((weights @ v).permute(0, 2, 1, 3).reshape(n, length, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Transform the words of a batch."""
        h = self.dense_4h_to_h(
            functional.gelu(self.dense_h_to_4h(self.post_attention_layernorm(x)))
        )
        return h + self.attend(self.input_layernorm(x), mask) + x


class Decoder(nn.Module):
    """A language model of parallel layers, which may forget and compute again what is between them."""

    def __init__(self, n_words: int = 1200, width: int = 128, n_layers: int = 4) -> None:
        super().__init__()
        self.is_checkpointed = False
        self.embed_in = nn.Embedding(n_words, width)
        self.layers = nn.ModuleList(ParallelLayer(width, 4) for _ in range(n_layers))
        self.final_layer_norm = nn.LayerNorm(width)
        self.embed_out = nn.Linear(width, n_words, bias=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        x = self.embed_in(input_ids)
        length = input_ids.shape[1]
        least = torch.finfo(x.dtype).min
        mask = torch.full((length, length), least, dtype=x.dtype, device=x.device).triu(1)
        mask = mask[None, None].masked_fill(attention_mask[:, None, None, :] == 0, least)
        for layer in self.layers:
            if self.is_checkpointed and self.training:
                x = checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return self.embed_out(self.final_layer_norm(x))
