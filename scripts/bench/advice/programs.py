"""Pairs of programs: each as people write it, and after the change that ``snapconv advise`` proposes.

    python programs.py NAME before|after

Sizes are small, so that a simulated recording takes seconds. The programs were written in pairs, before any
prediction was seen.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
PAIRS: dict[str, tuple[str, Callable[[bool], None]]] = {}


def pair(kind: str) -> Callable[[Callable[[bool], None]], Callable[[bool], None]]:
    """Register a program with the kind of finding that it is about."""

    def register(program: Callable[[bool], None]) -> Callable[[bool], None]:
        PAIRS[program.__name__] = kind, program
        return program

    return register


def gpt2(vocab: int = 8000, attention: str = "sdpa", layers: int = 4) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab, n_positions=256, n_embd=256, n_layer=layers, n_head=4, attn_implementation=attention
    )
    return GPT2LMHeadModel(config).to(DEVICE)


def llama(vocab: int = 8000, attention: str = "sdpa", layers: int = 4) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).to(DEVICE)


class Logits(nn.Module):
    """A classifier that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, **options: bool) -> torch.Tensor:
        return self.model(images, **options).logits


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(hidden_sizes=[64, 128, 256], depths=[2, 2, 2], layer_type="basic", num_labels=100)
    return Logits(ResNetForImageClassification(config)).to(DEVICE)


def unet() -> nn.Module:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(DEVICE)


class Block(nn.Module):
    """A layer of a transformer; ``is_by_hand``: the scores of attention are made."""

    def __init__(self, width: int, *, is_by_hand: bool = False) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.is_by_hand = is_by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        if self.is_by_hand:
            scores = q @ k.transpose(-2, -1) / (width // 4) ** 0.5
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class PlainLM(nn.Module):
    """A language model without a library."""

    def __init__(self, vocab: int = 8000, layers: int = 4, *, is_by_hand: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, 256)
        self.blocks = nn.ModuleList(Block(256, is_by_hand=is_by_hand) for _ in range(layers))
        self.head = nn.Linear(256, vocab, bias=False)
        self.is_checkpointed = False

    def features(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(ids))


def plain(vocab: int = 8000, layers: int = 4, *, is_by_hand: bool = False) -> PlainLM:
    return PlainLM(vocab, layers, is_by_hand=is_by_hand).to(DEVICE)


def ids_of(batch: int = 8, length: int = 256, vocab: int = 8000) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length)).to(DEVICE)


def images_of(batch: int = 16, size: int = 96) -> torch.Tensor:
    return torch.randn(batch, 3, size, size).to(DEVICE)


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pair("previous-kept")
def previous_gpt2(after: bool) -> None:
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = ids_of()
        out = model(ids, labels=ids)
        step(optimizer, out.loss)
        if after:
            del out


@pair("previous-kept")
def previous_resnet(after: bool) -> None:
    model = resnet().eval()
    with torch.no_grad():
        for _ in range(4):
            images = images_of(64)
            maps = model.model(images, output_hidden_states=True).hidden_states
            print(len(maps))
            if after:
                del maps


@pair("previous-kept")
def previous_unet(after: bool) -> None:
    model = unet()
    for step_of in range(3):
        noisy = torch.randn(8, 3, 32, 32, device=DEVICE)
        out = model(noisy, step_of).sample
        print(out.shape)
        if after:
            del out


@pair("previous-kept")
def previous_plain(after: bool) -> None:
    model = plain()
    for _ in range(3):
        logits = model(ids_of())
        print(logits.shape)
        if after:
            del logits


@pair("gradients-kept")
def gradients_plain(after: bool) -> None:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = ids_of(2)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        if not after:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after:
            optimizer.zero_grad()


@pair("gradients-kept")
def gradients_llama(after: bool) -> None:
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = ids_of(2)
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=after)


@pair("gradients-kept")
def gradients_resnet(after: bool) -> None:
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        images = images_of(4)
        loss = F.cross_entropy(model(images), torch.randint(0, 100, (4,)).to(DEVICE))
        if not after:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after:
            optimizer.zero_grad()


@pair("unused-graph")
def evaluation_gpt2(after: bool) -> None:
    model = gpt2().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            hits = (model(ids_of()).logits.argmax(-1) == 1).sum()
            print(hits.shape)


@pair("unused-graph")
def evaluation_resnet(after: bool) -> None:
    model = resnet().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(3):
            hits = (model(images_of()).argmax(-1) == 1).sum()
            print(hits.shape)


@pair("unused-graph")
def evaluation_unet(after: bool) -> None:
    model = unet().eval()
    with torch.set_grad_enabled(not after):
        for step_of in range(3):
            image = model(torch.randn(8, 3, 32, 32, device=DEVICE), step_of).sample.detach()
            print(image.shape)


@pair("graphs-kept")
def losses_plain(after: bool) -> None:
    model, losses = plain(), []
    for _ in range(6):
        ids = ids_of(4)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        losses.append(loss.item() if after else loss)
        del loss


@pair("graphs-kept")
def losses_llama(after: bool) -> None:
    model, total = llama(), 0
    for _ in range(6):
        ids = ids_of(4)
        loss = model(ids, labels=ids).loss
        total = total + (loss.item() if after else loss)
        del loss


@pair("graphs-kept")
def losses_resnet(after: bool) -> None:
    model, losses = resnet(), []
    for _ in range(6):
        loss = model(images_of(8)).mean()
        losses.append(loss.item() if after else loss)
        del loss


def chunked_loss(head: nn.Module, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Cross entropy in eight parts, whose logits are made again in backward."""

    def part_of(part: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(part).float(), target, reduction="sum")

    parts = zip(hidden.flatten(0, 1).chunk(8), ids.flatten().chunk(8), strict=True)
    return sum(checkpoint(part_of, *both, use_reentrant=False) for both in parts) / ids.numel()


@pair("logits")
def logits_plain(after: bool) -> None:
    model = plain(32000, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = ids_of(8, vocab=32000)
        if after:
            loss = chunked_loss(model.head, model.features(ids), ids)
        else:
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        step(optimizer, loss)
        del loss


@pair("logits")
def logits_gpt2(after: bool) -> None:
    model = gpt2(32000, layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = ids_of(8, vocab=32000)
        if after:
            loss = chunked_loss(model.lm_head, model.transformer(ids).last_hidden_state, ids)
        else:
            loss = model(ids, labels=ids).loss
        step(optimizer, loss)
        del loss


@pair("logits")
def logits_llama(after: bool) -> None:
    model = llama(32000, layers=2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = ids_of(8, vocab=32000)
        if after:
            loss = chunked_loss(model.lm_head, model.model(ids).last_hidden_state, ids)
        else:
            loss = model(ids, labels=ids).loss
        step(optimizer, loss)
        del loss


def train(model: nn.Module, vocab: int = 2000, batch: int = 8, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        ids = ids_of(batch, vocab=vocab)
        out = model(ids)
        logits = getattr(out, "logits", out)
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        del out, logits
        step(optimizer, loss)
        del loss


@pair("attention")
def attention_plain(after: bool) -> None:
    train(plain(2000, is_by_hand=not after))


@pair("attention")
def attention_gpt2(after: bool) -> None:
    train(gpt2(2000, "sdpa" if after else "eager"))


@pair("attention")
def attention_llama(after: bool) -> None:
    train(llama(2000, "sdpa" if after else "eager"))


def train_with(optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> None:
    for _ in range(3):
        step(optimizer, loss_of())


@pair("foreach")
def foreach_gpt2(after: bool) -> None:
    model = gpt2(16000)
    ids = ids_of(1, 64)
    optimizer = torch.optim.AdamW(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: model(ids, labels=ids).loss)


@pair("foreach")
def foreach_resnet(after: bool) -> None:
    model = resnet()
    images = images_of(1, 224)
    optimizer = torch.optim.Adam(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: model(images).mean())


@pair("foreach")
def foreach_plain(after: bool) -> None:
    model = plain(16000)
    ids = ids_of(1, 64)
    optimizer = torch.optim.Adam(model.parameters(), fused=after or None)
    train_with(optimizer, lambda: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@pair("checkpointing")
def checkpointing_plain(after: bool) -> None:
    model = plain(2000, 8)
    model.is_checkpointed = after
    train(model)


@pair("checkpointing")
def checkpointing_gpt2(after: bool) -> None:
    model = gpt2(2000, layers=8)
    if after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model.train())


@pair("checkpointing")
def checkpointing_llama(after: bool) -> None:
    model = llama(2000, layers=8)
    if after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model.train())


@pair("batch")
def batch_gpt2(after: bool) -> None:
    train(gpt2(), 8000, 4 if after else 8)


@pair("batch")
def batch_resnet(after: bool) -> None:
    model = resnet()
    optimizer = torch.optim.AdamW(model.parameters())
    train_with(optimizer, lambda: model(images_of(16 if after else 32)).mean())


@pair("batch")
def batch_unet(after: bool) -> None:
    model = unet()
    optimizer = torch.optim.AdamW(model.parameters())
    size = 4 if after else 8
    train_with(optimizer, lambda: model(torch.randn(size, 3, 32, 32, device=DEVICE), 1).sample.mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    PAIRS[sys.argv[1]][1](sys.argv[2] == "after")
