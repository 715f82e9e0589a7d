"""The Llama of transformers, sharded by layer with FSDP2 and trained in bfloat16.

    python transformers_llama.py SIZE MICRO_BATCH

It is the script that a person would run with torchrun on as many cards. SIZE is a row of
llama.SHAPES.
"""

import sys

import torch
import torch.distributed as dist
from llama import LENGTH, N_STEPS, SHAPES, Shape
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM


def sharded(shape: Shape, mesh: DeviceMesh) -> nn.Module:
    """Make a model on the meta device, shard it by layer, and give it memory."""
    config = LlamaConfig(
        vocab_size=shape.n_words,
        hidden_size=shape.width,
        intermediate_size=shape.n_inner,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_key_heads,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=mesh.device_type)
    model.init_weights()
    return model.train()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    model(input_ids=ids, labels=ids).loss.backward()
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
