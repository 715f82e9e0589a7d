"""A language model of Llama's shapes, sharded by layer with FSDP2 and trained in bfloat16.

    python llama.py SIZE MICRO_BATCH

It is the script that a person would run with torchrun on as many cards. SIZE is a row of SHAPES.
"""

import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

LENGTH = 4096
N_STEPS = 4


class Shape(NamedTuple):
    """The sizes of a model: ``n_inner`` is the width between the projections of a layer."""

    n_layers: int
    width: int
    n_heads: int
    n_key_heads: int
    n_inner: int
    n_words: int


# Llama 3.1, by the configurations that its authors published.
SHAPES = {
    "8B": Shape(32, 4096, 32, 8, 14336, 128256),
    "70B": Shape(80, 8192, 64, 8, 28672, 128256),
}


class Layer(nn.Module):
    """Attention with fewer keys than queries, and a gated projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        n_keys = width // shape.n_heads * shape.n_key_heads
        self.attention_norm, self.inner_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, n_keys, bias=False)
        self.values = nn.Linear(width, n_keys, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, shape.n_inner, bias=False)
        self.up = nn.Linear(width, shape.n_inner, bias=False)
        self.down = nn.Linear(shape.n_inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = self.attention_norm(x)
        queries, keys, values = (
            part(normal).unflatten(-1, (-1, self.shape.width // self.shape.n_heads)).transpose(1, 2)
            for part in (self.queries, self.keys, self.values)
        )
        n_shared = self.shape.n_heads // self.shape.n_key_heads
        keys, values = (part.repeat_interleave(n_shared, 1) for part in (keys, values))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        normal = self.inner_norm(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Llama(nn.Module):
    """The layers, each computed again in backward, between words and words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.n_words, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.n_words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


def sharded(shape: Shape, mesh: DeviceMesh) -> nn.Module:
    """Make a model on the meta device, shard it by layer, and give it memory."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = Llama(shape)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.to_empty(device=mesh.device_type)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    loss = F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("nccl")
    shape = SHAPES[sys.argv[1]]
    model = sharded(shape, init_device_mesh("cuda", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(N_STEPS):
        step(model, optimizer, torch.randint(0, shape.n_words, (int(sys.argv[2]), LENGTH)).cuda())


if __name__ == "__main__":
    main()
