"""Sounds of factory machines are told apart by their serial numbers to find failing ones: spectrograms and a learned front end into a MobileFaceNet, ArcFace, mixup, AdamW, bfloat16 autocast."""

import numpy as np
import torch
import torchaudio
from programs import end_of_step
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, SECONDS = 16000, 4
MACHINES = 23
device = "cuda"


class Machines(Dataset):
    """Normal running noise of fans, pumps and valves; a label is one machine."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seed * 100000 + index)
        machine = int(rng.integers(MACHINES))
        time = np.arange(RATE * SECONDS) / RATE
        speed = 40 + 11 * machine
        wave = sum(np.sin(2 * np.pi * speed * k * time + rng.uniform(0, 6)) / k for k in range(1, 6))
        wave = 0.1 * wave + 0.05 * rng.standard_normal(len(time))
        return torch.from_numpy(wave.astype(np.float32)), machine


class Temporal(nn.Module):
    """What the mel spectrum loses, learned from the wave itself."""

    def __init__(self, mels=128, layers=3, hop=512):
        super().__init__()
        self.first = nn.Conv1d(1, mels, 1024, hop, 512, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(RATE * SECONDS // hop + 1),
                nn.LeakyReLU(0.2),
                nn.Conv1d(mels, mels, 3, 1, 1, bias=False),
            )
            for _ in range(layers)
        )

    def forward(self, wave):
        x = self.first(wave[:, None])
        for layer in self.layers:
            x = layer(x)
        return x


class Bottleneck(nn.Module):
    def __init__(self, inside, outside, stride, expansion):
        super().__init__()
        self.skip = stride == 1 and inside == outside
        hidden = inside * expansion
        self.layers = nn.Sequential(
            nn.Conv2d(inside, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.PReLU(hidden),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.PReLU(hidden),
            nn.Conv2d(hidden, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, x):
        return x + self.layers(x) if self.skip else self.layers(x)


def conv(inside, outside, kernel, stride=1, padding=0, groups=1, act=True):
    layers = [
        nn.Conv2d(inside, outside, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    ]
    return nn.Sequential(*layers, nn.PReLU(outside)) if act else nn.Sequential(*layers)


class MobileFaceNet(nn.Module):
    settings = [(2, 128, 2, 2), (4, 128, 2, 2), (4, 128, 2, 2)]

    def __init__(self, embedding=128):
        super().__init__()
        self.stem = nn.Sequential(conv(2, 64, 3, 2, 1), conv(64, 64, 3, 1, 1, groups=64))
        blocks, channels = [], 64
        for expansion, outside, repeats, stride in self.settings:
            for n in range(repeats):
                blocks.append(Bottleneck(channels, outside, stride if n == 0 else 1, expansion))
                channels = outside
        self.blocks = nn.Sequential(*blocks)
        self.head = conv(channels, 512, 1)
        self.pool = conv(512, 512, (8, 8), groups=512, act=False)
        self.out = conv(512, embedding, 1, act=False)

    def forward(self, x):
        x = self.head(self.blocks(self.stem(x)))
        return self.out(self.pool(x)).flatten(1)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.mel = torchaudio.transforms.MelSpectrogram(
            RATE, n_fft=1024, hop_length=512, n_mels=128, power=2.0
        )
        self.decibel = torchaudio.transforms.AmplitudeToDB()
        self.temporal = Temporal()
        self.net = MobileFaceNet()

    def forward(self, wave):
        with torch.autocast("cuda", enabled=False):
            mel = self.decibel(self.mel(wave))
            mel = (mel - mel.mean((1, 2), keepdim=True)) / (mel.std((1, 2), keepdim=True) + 1e-5)
        both = torch.stack([mel, self.temporal(wave)], 1)[..., :-1][..., :128]
        both = nn.functional.pad(both, (0, 128 - both.shape[-1]))
        return self.net(both)


def mixed(wave, label, alpha=0.4):
    share = float(np.random.beta(alpha, alpha))
    order = torch.randperm(len(wave), device=wave.device)
    return share * wave + (1 - share) * wave[order], label, label[order], share


@torch.no_grad()
def anomaly_scores(model, loss_function, loader):
    model.eval()
    scores = []
    for wave, label in loader:
        wave, label = wave.to(device), label.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            embedding = model(wave)
        logits = loss_function.get_logits(embedding.float())
        scores.append(-logits.log_softmax(1).gather(1, label[:, None])[:, 0].cpu())
    model.train()
    return torch.cat(scores)


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    epochs = 200
    loader = DataLoader(Machines(480, 1), batch_size=12, shuffle=True, drop_last=True, pin_memory=False)
    held_out = DataLoader(Machines(96, 2), batch_size=12)
    model = Listener().to(device)
    loss_function = ArcFaceLoss(MACHINES, 128, margin=40.0, scale=30).to(device)
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters()}, {"params": loss_function.parameters(), "weight_decay": 0.0}],
        lr=1e-3,
        weight_decay=1e-2,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader), eta_min=1e-5)
    for epoch in range(epochs):
        running = 0.0
        for wave, label in loader:
            wave = wave.to(device, non_blocking=True)
            label = label.to(device, non_blocking=True)
            wave, first, second, share = mixed(wave, label)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                embedding = model(wave)
            embedding = embedding.float()
            loss = share * loss_function(embedding, first) + (1 - share) * loss_function(embedding, second)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
            end_of_step(inputs=[wave, label, second], activations=[embedding, loss])
        scores = anomaly_scores(model, loss_function, held_out)
        print(f"epoch {epoch}: loss {running / len(loader):.3f}, 95th percentile {scores.quantile(0.95):.2f}")


if __name__ == "__main__":
    main()
