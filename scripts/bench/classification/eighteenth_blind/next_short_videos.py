"""An HSTU learns which short video a viewer watches next: sampled softmax over normalized embeddings under Accelerate in bf16, AdamW, linear warm-up, ranked on held-out viewers."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

VIDEOS, LENGTH, WIDTH = 40_000, 100, 128


class Histories(Dataset):
    """What viewers watched, in order, with the seconds between two videos; padded on the right."""

    def __init__(self, viewers, seed):
        self.viewers, self.seed = viewers, seed

    def __len__(self):
        return self.viewers

    def __getitem__(self, index):
        draw = np.random.default_rng(self.seed + index)
        length = draw.integers(30, LENGTH + 1)
        ids = np.zeros(LENGTH + 1, np.int64)
        ids[: length + 1] = np.minimum(draw.zipf(1.2, length + 1), VIDEOS - 1)
        times = np.zeros(LENGTH + 1, np.int64)
        times[: length + 1] = draw.exponential(3000, length + 1).astype(np.int64).cumsum()
        return {"ids": ids[:-1], "times": times[:-1], "targets": ids[1:] * (ids[:-1] > 0), "length": length}


class RelativeBias(nn.Module):
    """Bias of attention by distance in the sequence and by the logarithm of the time between."""

    def __init__(self, length, buckets=128):
        super().__init__()
        self.buckets = buckets
        self.time = nn.Parameter(torch.randn(buckets + 1) * 0.02)
        self.position = nn.Parameter(torch.randn(2 * length - 1) * 0.02)

    def forward(self, times):
        length = times.shape[1]
        apart = (times[:, :, None] - times[:, None, :]).abs().clamp(min=1)
        bucket = (apart.float().log() / 0.301).long().clamp(0, self.buckets)
        steps = torch.arange(length, device=times.device)
        position = self.position[steps[:, None] - steps[None, :] + length - 1]
        return position + self.time[bucket]


class HSTULayer(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.uvqk = nn.Linear(width, 4 * width, bias=False)
        self.bias = RelativeBias(length)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, times, allowed):
        b, n, d = x.shape
        u, v, q, k = F.silu(self.uvqk(self.norm_in(x))).chunk(4, -1)
        q, k, v = (y.view(b, n, self.heads, self.head).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-1, -2) + self.bias(times).unsqueeze(1)
        weights = F.silu(scores) / n * allowed
        y = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(b, n, d)
        return x + self.out(self.dropout(u * self.norm_out(y)))


class HSTU(nn.Module):
    def __init__(self, depth=4, heads=4, dropout=0.2):
        super().__init__()
        self.items = nn.Embedding(VIDEOS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        nn.init.trunc_normal_(self.items.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([HSTULayer(WIDTH, heads, LENGTH, dropout) for _ in range(depth)])

    def forward(self, ids, times):
        steps = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.items(ids) * math.sqrt(WIDTH) + self.positions(steps))
        causal = torch.ones(len(steps), len(steps), dtype=torch.bool, device=ids.device).tril()
        allowed = (causal & (ids > 0)[:, None, :]).unsqueeze(1)
        for layer in self.layers:
            x = layer(x, times, allowed)
        return F.normalize(x, dim=-1, eps=1e-6)


def sampled_softmax(model, states, targets, negatives=256, temperature=0.05):
    """Every position against its own target and uniformly drawn videos, without those that are the target."""
    kept = targets > 0
    states, targets = states[kept].float(), targets[kept]
    items = model.items.weight
    drawn = torch.randint(1, VIDEOS, (negatives,), device=targets.device)
    positive = (states * F.normalize(items[targets], dim=-1)).sum(-1, keepdim=True)
    negative = states @ F.normalize(items[drawn], dim=-1).T
    negative = negative.masked_fill(drawn[None, :] == targets[:, None], -5e4)
    logits = torch.cat((positive, negative), 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(targets), dtype=torch.long, device=targets.device))


@torch.no_grad()
def hit_rate(accelerator, model, loader, k=50):
    model.eval()
    catalogue = F.normalize(accelerator.unwrap_model(model).items.weight, dim=-1)
    hits, seen = 0, 0
    for batch in loader:
        states = model(batch["ids"], batch["times"])
        rows = torch.arange(len(states), device=states.device)
        last = states[rows, batch["length"] - 1].float()
        best = (last @ catalogue.T).topk(k).indices
        wanted = batch["targets"][rows, batch["length"] - 1]
        hits += (best == wanted[:, None]).any(1).sum().item()
        seen += len(rows)
    model.train()
    return hits / seen


def main():
    set_seed(3)
    accelerator = Accelerator(mixed_precision="bf16")
    model = HSTU()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
    model, optimizer, scheduler, train, held_out = accelerator.prepare(
        model,
        optimizer,
        scheduler,
        DataLoader(Histories(3200, 0), batch_size=32, shuffle=True, drop_last=True),
        DataLoader(Histories(64, 50_000), batch_size=32),
    )
    model.train()
    for step, batch in enumerate(train):
        states = model(batch["ids"], batch["times"])
        loss = sampled_softmax(accelerator.unwrap_model(model), states, batch["targets"])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.3f}")
        if step == 1:
            accelerator.print(f"HR@50 {hit_rate(accelerator, model, held_out):.4f}")
        end_of_step(inputs=batch, activations=[states, loss])


if __name__ == "__main__":
    main()
