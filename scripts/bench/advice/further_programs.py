"""More pairs, with copies of weights, batches, gradients and shards; see programs.py.

python further_programs.py NAME before|after
"""

import copy
import os
import sys
import tempfile
from collections import deque
from pathlib import Path

import torch
import torch.nn.functional as F
from programs import DEVICE, PAIRS, gpt2, ids_of, images_of, llama, pair, plain, resnet, step, train, unet
from torch import nn


def checkpoint_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Path:
    """Save what an earlier run would have left, on the CPU."""
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    states = {"optimizer": optimizer.state_dict()} if optimizer else {}
    torch.save({"epoch": 3, "model": {k: v.cpu() for k, v in model.state_dict().items()}, **states}, path)
    return path


@pair("weights-copied")
def loaded_plain(after: bool) -> None:
    model = plain()
    path = checkpoint_of(model)
    checkpoint = torch.load(path, map_location="cpu" if after else DEVICE)
    model.load_state_dict(checkpoint["model"])
    train(model, 8000, 2, steps=3)
    print(checkpoint["epoch"])


@pair("weights-copied")
def loaded_gpt2(after: bool) -> None:
    model = gpt2()
    state = torch.load(checkpoint_of(model), map_location=DEVICE, weights_only=True)["model"]
    model.load_state_dict(state)
    if after:
        del state
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        ids = ids_of(2)
        step(optimizer, model(ids, labels=ids).loss)


@pair("weights-copied")
def loaded_resnet(after: bool) -> None:
    model = resnet()
    checkpoint = torch.load(checkpoint_of(model), map_location="cpu" if after else DEVICE)
    model.load_state_dict(checkpoint["model"])
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            print(model(images_of(2)).argmax(-1).shape)


def validated(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the loss without a graph."""
    with torch.no_grad():
        out = model(ids)
        return F.cross_entropy(getattr(out, "logits", out).flatten(0, 1), ids.flatten())


@pair("weights-copied")
def best_plain(after: bool) -> None:
    model = plain()
    optimizer, best = torch.optim.AdamW(model.parameters()), None
    for _ in range(3):
        for _ in range(2):
            ids = ids_of(2)
            step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))
        print(validated(model, ids_of(2)).shape)
        if after:
            best = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        else:
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


@pair("weights-copied")
def best_llama(after: bool) -> None:
    model = llama()
    optimizer, best = torch.optim.SGD(model.parameters(), lr=0.1), None
    for _ in range(3):
        ids = ids_of(2)
        step(optimizer, model(ids, labels=ids).loss)
        print(validated(model, ids_of(2)).shape)
        state = model.state_dict()
        best = {name: tensor.cpu() if after else tensor.clone() for name, tensor in state.items()}
    model.load_state_dict(best)


@pair("weights-copied")
def best_resnet(after: bool) -> None:
    model = resnet()
    optimizer, best = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None
    for epoch in range(3):
        for _ in range(2):
            step(optimizer, F.cross_entropy(model(images_of(4)), torch.randint(0, 100, (4,)).to(DEVICE)))
        model.eval()
        with torch.no_grad():
            hits = (model(images_of(4)).argmax(-1) == 1).sum()
        model.train()
        if epoch == 0:
            state = model.state_dict()
            best = (
                {name: tensor.to("cpu") for name, tensor in state.items()} if after else copy.deepcopy(state)
            )
        print(hits.shape, len(best))


@pair("batches-early")
def list_resnet(after: bool) -> None:
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(8, 3, 96, 96), torch.randint(0, 100, (8,))) for _ in range(40)]
    if not after:
        batches = [(images.to(DEVICE), labels.to(DEVICE)) for images, labels in batches]
    for images, labels in batches[:4]:
        step(optimizer, F.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE)))


@pair("batches-early")
def list_unet(after: bool) -> None:
    model = unet().eval()
    loader = torch.utils.data.DataLoader(torch.randn(640, 3, 32, 32), batch_size=16)
    batches = list(loader) if after else [batch.cuda() for batch in loader]
    with torch.no_grad():
        for batch in batches[:4]:
            print(model(batch.to(DEVICE), 1).sample.mean().shape)


@pair("batches-early")
def queue_resnet(after: bool) -> None:
    """A queue that is filled before the loop: each batch is freed after its step."""
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queue = deque(torch.randn(8, 3, 96, 96) for _ in range(12))
    if not after:
        queue = deque(images.to(DEVICE) for images in queue)
    while queue:
        step(optimizer, model(queue.popleft().to(DEVICE)).mean())


@pair("batches-early")
def accumulated_resnet(after: bool) -> None:
    """All small batches of a step on the device before the first of them is used."""
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        parts = [torch.randn(4, 3, 96, 96) for _ in range(16)]
        if not after:
            parts = [part.to(DEVICE) for part in parts]
        for part in parts:
            (model(part.to(DEVICE)).mean() / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank() -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)


def distributed(model: nn.Module, after: bool) -> nn.Module:
    one_rank()
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=after)


@pair("buckets")
def buckets_plain(after: bool) -> None:
    model = distributed(plain(), after)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(4):
        ids = ids_of(1, 64)
        step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@pair("buckets")
def buckets_gpt2(after: bool) -> None:
    model = distributed(gpt2(16000), after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for _ in range(4):
        ids = ids_of(1, 64)
        step(optimizer, model(ids, labels=ids).loss)


@pair("buckets")
def buckets_resnet(after: bool) -> None:
    model = distributed(resnet(), after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        step(optimizer, F.cross_entropy(model(images_of(2)), torch.randint(0, 100, (2,)).to(DEVICE)))


def sharded(model: nn.Module, blocks: nn.ModuleList, after: bool) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    one_rank()
    for block in blocks:
        fully_shard(block, reshard_after_forward=after)
    return fully_shard(model, reshard_after_forward=after)


@pair("unsharded")
def shards_plain(after: bool) -> None:
    model = plain(2000, 8)
    model = sharded(model, model.blocks, after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = ids_of(2, vocab=2000)
        step(optimizer, F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))


@pair("unsharded")
def shards_llama(after: bool) -> None:
    model = llama(2000, layers=8)
    model = sharded(model, model.model.layers, after)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        ids = ids_of(2, vocab=2000)
        step(optimizer, model(ids, labels=ids).loss)


@pair("unsharded")
def shards_gpt2(after: bool) -> None:
    model = gpt2(2000, layers=8)
    model = sharded(model, model.transformer.h, after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        ids = ids_of(2, vocab=2000)
        step(optimizer, model(ids, labels=ids).loss)


def on_cpu(after: bool) -> torch.autograd.graph.saved_tensors_hooks:
    """Keep what backward needs on the CPU, with ``after``."""
    if after:
        return torch.autograd.graph.save_on_cpu(pin_memory=True)
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


@pair("offloading")
def offloaded_plain(after: bool) -> None:
    model = plain(2000, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = ids_of(8, vocab=2000)
        with on_cpu(after):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        step(optimizer, loss)
        del loss


@pair("offloading")
def offloaded_gpt2(after: bool) -> None:
    model = gpt2(2000, layers=8).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        ids = ids_of(8, vocab=2000)
        with on_cpu(after):
            loss = model(ids, labels=ids).loss
        step(optimizer, loss)
        del loss


@pair("offloading")
def offloaded_unet(after: bool) -> None:
    model = unet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with on_cpu(after):
            loss = model(torch.randn(8, 3, 32, 32, device=DEVICE), 1).sample.mean()
        step(optimizer, loss)
        del loss


# --- written, and recorded, after the rules had been adjusted to those above


def bert(vocab: int = 5000, layers: int = 4) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    size = {
        "hidden_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "intermediate_size": 768,
    }
    return BertForMaskedLM(BertConfig(vocab_size=vocab, **size)).to(DEVICE)


def vit() -> nn.Module:
    import timm

    return timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=50).to(DEVICE)


def classified(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=DEVICE))


@pair("weights-copied")
def resumed_bert(after: bool) -> None:
    """Resume model and optimizer; their file stays on the GPU."""
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = ids_of(1, 32, 5000)
    step(optimizer, model(ids, labels=ids).loss)
    path = checkpoint_of(model, optimizer)
    checkpoint = torch.load(path, map_location="cpu" if after else DEVICE)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    for _ in range(3):
        ids = ids_of(2, 64, 5000)
        step(optimizer, model(ids, labels=ids).loss)
    print(checkpoint["epoch"])


@pair("weights-copied")
def best_vit(after: bool) -> None:
    model = vit()
    optimizer, best, least = torch.optim.AdamW(model.parameters()), None, 10
    for _ in range(3):
        step(optimizer, classified(model, images_of(8, 64)))
        with torch.inference_mode():
            print(classified(model, images_of(8, 64)).shape)
        if least:
            best = {
                k: v.detach().cpu() if after else v.detach().clone() for k, v in model.state_dict().items()
            }
    print(len(best))


@pair("batches-early")
def tensors_vit(after: bool) -> None:
    model = vit()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(512, 3, 64, 64), torch.zeros(512, dtype=torch.long))
    batches = []
    for images, labels in torch.utils.data.DataLoader(data, batch_size=32):
        batches.append((images, labels) if after else (images.cuda(), labels.cuda()))
    for _ in range(2):
        for images, labels in batches[:3]:
            step(optimizer, F.cross_entropy(model(images.cuda()), labels.cuda()))


@pair("batches-early")
def latents_unet(after: bool) -> None:
    """Latents that were made before training wait on the GPU."""
    model = unet()
    optimizer = torch.optim.AdamW(model.parameters())
    latents = [torch.randn(16, 3, 32, 32) for _ in range(40)]
    if not after:
        latents = [one.to(DEVICE, non_blocking=True) for one in latents]
    for number in range(4):
        latent = latents[number].to(DEVICE)
        step(optimizer, F.mse_loss(model(latent, number).sample, latent))


@pair("buckets")
def buckets_bert(after: bool) -> None:
    model = distributed(bert(), after)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(4):
        ids = ids_of(2, 64, 5000)
        step(optimizer, model(ids, labels=ids).loss)


@pair("buckets")
def buckets_vit(after: bool) -> None:
    model = distributed(vit(), after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        step(optimizer, classified(model, images_of(4, 64)))


@pair("unsharded")
def shards_bert(after: bool) -> None:
    model = bert(layers=6)
    model = sharded(model, model.bert.encoder.layer, after)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        ids = ids_of(2, 64, 5000)
        step(optimizer, model(ids, labels=ids).loss)


@pair("unsharded")
def shards_vit(after: bool) -> None:
    model = vit()
    model = sharded(model, model.blocks, after)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(optimizer, classified(model, images_of(8, 64)))


@pair("offloading")
def offloaded_bert(after: bool) -> None:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        ids = ids_of(16, 128, 5000)
        with on_cpu(after):
            loss = model(ids, labels=ids).loss
        step(optimizer, loss)
        del loss


@pair("offloading")
def offloaded_vit(after: bool) -> None:
    model = vit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with on_cpu(after):
            loss = classified(model, images_of(64, 64))
        step(optimizer, loss)
        del loss


@pair("offloading")
def offloaded_resnet(after: bool) -> None:
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with on_cpu(after):
            loss = F.cross_entropy(model(images_of(16)), torch.zeros(16, dtype=torch.long, device=DEVICE))
        step(optimizer, loss)
        del loss


if __name__ == "__main__":
    torch.manual_seed(0)
    PAIRS[sys.argv[1]][1](sys.argv[2] == "after")
