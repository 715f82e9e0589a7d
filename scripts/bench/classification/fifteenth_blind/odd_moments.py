"""Odd moments of a server's sensors are found by the Anomaly Transformer, as its authors' code does it: attention beside a learned prior of nearness, their discrepancy is made small and large by two backwards through one graph, the rate is halved every epoch, thresholds from the energy of all windows."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from sklearn.metrics import precision_recall_fscore_support
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW, CHANNELS, K = 100, 38, 3


class Sensors(Dataset):
    """Windows of a long record; moments that are odd are marked in what is tested."""

    def __init__(self, length, step, seed, odd=0.0):
        rng = np.random.default_rng(seed)
        time = np.arange(length)[:, None]
        mixed = np.sin(2 * np.pi * time / rng.uniform(20, 400, (1, 12)) + rng.uniform(0, 6, (1, 12)))
        self.values = (
            mixed @ rng.normal(size=(12, CHANNELS)) / 3 + 0.1 * rng.normal(size=(length, CHANNELS))
        ).astype("float32")
        self.labels = np.zeros(length, "float32")
        for start in rng.integers(0, length - 40, int(odd * length / 20)):
            self.labels[start : start + 20] = 1
            self.values[start : start + 20, rng.integers(0, CHANNELS, 6)] += rng.normal(2, 1, 6)
        self.values = (self.values - self.values.mean(0)) / self.values.std(0)
        self.step = step

    def __len__(self):
        return (len(self.values) - WINDOW) // self.step + 1

    def __getitem__(self, i):
        at = i * self.step
        return self.values[at : at + WINDOW], self.labels[at : at + WINDOW]


class AnomalyAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.sigma = nn.Linear(d_model, n_heads)
        self.out = nn.Linear(d_model, d_model)
        places = torch.arange(WINDOW)
        self.distances = (places[:, None] - places[None]).abs().float().cuda()

    def forward(self, x):
        b, length, d = x.shape
        q, k, v = (layer(x).view(b, length, self.n_heads, -1) for layer in (self.query, self.key, self.value))
        scores = torch.einsum("blhe,bshe->bhls", q, k) / math.sqrt(d // self.n_heads)
        series = torch.softmax(scores, dim=-1)
        sigma = self.sigma(x).transpose(1, 2)
        sigma = torch.pow(3, torch.sigmoid(sigma * 5) + 1e-5) - 1
        sigma = sigma.unsqueeze(-1).repeat(1, 1, 1, length)
        distances = self.distances.unsqueeze(0).unsqueeze(0).repeat(b, self.n_heads, 1, 1)
        prior = 1.0 / (math.sqrt(2 * math.pi) * sigma) * torch.exp(-(distances**2) / 2 / sigma**2)
        mixed = torch.einsum("bhls,bshd->blhd", series, v).reshape(b, length, d)
        return self.out(mixed), series, prior


class Layer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff):
        super().__init__()
        self.attention = AnomalyAttention(d_model, n_heads)
        self.conv1, self.conv2 = nn.Conv1d(d_model, d_ff, 1), nn.Conv1d(d_ff, d_model, 1)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        new, series, prior = self.attention(x)
        x = self.norm1(x + new)
        y = self.conv2(F.gelu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + y), series, prior


class AnomalyTransformer(nn.Module):
    def __init__(self, d_model=256, n_heads=4, d_ff=256, n_layers=3):
        super().__init__()
        self.embed = nn.Conv1d(CHANNELS, d_model, 3, padding=1, padding_mode="circular", bias=False)
        place = torch.arange(WINDOW).unsqueeze(1) * torch.exp(
            torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model)
        )
        self.register_buffer("places", torch.stack([place.sin(), place.cos()], dim=-1).flatten(1))
        self.layers = nn.ModuleList(Layer(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm, self.project = nn.LayerNorm(d_model), nn.Linear(d_model, CHANNELS)

    def forward(self, x):
        x = self.embed(x.transpose(1, 2)).transpose(1, 2) + self.places
        all_series, all_priors = [], []
        for layer in self.layers:
            x, series, prior = layer(x)
            all_series.append(series)
            all_priors.append(prior)
        return self.project(self.norm(x)), all_series, all_priors


def divergence(p, q):
    return (p * (torch.log(p + 1e-4) - torch.log(q + 1e-4))).sum(-1).mean(1)


def discrepancies(all_series, all_priors):
    """How far series and priors are apart, once to move the series and once to move the priors."""
    series_loss = prior_loss = 0.0
    for series, prior in zip(all_series, all_priors):
        normed = prior / prior.sum(-1, keepdim=True)
        series_loss = series_loss + divergence(series, normed.detach()) + divergence(normed.detach(), series)
        prior_loss = prior_loss + divergence(normed, series.detach()) + divergence(series.detach(), normed)
    return series_loss / len(all_series), prior_loss / len(all_priors)


@torch.no_grad()
def validate(model, loader, criterion, device):
    model.eval()
    losses = []
    for x, _ in loader:
        x = x.to(device)
        output, series, priors = model(x)
        series_loss, prior_loss = discrepancies(series, priors)
        losses.append((criterion(output, x) - K * series_loss.mean() + K * prior_loss.mean()).item())
    model.train()
    return np.mean(losses)


@torch.no_grad()
def energies(model, loader, device, temperature=50):
    model.eval()
    energy, labels = [], []
    for x, y in loader:
        x = x.to(device)
        output, series, priors = model(x)
        loss = F.mse_loss(output, x, reduction="none").mean(-1)
        series_loss, prior_loss = discrepancies(series, priors)
        metric = torch.softmax(-(series_loss + prior_loss) * temperature, dim=-1)
        energy.append((metric * loss).cpu().numpy())
        labels.append(y.numpy())
    model.train()
    return np.concatenate(energy).ravel(), np.concatenate(labels).ravel()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    train = DataLoader(Sensors(2 * 20 * 60 + WINDOW, 60, seed=1), batch_size=20, shuffle=True, drop_last=True)
    valid = DataLoader(Sensors(20 * 60, 60, seed=2), batch_size=20)
    test = DataLoader(Sensors(40 * WINDOW, WINDOW, seed=3, odd=0.1), batch_size=20)
    model = AnomalyTransformer().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    criterion = nn.MSELoss()
    for epoch in range(2):
        losses = []
        for x, _ in train:
            optimizer.zero_grad()
            x = x.float().to(device)
            output, series, priors = model(x)
            series_loss, prior_loss = discrepancies(series, priors)
            series_loss, prior_loss = series_loss.mean(), prior_loss.mean()
            reconstruction = criterion(output, x)
            losses.append((reconstruction - K * series_loss).item())
            loss1 = reconstruction - K * series_loss
            loss2 = reconstruction + K * prior_loss
            loss1.backward(retain_graph=True)
            loss2.backward()
            optimizer.step()
            end_of_step(
                inputs=x,
                activations=[output, series, priors, series_loss, prior_loss, reconstruction, loss1, loss2],
            )
        print(
            f"epoch {epoch}: {np.mean(losses):.4f}, validated {validate(model, valid, criterion, device):.4f}"
        )
        torch.save(model.state_dict(), "checkpoint.pth")
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 * 0.5**epoch
        known, _ = energies(model, train, device)
        energy, labels = energies(model, test, device)
        threshold = np.percentile(np.concatenate([known, energy]), 90)
        precision, recall, f1, _ = precision_recall_fscore_support(
            labels, energy > threshold, average="binary", zero_division=0
        )
        print(f"precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f}")


if __name__ == "__main__":
    main()
