"""Who speaks when at a table is heard by a PyanNet: sinc filters, an LSTM, one class for every set of speakers (powerset), the best order of voices; Lightning with gain, noise and mixed recordings on the device, clipped gradients, error rates between."""

import math
import tempfile
from itertools import combinations, permutations

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SAMPLE_RATE, DURATION, MAX_SPEAKERS, MAX_SET = 16000, 2.0, 3, 2
NUM_SAMPLES = int(SAMPLE_RATE * DURATION)


class Meetings(IterableDataset):
    """Chunks of meetings without end, each with what every speaker does at every moment."""

    def __init__(self, n_chunks, seed, n_frames):
        self.n_chunks, self.seed, self.n_frames = n_chunks, seed, n_frames

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n_chunks):
            turns = torch.rand(1, MAX_SPEAKERS, 6, generator=g)
            active = (F.interpolate(turns, size=self.n_frames)[0].T > 0.6).float()
            loud = F.interpolate(active.T[None], size=NUM_SAMPLES)[0]
            pitch = 80 + 200 * torch.rand(MAX_SPEAKERS, 1, generator=g)
            voices = torch.sin(2 * math.pi * pitch * torch.arange(NUM_SAMPLES) / SAMPLE_RATE)
            yield {"X": 0.1 * (voices * loud).sum(0, keepdim=True), "y": active}


class SincConv(nn.Module):
    """Filters of which only the two ends of the band are learned."""

    def __init__(self, n_filters=80, kernel_size=251, stride=10):
        super().__init__()
        self.stride, half = stride, kernel_size // 2
        mel = torch.linspace(20, 2200, n_filters + 1)
        hz = 700 * (10 ** (mel / 2595) - 1)
        self.low_hz_ = nn.Parameter(hz[:-1, None].clone())
        self.band_hz_ = nn.Parameter(hz.diff()[:, None].clone())
        self.register_buffer("window_", torch.hamming_window(kernel_size)[:half])
        self.register_buffer("n_", 2 * math.pi * torch.arange(-half, 0.0)[None] / SAMPLE_RATE)

    def forward(self, waveforms):
        low = 50 + self.low_hz_.abs()
        high = torch.clamp(low + 50 + self.band_hz_.abs(), 50, SAMPLE_RATE / 2)
        left = (torch.sin(high @ self.n_) - torch.sin(low @ self.n_)) / (self.n_ / 2) * self.window_
        band = (high - low)[:, 0]
        kernel = torch.cat([left, 2 * band[:, None], left.flip(1)], dim=1) / (2 * band[:, None])
        return F.conv1d(waveforms, kernel[:, None], stride=self.stride)


class SincNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        self.conv1d = nn.ModuleList([SincConv(), nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)])
        self.pool1d = nn.ModuleList(nn.MaxPool1d(3) for _ in range(3))
        self.norm1d = nn.ModuleList(nn.InstanceNorm1d(n, affine=True) for n in (80, 60, 60))

    def forward(self, x):
        x = self.wav_norm1d(x)
        for i, (conv, pool, norm) in enumerate(zip(self.conv1d, self.pool1d, self.norm1d, strict=True)):
            x = conv(x)
            x = F.leaky_relu(norm(pool(x.abs() if i == 0 else x)))
        return x


class Powerset(nn.Module):
    def __init__(self):
        super().__init__()
        sets = [s for n in range(MAX_SET + 1) for s in combinations(range(MAX_SPEAKERS), n)]
        mapping = torch.zeros(len(sets), MAX_SPEAKERS)
        for i, members in enumerate(sets):
            mapping[i, list(members)] = 1
        self.register_buffer("mapping", mapping, persistent=False)

    def to_multilabel(self, powerset):
        return F.one_hot(powerset.argmax(-1), len(self.mapping)).float() @ self.mapping

    def to_powerset(self, multilabel):
        return F.one_hot(
            (multilabel @ self.mapping.T - 0.5 * self.mapping.sum(1)).argmax(-1), len(self.mapping)
        )


class PyanNet(L.LightningModule):
    def __init__(self, hidden_size=256, num_layers=4, linear=128, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.sincnet = SincNet()
        self.lstm = nn.LSTM(60, hidden_size, num_layers, batch_first=True, bidirectional=True, dropout=0.5)
        self.linear = nn.ModuleList([nn.Linear(2 * hidden_size, linear), nn.Linear(linear, linear)])
        self.powerset = Powerset()
        self.classifier = nn.Linear(linear, len(self.powerset.mapping))

    def forward(self, waveforms):
        outputs, _ = self.lstm(self.sincnet(waveforms).transpose(1, 2))
        for linear in self.linear:
            outputs = F.leaky_relu(linear(outputs))
        return F.log_softmax(self.classifier(outputs), dim=-1)

    @torch.no_grad()
    def permutate(self, target, prediction):
        """The order of speakers in which the target looks most like what was predicted."""
        orders = torch.tensor(list(permutations(range(MAX_SPEAKERS))), device=target.device)
        candidates = target[:, :, orders].permute(0, 2, 1, 3)
        best = (candidates - prediction[:, None]).pow(2).mean(dim=(2, 3)).argmin(dim=1)
        return candidates[torch.arange(len(target), device=target.device), best]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        tell(inputs=batch)
        X, y = batch["X"], batch["y"]
        if self.trainer.training:
            # Some chunks are laid over their neighbours; then all get louder or fainter, and noisy.
            over = torch.rand(len(X), device=self.device) < 0.3
            X = torch.where(over[:, None, None], X + X.roll(1, 0), X)
            y = torch.where(over[:, None, None], torch.maximum(y, y.roll(1, 0)), y)
            gain = 10 ** (torch.empty(len(X), 1, 1, device=self.device).uniform_(-12, 6) / 20)
            X = X * gain + 0.003 * torch.randn_like(X)
        return {"X": X, "y": y}

    def training_step(self, batch, batch_idx):
        prediction = self(batch["X"])
        target = self.permutate(batch["y"], self.powerset.to_multilabel(prediction))
        target = self.powerset.to_powerset(target)
        loss = F.nll_loss(prediction.flatten(0, 1), target.argmax(-1).flatten())
        self.log("loss/train", loss, on_step=True, on_epoch=True, prog_bar=True, batch_size=len(target))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        prediction = self.powerset.to_multilabel(self(batch["X"]))
        target = self.permutate(batch["y"], prediction)
        false_alarm = (prediction - target).clamp(min=0).sum()
        missed = (target - prediction).clamp(min=0).sum()
        rate = (false_alarm + missed) / target.sum().clamp(min=1)
        self.log("DiarizationErrorRate", rate, prog_bar=True, batch_size=len(target))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(1207, verbose=False)
    model = PyanNet()
    n_frames = model.sincnet(torch.zeros(1, 1, NUM_SAMPLES)).shape[-1]
    best = ModelCheckpoint(monitor="DiarizationErrorRate", save_weights_only=True)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        default_root_dir=tempfile.mkdtemp(),
        max_epochs=3,
        gradient_clip_val=0.5,
        callbacks=[best],
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    train_loader = DataLoader(Meetings(16, 1, n_frames), batch_size=8, drop_last=True)
    val_loader = DataLoader(Meetings(4, 2, n_frames), batch_size=4)
    trainer.fit(model, train_loader, val_loader)
