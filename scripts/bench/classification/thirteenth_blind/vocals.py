"""Vocals are taken out of songs as Open-Unmix does it: magnitudes of stereo on the device, three LSTM layers between dense ones, a mask on the mixture, sources mixed anew for every song, weight decay, a rate that falls and an end when it gets no better."""

import copy
import random
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset

RATE, SEQ_DUR, NB_CHANNELS = 44100, 1.5, 2
N_FFT, HOP, BANDWIDTH = 4096, 1024, 16000
SOURCES = ("bass", "drums", "other", "vocals")


class SourceFolderDataset(Dataset):
    """Stems of songs; while training, every stem may come from another song, louder or with sides swapped."""

    def __init__(self, n, seed, random_track_mix=True):
        g = torch.Generator().manual_seed(seed)
        length = int(RATE * SEQ_DUR)
        time = torch.arange(length) / RATE
        self.tracks = []
        for _ in range(n):
            stems = []
            for octave in range(len(SOURCES)):
                pitch = 55 * 2 ** (octave + torch.rand(NB_CHANNELS, 1, generator=g))
                loud = F.interpolate(torch.rand(1, NB_CHANNELS, 12, generator=g), length, mode="linear")[0]
                stems.append(0.2 * loud * torch.sin(2 * torch.pi * pitch * time))
            self.tracks.append(torch.stack(stems))
        self.random_track_mix = random_track_mix

    def __len__(self):
        return len(self.tracks)

    @staticmethod
    def augment(audio):
        audio = audio * random.uniform(0.25, 1.25)
        return audio.flip(0) if random.random() < 0.5 else audio

    def __getitem__(self, index):
        sources = []
        for i, _ in enumerate(SOURCES):
            track = random.choice(self.tracks) if self.random_track_mix else self.tracks[index]
            sources.append(self.augment(track[i]) if self.random_track_mix else track[i])
        stems = torch.stack(sources)
        return stems.sum(0), stems[SOURCES.index("vocals")]


class Encoder(nn.Module):
    """Waves (batch, channels, samples) to magnitudes (batch, channels, bins, frames)."""

    def __init__(self):
        super().__init__()
        self.window = nn.Parameter(torch.hann_window(N_FFT), requires_grad=False)

    def forward(self, x):
        batch, channels, samples = x.shape
        spec = torch.stft(
            x.reshape(-1, samples), N_FFT, HOP, window=self.window, center=True, return_complex=True
        )
        return spec.view(batch, channels, *spec.shape[-2:]).abs()


class OpenUnmix(nn.Module):
    def __init__(self, nb_bins, max_bin, hidden_size, input_mean, input_scale, nb_layers=3):
        super().__init__()
        self.nb_output_bins, self.nb_bins, self.hidden_size = nb_bins, max_bin, hidden_size
        self.fc1 = nn.Linear(self.nb_bins * NB_CHANNELS, hidden_size, bias=False)
        self.bn1 = nn.BatchNorm1d(hidden_size)
        self.lstm = nn.LSTM(hidden_size, hidden_size // 2, nb_layers, bidirectional=True, dropout=0.4)
        self.fc2 = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.bn2 = nn.BatchNorm1d(hidden_size)
        self.fc3 = nn.Linear(hidden_size, nb_bins * NB_CHANNELS, bias=False)
        self.bn3 = nn.BatchNorm1d(nb_bins * NB_CHANNELS)
        self.input_mean = nn.Parameter(-input_mean[:max_bin])
        self.input_scale = nn.Parameter(1.0 / input_scale[:max_bin])
        self.output_scale = nn.Parameter(torch.ones(nb_bins))
        self.output_mean = nn.Parameter(torch.ones(nb_bins))

    def forward(self, x):
        x = x.permute(3, 0, 1, 2)
        nb_frames, nb_samples, nb_channels, _ = x.shape
        mix = x.detach().clone()
        x = (x[..., : self.nb_bins] + self.input_mean) * self.input_scale
        x = self.fc1(x.reshape(-1, nb_channels * self.nb_bins))
        x = torch.tanh(self.bn1(x).reshape(nb_frames, nb_samples, self.hidden_size))
        lstm_out, _ = self.lstm(x)
        x = torch.cat([x, lstm_out], -1)
        x = F.relu(self.bn2(self.fc2(x.reshape(-1, x.shape[-1]))))
        x = self.bn3(self.fc3(x)).reshape(nb_frames, nb_samples, nb_channels, self.nb_output_bins)
        x = F.relu(x * self.output_scale + self.output_mean) * mix
        return x.permute(1, 2, 3, 0)


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.num_bad_epochs = patience, float("inf"), 0

    def step(self, value):
        self.num_bad_epochs = 0 if value < self.best else self.num_bad_epochs + 1
        self.best = min(self.best, value)
        return self.num_bad_epochs >= self.patience


def get_statistics(encoder, dataset):
    encoder = copy.deepcopy(encoder).cpu()
    frames = torch.cat([encoder(dataset[i][0][None])[0].mean(0) for i in range(len(dataset))], dim=-1)
    std = frames.std(-1)
    return frames.mean(-1), std.clamp(min=1e-4 * std.max().item())


def train(encoder, unmix, device, sampler, optimizer):
    losses = []
    unmix.train()
    for x, y in sampler:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        X = encoder(x)
        Y_hat = unmix(X)
        Y = encoder(y)
        loss = F.mse_loss(Y_hat, Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        end_of_step(inputs=[x, y, X, Y], activations=[Y_hat, loss])
    return sum(losses) / len(losses)


@torch.no_grad()
def valid(encoder, unmix, device, sampler):
    losses = []
    unmix.eval()
    for x, y in sampler:
        x, y = x.to(device), y.to(device)
        X, Y = encoder(x), encoder(y)
        tell(inputs=[x, y, X, Y])
        losses.append(F.mse_loss(unmix(X), Y).item())
    return sum(losses) / len(losses)


def main():
    random.seed(1303)
    torch.manual_seed(1303)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, valid_set = SourceFolderDataset(16, 1), SourceFolderDataset(2, 2, random_track_mix=False)
    encoder = Encoder().to(device)
    mean, scale = get_statistics(encoder, train_set)
    max_bin = int((torch.linspace(0, RATE / 2, N_FFT // 2 + 1) <= BANDWIDTH).sum())
    unmix = OpenUnmix(N_FFT // 2 + 1, max_bin, 512, mean, scale).to(device)
    optimizer = torch.optim.Adam(unmix.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=80, cooldown=10)
    es = EarlyStopping(patience=140)
    train_sampler = DataLoader(train_set, batch_size=8, shuffle=True, drop_last=True)
    valid_sampler = DataLoader(valid_set, batch_size=1)
    for epoch in range(4):
        train_loss = train(encoder, unmix, device, train_sampler, optimizer)
        valid_loss = valid(encoder, unmix, device, valid_sampler)
        scheduler.step(valid_loss)
        stop = es.step(valid_loss)
        print(f"epoch {epoch}: train {train_loss:.5f}, valid {valid_loss:.5f}")
        if valid_loss == es.best:
            torch.save({"state_dict": unmix.state_dict(), "best_loss": es.best}, Path("vocals.pth"))
        if stop:
            break


if __name__ == "__main__":
    main()
