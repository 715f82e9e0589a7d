"""Cover versions of songs: MoCo on pairs of excerpts with a queue of keys, log-mel spectra made on the GPU, a ResNet of timm with one channel, bf16 autocast, LARS with cosine rates."""

import copy
import math

import timm
import torch
import torch.nn.functional as F
import torchaudio
from programs import end_of_step
from pytorch_optimizer import LARS
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(6)
device = "cuda"
RATE, SECONDS = 16000, 4


class Songs(Dataset):
    """Two excerpts of the same work, in different recordings."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.randn(RATE * SECONDS) * 0.1, torch.randn(RATE * SECONDS) * 0.1


class Spectra(nn.Module):
    def __init__(self):
        super().__init__()
        self.mel = torchaudio.transforms.MelSpectrogram(RATE, n_fft=1024, hop_length=320, n_mels=96)
        self.decibels = torchaudio.transforms.AmplitudeToDB(top_db=80)
        self.masks = nn.Sequential(
            torchaudio.transforms.FrequencyMasking(12), torchaudio.transforms.TimeMasking(24)
        )

    @torch.no_grad()
    def forward(self, waves):
        x = self.decibels(self.mel(waves))
        x = (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1e-5)
        return self.masks(x)[:, None]


class Encoder(nn.Module):
    def __init__(self, dimension=128):
        super().__init__()
        self.trunk = timm.create_model("resnet18", pretrained=False, in_chans=1, num_classes=0)
        self.projector = nn.Sequential(
            nn.Linear(512, 1024), nn.ReLU(inplace=True), nn.Linear(1024, dimension)
        )

    def forward(self, x):
        return F.normalize(self.projector(self.trunk(x)).float(), dim=-1)


class MoCo(nn.Module):
    def __init__(self, length=16384, dimension=128, temperature=0.1):
        super().__init__()
        self.query = Encoder(dimension)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dimension, length), dim=0))
        self.position, self.temperature = 0, temperature

    @torch.no_grad()
    def follow(self, momentum):
        torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 1 - momentum)

    def forward(self, first, second):
        q = self.query(first)
        with torch.no_grad():
            mixed = torch.randperm(len(second), device=second.device)
            k = self.key(second[mixed])[mixed.argsort()]
        positive = (q * k).sum(1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone()], 1) / self.temperature
        return logits, k

    @torch.no_grad()
    def enqueue(self, keys):
        self.queue[:, self.position : self.position + len(keys)] = keys.T
        self.position = (self.position + len(keys)) % self.queue.shape[1]


spectra = Spectra().to(device)
model = MoCo().to(device)
loader = DataLoader(Songs(), batch_size=12, shuffle=True, drop_last=True, pin_memory=True)
optimizer = LARS(model.query.parameters(), lr=0.6, momentum=0.9, weight_decay=1e-6)
total = 10 * len(loader)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / 10, 0.5 * (1 + math.cos(math.pi * s / total)))
)

for epoch in range(10):
    for step, (first, second) in enumerate(loader):
        first, second = first.to(device, non_blocking=True), second.to(device, non_blocking=True)
        a, b = spectra(first), spectra(second)
        model.follow(0.99)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, keys = model(a, b)
        labels = torch.zeros(len(logits), dtype=torch.long, device=device)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        model.enqueue(keys)
        if step % 2 == 0:
            print(epoch, step, loss.item())
        end_of_step(inputs=[first, second, labels], activations=[logits, loss])
