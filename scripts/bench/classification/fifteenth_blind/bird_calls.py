"""Which birds sing in five seconds of a soundscape: a timm network on spectrograms made on the GPU, fine-tuned with frozen early stages."""

import random
from types import SimpleNamespace

import numpy as np
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchaudio
from programs import end_of_step, tell
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAveragePrecision

cfg = SimpleNamespace(
    sample_rate=16_000,
    seconds=5,
    n_species=182,
    backbone="tf_efficientnetv2_b0",
    batch_size=12,
    epochs=3,
    lr=4e-4,
    mixup_alpha=0.5,
    clip=5.0,
    device="cuda",
)


class Recordings(Dataset):
    """Recordings with one bird in front and perhaps some behind it."""

    def __init__(self, n: int, train: bool) -> None:
        self.n, self.train = n, train

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index):
        rng = np.random.default_rng(index + (0 if self.train else 100_000))
        length = cfg.sample_rate * cfg.seconds
        time = np.arange(length + 8000, dtype=np.float32) / cfg.sample_rate
        call = np.sin(2 * np.pi * (2000 + 1500 * np.sin(2 * np.pi * rng.uniform(1, 6) * time)) * time)
        wave = (
            call.astype(np.float32) * rng.uniform(0.1, 0.8)
            + rng.standard_normal(time.size, dtype=np.float32) * 0.05
        )
        start = rng.integers(0, 8000) if self.train else 0
        target = np.zeros(cfg.n_species, dtype=np.float32)
        target[rng.integers(cfg.n_species)] = 1.0
        target[rng.integers(0, cfg.n_species, rng.integers(0, 3))] = 0.3
        return torch.from_numpy(wave[start : start + length]), torch.from_numpy(target)


class GeM(nn.Module):
    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p, self.eps = nn.Parameter(torch.tensor([p])), eps

    def forward(self, x):
        return F.adaptive_avg_pool2d(x.clamp(min=self.eps).pow(self.p), 1).pow(1.0 / self.p).flatten(1)


class BirdNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mel = torchaudio.transforms.MelSpectrogram(
            sample_rate=cfg.sample_rate, n_fft=1024, hop_length=500, n_mels=96, f_min=50, f_max=8000
        )
        self.to_db = torchaudio.transforms.AmplitudeToDB(top_db=80)
        self.time_mask = torchaudio.transforms.TimeMasking(24)
        self.freq_mask = torchaudio.transforms.FrequencyMasking(12)
        self.backbone = timm.create_model(
            cfg.backbone, pretrained=False, in_chans=1, num_classes=0, global_pool="", drop_path_rate=0.15
        )
        self.pool = GeM()
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(self.backbone.num_features, cfg.n_species)

    def freeze_stem(self, n_stages: int) -> None:
        self.frozen = [self.backbone.conv_stem, self.backbone.bn1, *self.backbone.blocks[:n_stages]]
        for module in self.frozen:
            module.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        for module in getattr(self, "frozen", []):
            module.eval()
        return self

    def forward(self, wave):
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            image = self.to_db(self.mel(wave)).unsqueeze(1)
            image = (image - image.mean((2, 3), keepdim=True)) / (image.std((2, 3), keepdim=True) + 1e-5)
            if self.training:
                image = self.freq_mask(self.time_mask(image))
        features = self.pool(self.backbone(image))
        return self.head(self.dropout(features))


def mixup(wave, target):
    lam = float(np.random.beta(cfg.mixup_alpha, cfg.mixup_alpha))
    order = torch.randperm(wave.size(0), device=wave.device)
    return lam * wave + (1 - lam) * wave[order], torch.maximum(target, target[order])


def focal_bce(logits, target, gamma: float = 2.0):
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    probability = torch.sigmoid(logits)
    weight = torch.where(target > 0, (1 - probability) ** gamma, probability**gamma)
    return (weight * bce).sum(1).mean()


@torch.inference_mode()
def validate(model, loader) -> float:
    model.eval()
    metric = MultilabelAveragePrecision(num_labels=cfg.n_species, average="micro", thresholds=50).to(
        cfg.device
    )
    for wave, target in loader:
        wave, target = wave.to(cfg.device), target.to(cfg.device)
        tell(inputs=[wave, target])
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(wave)
        metric.update(logits.float().sigmoid(), (target > 0.5).long())
    return metric.compute().item()


def main() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    train = DataLoader(Recordings(24, True), cfg.batch_size, shuffle=True, drop_last=True, pin_memory=False)
    val = DataLoader(Recordings(16, False), cfg.batch_size)

    model = BirdNet().to(cfg.device)
    model.freeze_stem(2)
    ema = ModelEmaV3(model, decay=0.9995, use_warmup=True)
    optimizer = create_optimizer_v2(
        [p for p in model.parameters() if p.requires_grad], opt="lion", lr=cfg.lr, weight_decay=0.05
    )
    schedule = CosineLRScheduler(
        optimizer, t_initial=cfg.epochs * len(train), warmup_t=2, warmup_lr_init=1e-6
    )

    step, best = 0, 0.0
    for epoch in range(cfg.epochs):
        model.train()
        running = 0.0
        for wave, target in train:
            wave, target = wave.to(cfg.device, non_blocking=True), target.to(cfg.device, non_blocking=True)
            tell(inputs=[wave, target])
            if random.random() < 0.7:
                wave, target = mixup(wave, target)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(wave)
            loss = focal_bce(logits.float(), target)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            optimizer.step()
            step += 1
            schedule.step_update(step)
            ema.update(model, step=step)
            running += loss.item()
            end_of_step(inputs=[wave, target], activations=[logits, loss])
        score = validate(ema.module, val)
        print(f"epoch {epoch} loss {running / len(train):.3f} norm {norm:.2f} mAP {score:.4f}")
        if score > best:
            best = score
            torch.save({"model": ema.module.state_dict(), "score": best}, "best.pt")


if __name__ == "__main__":
    main()
