"""Entries for techniques of training: experts' tricks that change who holds memory, and for how long."""

from functools import partial

import torch
from language import Block, Transformer, next_word, words
from setups import Iterations, Known, Setup, Tensors, make_optimizer, states_of, train
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Recommender(nn.Module):
    """Large tables of users and things, and a small network on top."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(20_000, 32), nn.Embedding(5_000, 32)
        self.bags = nn.EmbeddingBag(3_000, 32, mode="sum")
        self.net = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(
        self, users: torch.Tensor, things: torch.Tensor, bags: torch.Tensor
    ) -> torch.Tensor:
        """Return one score per pair."""
        return self.net(
            torch.cat((self.users(users), self.things(things), self.bags(bags)), 1)
        ).squeeze(1)


def recommender(setup: Setup) -> Iterations:
    """Embedding tables that are far larger than everything computed with them."""

    def batch() -> Tensors:
        users, things = torch.randint(0, 20_000, (512,)), torch.randint(0, 5_000, (512,))
        return (
            users.cuda(),
            things.cuda(),
            torch.randint(0, 3_000, (512, 8)).cuda(),
            torch.rand(512).cuda(),
        )

    def loss(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(model(*batch[:3]), batch[3])

    return train(Recommender().cuda(), batch, loss, setup)


class Lora(nn.Module):
    """A frozen linear map, and two thin trained ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what is learned to what is known."""
        return self.base(x) + (x @ self.a.T) @ self.b.T


def lora(setup: Setup) -> Iterations:
    """A frozen backbone with thin trained adapters."""
    model = Transformer()
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.attention.qkv, block.up = Lora(block.attention.qkv), Lora(block.up)
    return train(model.cuda(), words, next_word, setup)


class Checkpointed(nn.Module):
    """Layers that forget their activations and compute them again."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.is_reentrant = is_reentrant
        self.words = nn.Embedding(1024, 128)
        self.blocks = nn.ModuleList(Block(128, 4) for _ in range(4))
        self.head = nn.Linear(128, 1024)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the logits of every next word."""
        x = self.words(batch)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.is_reentrant)
        return self.head(x)


def _checkpointing(setup: Setup, *, is_reentrant: bool) -> Iterations:
    model = Checkpointed(is_reentrant=is_reentrant).cuda()
    return train(model, lambda: (torch.randint(0, 1024, (16, 64)).cuda(),), next_word, setup)


checkpointing = partial(_checkpointing, is_reentrant=False)
checkpointing_reentrant = partial(_checkpointing, is_reentrant=True)


def amp(setup: Setup) -> Iterations:
    """Half precision where it is safe, with a scaled loss and clipped gradients."""
    model = Transformer().cuda()
    optimizer = make_optimizer(setup, model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    while True:
        (batch,) = words()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = next_word(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield Known(inputs=(batch,))


def accumulation(setup: Setup) -> Iterations:
    """Gradients of three batches make one step; they are dropped after it."""
    model = Transformer(n_layers=2).cuda()
    optimizer = make_optimizer(setup, model.parameters())
    total = torch.zeros((), device="cuda")
    while True:
        batches = []
        for _ in range(3):
            (batch,) = words(4)
            batches.append(batch)
            loss = next_word(model, batch) / 3
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        yield Known(inputs=batches, states=states_of(optimizer))


def closure(setup: Setup) -> Iterations:
    """Forward and backward run within the optimizer's step, as Lightning has it."""
    model = Transformer(n_layers=2).cuda()
    optimizer = make_optimizer(setup, model.parameters())
    while True:
        (batch,) = words()

        def forward_and_backward(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=setup.set_to_none)
            loss = next_word(model, batch)
            loss.backward()
            return loss

        optimizer.step(forward_and_backward)
        yield Known(inputs=(batch,), states=states_of(optimizer))


def compiled(setup: Setup) -> Iterations:
    """A model whose forward and backward are inductor's code."""
    model = torch.compile(Transformer(n_layers=2).cuda())
    return train(model, words, next_word, setup)


def averaged(setup: Setup) -> Iterations:
    """A second copy of the model follows as a moving average; the logits are kept for a metric."""
    model = Transformer(n_layers=2).cuda()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    optimizer = make_optimizer(setup, model.parameters())
    while True:
        (batch,) = words()
        logits = model(batch)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        yield Known(inputs=(batch,), states=states_of(optimizer), activations=(logits,))


def bfloat16(setup: Setup) -> Iterations:
    """Weights, gradients and states in half precision, a schedule of learning rates, and a validation."""
    model = Transformer(n_layers=2).to(device="cuda", dtype=torch.bfloat16)
    optimizer = make_optimizer(setup, model.parameters())
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        if setup.optimizer != "own"
        else None
    )
    while True:
        (batch,) = words()
        loss = next_word(model, batch)
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        model.eval()
        with torch.no_grad():
            float(next_word(model, batch))
        model.train()
        yield Known(inputs=(batch,), states=states_of(optimizer))
