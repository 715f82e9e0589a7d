"""Beats and downbeats of songs: convolutions with axial attention and a rotary transformer on mel spectrograms, trained with Lightning in bf16-mixed, AdamW, warm-up and cosine."""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

FRAMES, MELS = 300, 128


class Songs(Dataset):
    """Six-second chunks at 50 frames a second of precomputed log-mel spectrograms."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = np.random.default_rng(self.seed + index)
        period = draw.integers(20, 40)
        beat = np.zeros(FRAMES, np.float32)
        beat[draw.integers(0, period) :: period] = 1
        downbeat = np.zeros(FRAMES, np.float32)
        downbeat[np.flatnonzero(beat)[::4]] = 1
        mel = draw.random((FRAMES, MELS), np.float32) + beat[:, None]
        return {"spect": np.log1p(1000 * mel), "beat": beat, "downbeat": downbeat}


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("rates", 1e4 ** (-torch.arange(0, width, 2).float() / width), persistent=False)

    def forward(self, x):
        angles = torch.arange(x.shape[-2], device=x.device).float()[:, None] * self.rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, width, head=32):
        super().__init__()
        self.head = head
        self.norm = nn.RMSNorm(width)
        self.rotary = Rotary(head)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gates = nn.Linear(width, width // head)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        x = self.norm(x)
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, -1, self.head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v)
        y = y * self.gates(x).transpose(1, 2).unsqueeze(-1).sigmoid()
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.attention = Attention(width)
        self.feed_forward = nn.Sequential(
            nn.RMSNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class Frontend(nn.Module):
    """Attention over frequencies, then over time, then a convolution that halves the frequencies."""

    def __init__(self, width, dropout):
        super().__init__()
        self.over_frequency = Block(width, dropout)
        self.over_time = Block(width, dropout)
        self.conv = nn.Conv2d(width, 2 * width, (2, 3), (2, 1), (0, 1), bias=False)
        self.norm = nn.BatchNorm2d(2 * width)

    def forward(self, x):
        b, c, f, t = x.shape
        x = self.over_frequency(x.permute(0, 3, 2, 1).reshape(b * t, f, c))
        x = x.view(b, t, f, c).transpose(1, 2).reshape(b * f, t, c)
        x = self.over_time(x).view(b, f, t, c).permute(0, 3, 1, 2)
        return F.gelu(self.norm(self.conv(x)))


class BeatTracker(nn.Module):
    def __init__(self, stem=32, width=256, depth=4, dropout=0.2):
        super().__init__()
        self.input_norm = nn.BatchNorm1d(MELS)
        self.stem = nn.Sequential(
            nn.Conv2d(1, stem, (4, 3), (4, 1), (0, 1), bias=False), nn.BatchNorm2d(stem), nn.GELU()
        )
        self.frontends = nn.Sequential(Frontend(stem, 0.1), Frontend(2 * stem, 0.1))
        self.project = nn.Linear(4 * stem * MELS // 16, width)
        self.blocks = nn.Sequential(*[Block(width, dropout) for _ in range(depth)], nn.RMSNorm(width))
        self.head = nn.Linear(width, 2)

    def forward(self, spect):
        x = self.input_norm(spect.transpose(1, 2)).unsqueeze(1)
        x = self.frontends(self.stem(x))
        x = self.project(x.permute(0, 3, 1, 2).flatten(2))
        beat, downbeat = self.head(self.blocks(x)).float().unbind(-1)
        return beat + downbeat, downbeat


def shift_tolerant(logits, targets, weight, tolerance=3):
    """Cross entropy that lets a beat be found up to three frames off."""
    spread = F.max_pool1d(logits.unsqueeze(1), 2 * tolerance + 1, 1, tolerance).squeeze(1)
    near = F.max_pool1d(targets.unsqueeze(1), 4 * tolerance + 1, 1, 2 * tolerance).squeeze(1)
    positive = -weight * targets * F.logsigmoid(spread)
    negative = -(1 - near) * F.logsigmoid(-logits)
    return (positive + negative).mean()


class BeatModule(L.LightningModule):
    def __init__(self, rate=8e-4, steps=1000):
        super().__init__()
        self.save_hyperparameters()
        self.model = BeatTracker()

    def losses(self, batch):
        beat, downbeat = self.model(batch["spect"])
        return shift_tolerant(beat, batch["beat"], 19.0), shift_tolerant(downbeat, batch["downbeat"], 79.0)

    def training_step(self, batch, index):
        beat, downbeat = self.losses(batch)
        self.log_dict({"train/beat": beat, "train/downbeat": downbeat})
        return beat + downbeat

    def validation_step(self, batch, index):
        beat, downbeat = self.losses(batch)
        self.log("val/loss", beat + downbeat)

    def configure_optimizers(self):
        decayed = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
            lr=self.hparams.rate,
        )
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.hparams.steps)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [100])
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        end_of_step(inputs=batch, activations=outputs)


def main():
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=6,
        gradient_clip_val=0.5,
        val_check_interval=2,
        num_sanity_val_steps=0,
        limit_val_batches=1,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[StepEnds()],
    )
    trainer.fit(
        BeatModule(),
        DataLoader(Songs(64, 0), batch_size=2, shuffle=True, drop_last=True),
        DataLoader(Songs(8, 9000), batch_size=2),
    )


main()
