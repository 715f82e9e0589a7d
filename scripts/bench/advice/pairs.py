"""Pairs of programs: each as people write it, and after the change that ``snapconv advise`` proposes.

    python pairs.py NAME before|after

A pair is a loop with its change, a model, batches, and how a loss comes of both. Sizes are small, so that a simulated
recording takes seconds. Both programs of a pair were written before any prediction for it was seen.
"""

import copy
import functools
import gc
import importlib
import itertools
import os
import sys
import tempfile
import types
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from models import (
    DEVICE,
    PlainLM,
    autoencoder,
    bert,
    clip,
    convnext,
    convolutions,
    dit,
    gpt2,
    half_llama,
    lightning_fit,
    llama,
    mobilenet,
    neox,
    plain,
    qwen,
    resnet,
    small_dit,
    small_vit,
    t5,
    tagger,
    timm_model,
    torchs_attention,
    unet,
    vit,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

Model = Callable[..., nn.Module]
Batch = Callable[[], torch.Tensor]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Output = Callable[[nn.Module, Batch], object]
SGD = partial(torch.optim.SGD, lr=0.1)
MOMENTUM = partial(SGD, momentum=0.9)
ADAM, ADAMW, ADAGRAD = torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad
FUSED = partial(ADAMW, fused=True)

# --- batches: made anew for each step, kept until the next as a variable of a loop is, or made once


def ids(batch: int = 8, length: int = 256) -> Batch:
    return lambda: torch.randint(0, 1000, (batch, length)).to(DEVICE)


def images(batch: int = 16, size: int = 96) -> Batch:
    return lambda: torch.randn(batch, 3, size, size).to(DEVICE)


def noise(batch: int = 8, size: int = 32) -> Batch:
    return lambda: torch.randn(batch, 3, size, size, device=DEVICE)


def states(batch: int, length: int) -> Batch:
    return lambda: torch.randn(batch, length, 192, device=DEVICE)


def kept(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    last = None

    def call(*values: object) -> torch.Tensor:
        nonlocal last
        last = make(*values)
        return last

    return call


once = functools.cache

# --- losses and results


def own_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def tokens(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out = model(ids)
    logits = getattr(out, "logits", out)
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def classes(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device=DEVICE))


def labelled(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0].to(DEVICE)), batch[1].to(DEVICE))


def mean(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images.to(DEVICE)).mean()


def spread(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).logsumexp(-1).mean()


def pooled(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return model(images).pooler_output.square().mean()


def sampled(model: nn.Module, noisy: torch.Tensor) -> torch.Tensor:
    return model(noisy.to(DEVICE), 1).sample.mean()


def restored(model: nn.Module, latent: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(latent, 1).sample, latent)


def decoded_mean(model: nn.Module, noisy: torch.Tensor) -> torch.Tensor:
    return model(noisy).sample.mean()


def denoised(model: nn.Module, batch: int) -> torch.Tensor:
    noisy = torch.randn(batch, 4, 32, 32, device=DEVICE)
    labels, times = (
        torch.zeros(batch, dtype=torch.long, device=DEVICE),
        torch.ones(batch, device=DEVICE),
    )
    return model(noisy, timestep=times, class_labels=labels).sample.square().mean()


def tagged(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model.embed(ids[:2]).mean()


def hits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return (model(images).argmax(-1) == 1).sum()


def token_hits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return (model(ids).logits.argmax(-1) == 1).sum()


def labelled_out(model: nn.Module, batch: Batch) -> object:
    ids = batch()
    return model(ids, labels=ids)


def bert_out(model: nn.Module, batch: Batch) -> object:
    ids = batch()
    out = model(ids, output_hidden_states=True)
    out.loss = F.cross_entropy(out.logits.flatten(0, 1), ids.flatten())
    return out


def resnet_maps(model: nn.Module, batch: Batch) -> object:
    return model.model(batch(), output_hidden_states=True).hidden_states


def tagger_out(model: nn.Module, batch: Batch) -> object:
    ids = batch()
    scores = model(ids)
    return SimpleNamespace(logits=scores, loss=F.cross_entropy(scores.flatten(0, 1), ids.flatten()))


# --- loops, each with a fault or without


def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(
    model: nn.Module, batch: Batch, loss_of: Loss, optimizer: Callable = SGD, steps: int = 3
) -> None:
    optimizer = optimizer(model.parameters())
    for _ in range(steps):
        step(optimizer, loss_of(model, batch()))


def keep_outputs(
    after: bool,
    model: Model,
    batch: Batch,
    output_of: Output,
    optimizer: Callable | None = None,
    times: int = 3,
) -> None:
    """Make outputs, and train by their losses with an optimizer."""
    model = model()
    optimizer = optimizer and optimizer(model.parameters())
    for _ in range(times):
        out = output_of(model, batch)
        if optimizer:
            step(optimizer, out.loss)
        if after:
            del out


def keep_maps(after: bool, model: Model, batch: Batch, output_of: Output) -> None:
    with torch.no_grad():
        keep_outputs(after, lambda: model().eval(), batch, output_of, times=4)


class Node:
    """What a step made, in a reference cycle with itself."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.itself = values, self


def keep_in_cycles(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    """Train, with a node for each batch; Python's collector runs in the middle of other work."""
    model = model()
    optimizer = optimizer(model.parameters())
    for number in range(9):
        node = Node(batch())
        if number % 3 == 2 and not after:
            _collect_within(model, number)
        loss = loss_of(model, node.values)
        del node
        step(optimizer, loss)
        del loss
        if after:
            gc.collect()


def _collect_within(model: nn.Module, number: int) -> None:
    """Run the collector once in the next forward, at a module that the number chooses, or in backward."""
    modules = [module for module in model.modules() if not [*module.children()]]

    def collect(*_: object) -> None:
        handle.remove()
        gc.collect()

    handle = modules[number % len(modules)].register_forward_hook(collect)


def clear_late(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    model = model()
    optimizer = optimizer(model.parameters())
    for _ in range(3):
        loss = loss_of(model, batch())
        if not after:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after:
            optimizer.zero_grad()


def set_to_zero(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    model = model()
    optimizer = optimizer(model.parameters())
    for _ in range(3):
        loss_of(model, batch()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=after)


def lightning_gradients(after: bool) -> None:
    hooks = {"on_train_batch_end": lambda self, *_: self.optimizers().zero_grad()} if after else {}
    lightning_fit(bert(layers=4), own_loss, torch.randint(0, 5000, (2, 96)), SGD, **hooks)


def evaluate(after: bool, model: Model, batch: Batch, result_of: Loss, times: int = 3) -> None:
    model = model().eval()
    with torch.set_grad_enabled(not after):
        for _ in range(times):
            result_of(model, batch())


def collect(after: bool, model: Model, batch: Batch, loss_of: Loss, times: int = 6) -> None:
    model, losses = model(), []
    for _ in range(times):
        loss = loss_of(model, batch())
        losses.append(loss.item() if after else loss)
        del loss


def add_up(after: bool, model: Model, batch: Batch, loss_of: Loss, scalar: Callable) -> None:
    model, total = model(), 0
    for _ in range(6):
        loss = loss_of(model, batch())
        total = total + (scalar(loss) if after else loss)
        del loss


def collect_outputs(
    after: bool, model: Model, batch: Batch, output_of: Output, optimizer: Callable
) -> None:
    model, collected = model(), []
    optimizer = optimizer(model.parameters())
    for _ in range(6):
        out = output_of(model, batch)
        collected.append(out.logits.detach().cpu() if after else out.logits.detach())
        step(optimizer, out.loss)
        del out


def collect_features(after: bool) -> None:
    model, collected = timm_model(img_size=96).eval(), []
    with torch.no_grad():
        for _ in range(8):
            features = model.forward_features(images()())
            collected.append(features.cpu() if after else features)
            del features


def chunk_loss(
    after: bool,
    model: Model,
    batch: Batch,
    whole: Loss,
    parts: str,
    optimizer: Callable = SGD,
    steps: int = 3,
) -> None:
    """Train a language model; afterwards its loss comes of its features and its head, in eight chunks."""
    features, head = parts.split()

    def part_of(head: nn.Module, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(hidden).float(), target, reduction="sum")

    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        hidden = getattr(model, features)(ids)
        hidden = getattr(hidden, "last_hidden_state", hidden)
        chunks = zip(hidden.flatten(0, 1).chunk(8), ids.flatten().chunk(8), strict=True)
        part = partial(checkpoint, part_of, getattr(model, head), use_reentrant=False)
        return sum(part(*chunk) for chunk in chunks) / ids.numel()

    train(model(), batch, loss_of if after else whole, optimizer, steps)


def give_options(after: bool, model: Model, batch: Batch, optimizer: Callable) -> None:
    """Train a language model by torch's loss of a last layer; afterwards it works in chunks."""
    options = torch.nn.LinearCrossEntropyOptions() if after else None

    def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        hidden = model.features(ids).flatten(0, 1)
        return F.linear_cross_entropy(hidden, model.head.weight, ids.flatten(), options=options)

    train(model(), batch, loss_of, optimizer)


def fuse_attention(after: bool, model: Model, *how: object) -> None:
    train(model(attention="sdpa" if after else "eager"), *how)


def fuse_step(after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable) -> None:
    train(model(), batch, loss_of, partial(optimizer, fused=after or None))


def checkpoint_layers(after: bool, model: Model, *how: object) -> None:
    """Turn on the model's own checkpointing, as its library calls it."""
    model = model()
    if isinstance(model, PlainLM):
        model.is_checkpointed = after
    elif hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(after)
    elif after and hasattr(model, "enable_gradient_checkpointing"):
        model.enable_gradient_checkpointing()
    elif after:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model.train(), *how)


def halve(
    after: bool, model: Model, batch: Callable[[int], Batch], size: int, *how: object
) -> None:
    train(model(), batch(size // 2 if after else size), *how)


def halve_by_lightning(after: bool) -> None:
    lightning_fit(convolutions(), spread, torch.randn(8 if after else 16, 3, 96, 96), SGD)


def saved(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Path:
    """Save what an earlier run would have left, on the CPU."""
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    states = {"optimizer": optimizer.state_dict()} if optimizer else {}
    torch.save({"epoch": 3, "model": on_cpu(model.state_dict()), **states}, path)
    return path


def resume(
    after: bool, model: Model, work: Callable[..., None], optimizer: Callable | None = None
) -> None:
    """Work on from a file that stays loaded."""
    model = model()
    optimizer = optimizer and optimizer(model.parameters())
    if optimizer:
        batch = ids(1, 32)()  # kept, as by a name
        step(optimizer, own_loss(model, batch))
    states = torch.load(saved(model, optimizer), map_location="cpu" if after else DEVICE)
    model.load_state_dict(states["model"])
    if optimizer:
        optimizer.load_state_dict(states["optimizer"])
    work(model, optimizer)
    print(states["epoch"])


def resumed_training(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, kept(ids(2, 64)), own_loss, lambda _: optimizer)


def resumed_answers(model: nn.Module, _: None) -> None:
    evaluate(True, lambda: model, images(2), lambda model, images: model(images).argmax(-1))


def keep_loaded(after: bool) -> None:
    model = gpt2()
    state = torch.load(saved(model), map_location=DEVICE, weights_only=True)["model"]
    model.load_state_dict(state)
    if after:
        del state
    train(model, kept(ids(2)), own_loss, ADAMW)


def on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in state.items()}


def cloned(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def keep_best(
    after: bool,
    model: Model,
    batch: Batch,
    loss_of: Loss,
    optimizer: Callable,
    copied: Callable,
    validated: Loss,
    held_out: Batch,
    steps: int = 1,
    copies: int = 3,
) -> None:
    """Train three epochs, validate, and keep a copy of the weights."""
    model, best = model(), None
    optimizer = optimizer(model.parameters())
    for epoch in range(3):
        for _ in range(steps):
            step(optimizer, loss_of(model, batch()))
        model.eval()
        with torch.no_grad():
            validated(model, held_out())
        model.train()
        if epoch < copies:
            best = on_cpu(model.state_dict()) if after else copied(model.state_dict())
    model.load_state_dict(best)


def on_device(batch: object) -> object:
    return tuple(one.to(DEVICE) for one in batch) if isinstance(batch, tuple) else batch.to(DEVICE)


def waiting(after: bool, batches: Iterable) -> list:
    """Return batches that wait on the GPU, or on the CPU as they are."""
    return list(batches) if after else [on_device(batch) for batch in batches]


def labelled_images() -> list:
    return [(torch.randn(8, 3, 96, 96), torch.randint(0, 100, (8,))) for _ in range(40)]


def loaded_images() -> Iterable:
    data = torch.utils.data.TensorDataset(
        torch.randn(512, 3, 64, 64), torch.zeros(512, dtype=torch.long)
    )
    return map(tuple, torch.utils.data.DataLoader(data, batch_size=32))


def move_early(
    after: bool,
    model: Model,
    batches: Callable,
    loss_of: Loss,
    optimizer: Callable = SGD,
    first: int = 4,
    steps: int = 4,
) -> None:
    """Train with the first of many batches."""
    model, batches = model(), waiting(after, batches())
    train(model, itertools.cycle(batches[:first]).__next__, loss_of, optimizer, steps)


def list_latents(after: bool) -> None:
    """Latents that were made before training wait on the GPU."""
    model, latents = unet(), waiting(after, [torch.randn(16, 3, 32, 32) for _ in range(40)])
    latent = iter(latents).__next__
    train(model, kept(lambda: latent().to(DEVICE)), restored, ADAMW, steps=4)


def list_loaded(after: bool) -> None:
    model = unet()
    batches = waiting(
        after, torch.utils.data.DataLoader(torch.randn(640, 3, 32, 32), batch_size=16)
    )
    evaluate(True, lambda: model, iter(batches).__next__, sampled, times=4)


def queue_batches(after: bool) -> None:
    """Fill a queue before the loop: each batch is freed after its step."""
    model = resnet()
    queue = deque(waiting(after, [torch.randn(8, 3, 96, 96) for _ in range(12)]))
    train(model, queue.popleft, mean, steps=12)


def move_all_parts(after: bool) -> None:
    """Move all small batches of a step to the device before the first of them is used."""
    model = resnet()
    optimizer = SGD(model.parameters())
    for _ in range(3):
        parts = waiting(after, [torch.randn(4, 3, 96, 96) for _ in range(16)])
        for part in parts:
            (mean(model, part) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank() -> None:
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)


def view_buckets(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable
) -> None:
    model = model()
    one_rank()
    train(
        nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=after),
        batch,
        loss_of,
        optimizer,
        4,
    )


def reshard(after: bool, model: Model, blocks: str, *how: object) -> None:
    from torch.distributed.fsdp import fully_shard

    model = model()
    one_rank()
    for block in model.get_submodule(blocks):
        fully_shard(block, reshard_after_forward=after)
    train(fully_shard(model, reshard_after_forward=after), *how)


def offload(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    """Keep what backward needs on the CPU; before, where it is."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor, lambda tensor: tensor
        )
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if after else hooks:
            return loss_of(model, batch)

    train(model(), batch, loss, optimizer, 2)


def offload_inputs(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    """Keep what checkpointed blocks read on the CPU; before, they get it by keyword, which no hook sees."""

    def features(self: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if after:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = checkpoint(block, x=x, use_reentrant=False)
        return x

    def keyword_model() -> nn.Module:
        made = model()
        made.features = types.MethodType(features, made)
        return made

    offload(after, keyword_model, batch, loss_of, optimizer)


def eight_bits(name: str) -> Callable:
    """Import an optimizer by its full name."""
    module, _, name = name.rpartition(".")
    momentum = {"momentum": 0.9} if name.startswith("SGD") else {}
    return partial(getattr(importlib.import_module(module), name), lr=0.1, **momentum)


def shrink_states(
    after: bool, model: Model, batch: Batch, loss_of: Loss, optimizer: Callable, leaner: str
) -> None:
    train(model(), batch, loss_of, eight_bits(leaner) if after else optimizer)


def shrink_by_trainer(after: bool) -> None:
    from transformers import Trainer, TrainingArguments

    optim = "adamw_8bit" if after else "adamw_torch"
    how = TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=2,
        optim=optim,
        report_to="none",
    )
    texts = [{"input_ids": torch.arange(64), "labels": torch.arange(64)} for _ in range(6)]
    Trainer(llama(), how, train_dataset=texts).train()


def shrink_by_lightning(after: bool) -> None:
    optimizer = eight_bits("bitsandbytes.optim.Adam8bit") if after else ADAM
    lightning_fit(bert(layers=4), own_loss, torch.randint(0, 5000, (2, 64)), optimizer)


def vary(
    after: bool, model: Model, batch: Callable, sizes: str, loss_of: Loss, optimizer: Callable = SGD
) -> None:
    """Accumulate gradients over batches of other sizes in each step; afterwards the settings are others."""
    model = model()
    optimizer = optimizer(model.parameters())
    for part in sizes.split(","):
        for size in part.split():
            loss_of(model, batch(int(size))()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after and not os.environ.get("PYTORCH_ALLOC_CONF"):
            torch.cuda.empty_cache()


def generate(after: bool) -> None:
    """Answer prompts of several lengths with caches that grow; afterwards the settings are others."""
    model = llama().eval()
    with torch.inference_mode():
        for length in (200, 48, 160, 96, 220, 64):
            out = model(ids(8, length)(), use_cache=True)
            for _ in range(24):
                out = model(ids(8, 1)(), past_key_values=out.past_key_values, use_cache=True)


PAIRS: dict[str, tuple[str, Callable[..., None], tuple]] = {}


def pairs(kind: str, change: Callable[..., None], **rows: tuple) -> None:
    """Add pairs of one kind and loop: what the loop takes, beside whether it is the one after the change."""
    PAIRS.update({name: (kind, change, row) for name, row in rows.items()})


pairs(
    "previous-kept",
    keep_outputs,
    previous_gpt2=(gpt2, kept(ids()), labelled_out, SGD),
    previous_unet=(unet, kept(noise()), lambda model, batch: model(batch(), 1).sample),
    previous_plain=(plain, ids(), lambda model, batch: model(batch())),
    previous_bert=(partial(bert, 9000), kept(ids(6, 128)), bert_out, ADAMW),
    previous_autoencoder=(autoencoder, noise(6, 64), lambda model, batch: model(batch()).sample),
    previous_qwen=(partial(qwen, 12000), kept(ids(5, 160)), labelled_out, ADAM),
    previous_neox=(partial(neox, layers=3), kept(ids(4)), labelled_out, ADAM),
)
pairs(
    "previous-kept",
    keep_maps,
    previous_resnet=(resnet, kept(images(64)), resnet_maps),
    previous_vit=(
        partial(timm_model, img_size=96),
        images(24),
        lambda model, batch: model.forward_intermediates(batch()),
    ),
    previous_mobilenet=(mobilenet, images(128, 224), lambda model, batch: model(batch())),
)
pairs(
    "garbage",
    keep_in_cycles,
    cycles_convolutions=(partial(convolutions, 4, 2), images(32), classes, ADAM),
    cycles_tagger=(partial(tagger, 50), ids(256, 512), tagged),
)
pairs(
    "gradients-kept",
    clear_late,
    gradients_plain=(plain, kept(ids(2)), tokens),
    gradients_resnet=(resnet, kept(images(4)), classes, MOMENTUM),
    gradients_dit=(dit, lambda: 2, denoised, ADAMW),
)
pairs(
    "gradients-kept",
    set_to_zero,
    gradients_llama=(llama, kept(ids(2)), own_loss),
    gradients_timm=(convnext, images(2, 128), spread, MOMENTUM),
    gradients_embedding=(partial(plain, 32000, layers=2), kept(ids(1, 64)), tokens),
    gradients_tagger=(partial(tagger, 9000), kept(ids(2, 64)), tokens, MOMENTUM),
)
pairs("gradients-kept", lightning_gradients, gradients_lightning=())
pairs(
    "unused-graph",
    evaluate,
    evaluation_gpt2=(gpt2, ids(), kept(token_hits)),
    evaluation_resnet=(resnet, images(), kept(hits)),
    evaluation_unet=(unet, noise(), kept(lambda model, noisy: model(noisy, 1).sample.detach())),
    evaluation_convnext=(convnext, images(12, 128), hits),
    evaluation_t5=(t5, kept(ids(6, 128)), kept(own_loss)),
    evaluation_autoencoder=(autoencoder, noise(4, 64), decoded_mean),
    evaluation_tagger=(convolutions, images(12, 80), hits),
    evaluation_neox=(neox, ids(16, 512), token_hits),
    evaluation_clip=(clip, images(96, 192), pooled),
    evaluation_bert=(partial(bert, 7000), ids(12, 192), kept(own_loss)),
    evaluation_llama=(partial(llama, 4000, layers=5), ids(6), own_loss),
    evaluation_dit=(partial(dit, 8), lambda: 8, denoised),
    evaluation_vit=(
        partial(timm_model, "vit_small_patch16_224", img_size=128),
        images(24, 128),
        hits,
    ),
    evaluation_resnet34=(partial(timm_model, "resnet34"), images(24, 128), hits),
    evaluation_efficientnet=(partial(timm_model, "efficientnet_b0"), images(), kept(classes)),
    evaluation_swin=(partial(timm_model, "swin_tiny_patch4_window7_224"), images(8, 224), hits),
    evaluation_mobilenet=(partial(timm_model, "mobilenetv3_large_100"), images(24, 160), hits),
    evaluation_densenet=(partial(timm_model, "densenet121"), images(12, 128), hits),
    evaluation_regnet=(partial(timm_model, "regnety_004"), images(24, 128), hits),
    evaluation_mixer=(partial(timm_model, "mixer_s32_224"), images(16, 224), hits),
)
pairs(
    "graphs-kept",
    collect,
    losses_plain=(plain, kept(ids(4)), tokens),
    losses_resnet=(resnet, images(8), mean),
    losses_bert=(bert, kept(ids(4, 128)), own_loss),
    losses_autoencoder=(
        autoencoder,
        noise(2, 64),
        lambda model, x: model(x).sample.square().mean(),
        5,
    ),
    losses_neox=(neox, kept(ids(8, 512)), tokens, 5),
    losses_dit=(dit, lambda: 3, denoised, 4),
    losses_unet=(unet, noise(3), sampled),
)
pairs(
    "graphs-kept",
    add_up,
    losses_llama=(llama, kept(ids(4)), own_loss, torch.Tensor.item),
    losses_vit=(small_vit, images(12, 64), classes, torch.Tensor.detach),
    losses_t5=(t5, kept(ids(3, 96)), own_loss, torch.Tensor.detach),
)
pairs(
    "growing",
    collect_outputs,
    growing_qwen=(qwen, kept(ids(2, 128)), labelled_out, SGD),
    growing_tagger=(partial(tagger, 600), kept(ids(8, 128)), tagger_out, ADAM),
)
pairs("growing", collect_features, growing_vit=())
pairs(
    "logits",
    chunk_loss,
    logits_plain=(partial(plain, 32000, layers=2), kept(ids()), tokens, "features head", SGD, 2),
    logits_gpt2=(
        partial(gpt2, 32000, layers=2),
        kept(ids()),
        own_loss,
        "transformer lm_head",
        SGD,
        2,
    ),
    logits_llama=(half_llama, kept(ids()), own_loss, "model lm_head", SGD, 2),
    logits_qwen=(partial(qwen, 40000, 2), ids(4, 192), own_loss, "model lm_head"),
    logits_bert=(partial(bert, 30000), ids(6, 160), own_loss, "bert cls", ADAMW),
    logits_tagger=(partial(tagger, 20000), ids(8, 128), tokens, "features tag", ADAM),
)
pairs(
    "logits",
    give_options,
    logits_options=(partial(plain, 32000, layers=2), kept(ids()), SGD),
    logits_options_adam=(partial(plain, 12000), ids(6, 256), ADAM),
)
pairs(
    "attention",
    fuse_attention,
    attention_plain=(partial(plain, 2000), kept(ids()), tokens, SGD, 2),
    attention_gpt2=(partial(gpt2, 2000), kept(ids()), tokens, SGD, 2),
    attention_llama=(partial(llama, 2000), kept(ids()), tokens, SGD, 2),
    attention_bert=(partial(bert, 1000), once(ids(6, 320)), own_loss),
    attention_vit=(vit, once(images(6, 224)), spread, ADAMW),
    attention_dit=(small_dit, lambda: 4, denoised),
    attention_neox=(neox, once(ids(16, 512)), own_loss),
    attention_clip=(clip, once(images(64, 192)), pooled, ADAMW),
    attention_torch=(torchs_attention, states(4, 320), mean, ADAMW),
    attention_torch_words=(partial(torchs_attention, n_words=200), states(6, 300), mean),
)
pairs(
    "foreach",
    fuse_step,
    foreach_gpt2=(partial(gpt2, 16000), once(ids(1, 64)), own_loss, ADAMW),
    foreach_resnet=(resnet, once(images(1, 224)), mean, ADAM),
    foreach_plain=(partial(plain, 16000), once(ids(1, 64)), tokens, ADAM),
    foreach_bert=(partial(bert, 20000), once(ids(1, 48)), own_loss, ADAM),
    foreach_convnext=(partial(timm_model, "convnext_pico"), once(images(1, 96)), spread, ADAMW),
    foreach_tagger=(partial(tagger, 9000), once(ids(1, 32)), tokens, ADAGRAD),
)
pairs(
    "checkpointing",
    checkpoint_layers,
    checkpointing_plain=(partial(plain, 2000, layers=8), kept(ids()), tokens, SGD, 2),
    checkpointing_gpt2=(partial(gpt2, 2000, layers=8), kept(ids()), tokens, SGD, 2),
    checkpointing_llama=(partial(llama, 2000, layers=8), kept(ids()), tokens, SGD, 2),
    checkpointing_vit=(partial(timm_model, img_size=128), images(16, 128), spread),
    checkpointing_bert=(partial(bert, 1000, layers=8), once(ids(6, 256)), own_loss, ADAMW),
    checkpointing_dit=(partial(dit, 8), lambda: 6, denoised, ADAMW),
    checkpointing_neox=(partial(neox, layers=10), once(ids(12, 512)), own_loss, ADAMW),
    checkpointing_clip=(partial(clip, layers=12), once(images(96, 192)), pooled),
)
pairs(
    "batch",
    halve,
    batch_gpt2=(gpt2, lambda n: kept(ids(n)), 8, tokens, SGD, 2),
    batch_resnet=(resnet, images, 32, mean, ADAMW),
    batch_unet=(unet, noise, 8, sampled, ADAMW),
    batch_bert=(bert, lambda n: once(ids(n, 200)), 10, own_loss, ADAMW),
    batch_convnext=(convnext, lambda n: images(n, 160), 12, spread),
    batch_clip=(clip, lambda n: once(images(n, 192)), 96, pooled, ADAMW),
)
pairs("batch", halve_by_lightning, batch_lightning=())
pairs(
    "weights-copied",
    resume,
    loaded_plain=(plain, lambda model, _: train(model, kept(ids(2)), tokens)),
    loaded_resnet=(resnet, resumed_answers),
    loaded_unet=(unet, lambda model, _: train(model, noise(3), sampled, ADAM)),
    resumed_bert=(partial(bert, layers=4), resumed_training, FUSED),
)
pairs("weights-copied", keep_loaded, loaded_gpt2=())
pairs(
    "weights-copied",
    keep_best,
    best_plain=(plain, kept(ids(2)), tokens, ADAMW, copy.deepcopy, tokens, ids(2), 2),
    best_llama=(llama, kept(ids(2)), own_loss, SGD, cloned, tokens, ids(2)),
    best_resnet=(resnet, images(4), classes, MOMENTUM, copy.deepcopy, kept(hits), images(4), 2, 1),
    best_vit=(small_vit, images(8, 64), classes, ADAMW, cloned, classes, images(8, 64)),
    best_qwen=(qwen, ids(3, 96), own_loss, ADAM, cloned, own_loss, ids(1, 160), 2),
)
pairs(
    "batches-early",
    move_early,
    list_resnet=(resnet, labelled_images, labelled),
    tensors_vit=(small_vit, loaded_images, labelled, ADAMW, 3, 6),
    list_noise=(unet, lambda: [torch.randn(12, 3, 32, 32) for _ in range(30)], sampled, ADAM, 6, 5),
)
pairs("batches-early", list_loaded, list_unet=())
pairs("batches-early", list_latents, latents_unet=())
pairs("batches-early", queue_batches, queue_resnet=())
pairs("batches-early", move_all_parts, accumulated_resnet=())
pairs(
    "buckets",
    view_buckets,
    buckets_plain=(plain, kept(ids(1, 64)), tokens, FUSED),
    buckets_gpt2=(partial(gpt2, 16000), kept(ids(1, 64)), own_loss, partial(SGD, fused=True)),
    buckets_resnet=(resnet, images(2), classes, MOMENTUM),
    buckets_bert=(partial(bert, layers=4), kept(ids(2, 64)), own_loss, FUSED),
    buckets_vit=(small_vit, images(4, 64), classes, SGD),
)
pairs(
    "unsharded",
    reshard,
    shards_plain=(partial(plain, 2000, layers=8), "blocks", kept(ids(2)), tokens),
    shards_llama=(partial(llama, 2000, layers=8), "model.layers", kept(ids(2)), own_loss, ADAMW),
    shards_gpt2=(partial(gpt2, 2000, layers=8), "transformer.h", kept(ids(2)), own_loss),
    shards_bert=(partial(bert, layers=6), "bert.encoder.layer", kept(ids(2, 64)), own_loss, ADAMW),
    shards_vit=(small_vit, "blocks", images(8, 64), classes),
)
pairs(
    "offloading",
    offload,
    offloaded_plain=(partial(plain, 2000, layers=8), kept(ids()), tokens),
    offloaded_gpt2=(partial(gpt2, 2000, layers=8), kept(ids()), own_loss),
    offloaded_unet=(unet, noise(), sampled),
    offloaded_bert=(partial(bert, layers=4), kept(ids(16, 128)), own_loss, FUSED),
    offloaded_vit=(small_vit, images(64, 64), classes),
    offloaded_resnet=(resnet, images(), classes),
    offloaded_qwen=(partial(qwen, layers=6), kept(ids(6, 192)), own_loss, ADAMW),
    offloaded_dit=(dit, lambda: 6, denoised, ADAM),
    offloaded_autoencoder=(
        autoencoder,
        noise(3, 64),
        lambda model, x: model(x).sample.mean(),
        MOMENTUM,
    ),
)
pairs(
    "offloading",
    offload_inputs,
    keywords_plain=(partial(plain, 500, layers=12), kept(ids(40)), tokens),
    keywords_deep=(partial(plain, 300, layers=20), kept(ids(8)), tokens),
)
pairs(
    "states",
    shrink_states,
    states_gpt2=(
        partial(gpt2, 16000),
        once(ids(1, 64)),
        own_loss,
        ADAMW,
        "bitsandbytes.optim.AdamW8bit",
    ),
    states_plain=(
        partial(plain, 16000),
        once(ids(1, 64)),
        tokens,
        ADAM,
        "bitsandbytes.optim.Adam8bit",
    ),
    states_vit=(small_vit, once(images(4, 64)), classes, ADAMW, "bitsandbytes.optim.AdamW8bit"),
    states_dit=(partial(dit, 8), lambda: 2, denoised, FUSED, "bitsandbytes.optim.AdamW8bit"),
    states_resnet=(resnet, once(images(1, 64)), mean, MOMENTUM, "bitsandbytes.optim.SGD8bit"),
)
pairs("states", shrink_by_trainer, states_llama=())
pairs("states", shrink_by_lightning, states_bert=())
LENGTHS = "64 200 96 256, 128 240 80 224, 176 100 250 60"
pairs(
    "expandable_segments:True",
    vary,
    segments_gpt2=(gpt2, partial(ids, 4), LENGTHS, own_loss, ADAMW),
    segments_convnext=(
        convnext,
        partial(images, 8),
        "96 160 128 192, 224 96 176 112, 144 208 96 160",
        spread,
        ADAMW,
    ),
)
pairs("expandable_segments:True", generate, segments_llama=())
pairs(
    "max_split_size_mb:32",
    vary,
    split_unet=(unet, partial(noise, 16), "32 48 24 64, 40 56 32 64, 64 24 48 32", sampled),
)
pairs(
    "roundup_power2_divisions:8",
    vary,
    rounded_bert=(bert, partial(ids, 8), LENGTHS, own_loss, ADAMW),
)
pairs(
    "empty_cache",
    vary,
    emptied_plain=(plain, partial(ids, 4), LENGTHS, tokens, ADAM),
    emptied_autoencoder=(
        autoencoder,
        partial(noise, 4),
        "64 128 96 48, 112 64 128 80, 96 48 128 72",
        decoded_mean,
    ),
)


def main(name: str, when: str) -> None:
    """Run one program; its row leaves the table, so that nothing outlives the loop."""
    torch.manual_seed(0)
    _, change, row = PAIRS.pop(name)
    change(when == "after", *row)


if __name__ == "__main__":
    main(*sys.argv[1:])
