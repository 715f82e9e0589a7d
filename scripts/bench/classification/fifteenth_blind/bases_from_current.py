"""Bases of DNA are read from the current through a nanopore, as Bonito trains its basecallers: convolutions with a stride, a transformer that looks at what is near, CTC with smoothed labels, bfloat16 by autocast, a fused AdamW, a batch in two parts, reads are called and compared between."""

import math

import numpy as np
import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ALPHABET, CHUNK, PER_BASE = "NACGT", 2400, 12


def chunks(n, seed):
    """Currents of random sequences; each base and the two around it set a level for a while."""
    rng = np.random.default_rng(seed)
    levels = rng.normal(size=(5, 5, 5))
    currents = np.zeros((n, 1, CHUNK), "float32")
    targets, lengths = np.zeros((n, CHUNK // PER_BASE + 40), "int64"), np.zeros(n, "int64")
    for i in range(n):
        bases = rng.integers(1, 5, targets.shape[1])
        stays = rng.gamma(4, PER_BASE / 4, len(bases)).round().astype(int).clip(3)
        used = min(int(np.searchsorted(np.cumsum(stays), CHUNK)), len(bases) - 2)
        around = levels[np.roll(bases, 1), bases, np.roll(bases, -1)]
        signal = np.repeat(around, stays)[:CHUNK]
        currents[i, 0, : len(signal)] = signal + 0.2 * rng.normal(size=len(signal))
        targets[i, :used], lengths[i] = bases[:used], used
    median = np.median(currents, axis=-1, keepdims=True)
    currents = (currents - median) / (1.48 * np.median(np.abs(currents - median), axis=-1, keepdims=True))
    return TensorDataset(torch.from_numpy(currents), torch.from_numpy(targets), torch.from_numpy(lengths))


class Attention(nn.Module):
    """Attention to what is near, with rotary positions."""

    def __init__(self, size, n_heads, window):
        super().__init__()
        self.n_heads, self.window = n_heads, window
        self.qkv, self.out = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size)
        frequencies = 1.0 / 10_000 ** (torch.arange(0, size // n_heads, 2) / (size // n_heads))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x):
        n, length, size = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        angles = torch.arange(length, device=x.device)[:, None] * self.frequencies
        q, k = rotated(q, angles), rotated(k, angles)
        places = torch.arange(length, device=x.device)
        near = (places[:, None] - places[None]).abs() <= self.window
        y = nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype), attn_mask=near)
        return self.out(y.transpose(1, 2).reshape(n, length, size))


def rotated(x, angles):
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Gated(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * hidden, bias=False), nn.Linear(hidden, size, bias=False)

    def forward(self, x):
        y, gate = self.up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * y)


class Encoder(nn.Module):
    """Norms come after, with a residual that weighs more (DeepNorm)."""

    def __init__(self, size, n_heads, hidden, window, alpha):
        super().__init__()
        self.attention, self.feed = Attention(size, n_heads, window), Gated(size, hidden)
        self.norm1, self.norm2 = nn.RMSNorm(size, eps=1e-5), nn.RMSNorm(size, eps=1e-5)
        self.alpha = alpha

    def forward(self, x):
        x = self.norm1(self.attention(x) + self.alpha * x)
        return self.norm2(self.feed(x) + self.alpha * x)


class Basecaller(nn.Module):
    def __init__(self, size=256, n_layers=4):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv1d(1, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.SiLU(),
            nn.Conv1d(64, 128, 9, stride=3, padding=4),
            nn.BatchNorm1d(128),
            nn.SiLU(),
            nn.Conv1d(128, size, 9, stride=4, padding=4),
            nn.BatchNorm1d(size),
            nn.SiLU(),
        )
        alpha = (2 * n_layers) ** 0.25
        self.layers = nn.Sequential(*(Encoder(size, 4, 2 * size, 63, alpha) for _ in range(n_layers)))
        self.upsample = nn.Linear(size, 2 * size)
        self.head = nn.Linear(size, len(ALPHABET))

    def forward(self, x):
        x = self.layers(self.convolutions(x).transpose(1, 2))
        n, length, size = x.shape
        x = self.upsample(x).view(n, 2 * length, size)
        return self.head(x).transpose(0, 1).log_softmax(dim=-1)


def ctc(log_probs, targets, lengths):
    n_steps, n, n_letters = log_probs.shape
    weights = torch.cat([torch.tensor([0.4]), (0.1 / (n_letters - 1)) * torch.ones(n_letters - 1)]).to(
        log_probs.device
    )
    loss = nn.functional.ctc_loss(
        log_probs.float(), targets, torch.full((n,), n_steps), lengths, zero_infinity=True
    )
    smoothing = -(log_probs * weights).mean()
    return {"loss": loss + smoothing, "ctc": loss, "smoothing": smoothing}


def called(log_probs):
    """Best letters of each read, with repetitions and blanks taken out."""
    sequences = []
    for path in log_probs.argmax(-1).T.cpu().numpy():
        kept = path[np.insert(np.diff(path) != 0, 0, True)]
        sequences.append("".join(ALPHABET[letter] for letter in kept if letter))
    return sequences


def distance(a, b):
    row = np.arange(len(b) + 1)
    for i, letter in enumerate(a, 1):
        new = np.minimum(row[1:] + 1, row[:-1] + np.array([letter != other for other in b]))
        row_new = np.concatenate([[i], new])
        row = np.minimum.accumulate(row_new - np.arange(len(row_new))) + np.arange(len(row_new))
    return int(row[-1])


class Training:
    def __init__(self, model, device, n_steps, lr=2e-3, n_parts=2):
        self.model, self.device, self.n_parts = model, device, n_parts
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
        warm = max(1, n_steps // 20)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / n_steps)) + 0.01),
        )

    def step(self, batch):
        self.optimizer.zero_grad()
        sums, parts = {}, []
        for data, targets, lengths in zip(*(each.chunk(self.n_parts) for each in batch)):
            data, targets, lengths = data.to(self.device), targets.to(self.device), lengths.to(self.device)
            with torch.amp.autocast("cuda", dtype=torch.bfloat16):
                log_probs = self.model(data)
                losses = ctc(log_probs, targets, lengths)
            (losses["loss"] / self.n_parts).backward()
            for name, value in losses.items():
                sums[name] = sums.get(name, 0) + value.item() / self.n_parts
            parts = [data, targets, lengths]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=2.0).item()
        self.optimizer.step()
        self.schedule.step()
        end_of_step(inputs=parts, activations=[log_probs, losses])
        return sums, norm

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        accuracies, total = [], []
        for data, targets, lengths in loader:
            with torch.amp.autocast("cuda", dtype=torch.bfloat16):
                log_probs = self.model(data.to(self.device))
                total.append(ctc(log_probs, targets.to(self.device), lengths.to(self.device))["ctc"].item())
            for read, target, length in zip(called(log_probs), targets.numpy(), lengths.tolist()):
                true = "".join(ALPHABET[letter] for letter in target[:length])
                accuracies.append(max(0.0, 1 - distance(read, true) / len(true)))
        self.model.train()
        return np.mean(total), np.mean(accuracies)


def main():
    torch.manual_seed(25)
    device = torch.device("cuda")
    train = DataLoader(chunks(64, seed=1), batch_size=32, shuffle=True, drop_last=True)
    valid = DataLoader(chunks(8, seed=2), batch_size=8)
    model = Basecaller().to(device)
    training = Training(model, device, n_steps=100)
    for epoch in range(1, 3):
        for batch in train:
            losses, norm = training.step(batch)
            print(f"loss {losses['loss']:.3f}, norm {norm:.2f}")
        torch.save(model.state_dict(), f"weights_{epoch}.tar")
        loss, accuracy = training.validate(valid)
        print(f"epoch {epoch}: {loss:.3f}, accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
