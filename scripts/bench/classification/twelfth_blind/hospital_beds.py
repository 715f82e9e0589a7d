"""How many beds a hospital will need is forecast by an iTransformer: every series is a token, its own mean and spread are taken off and put back, Accelerate with a scheduler and early stopping, two batches to a step, weights averaged at the end (SWA)."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin, set_seed
from programs import end_of_step, tell
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, Subset

SEQ_LEN, PRED_LEN, WARDS, CALENDAR = 168, 48, 96, 4


class Wards(Dataset):
    """Hourly counts of many wards with days and weeks in them, and where in the year an hour is."""

    def __init__(self, hours=1200):
        rng, t = np.random.default_rng(1206), np.arange(hours)
        phase, size = rng.uniform(0, 6, (2, WARDS)), rng.gamma(3.0, 8.0, WARDS)
        day = np.sin(2 * np.pi * t[:, None] / 24 + phase[0])
        week = np.sin(2 * np.pi * t[:, None] / 168 + phase[1])
        drift = rng.normal(0, 0.02, (hours, WARDS)).cumsum(0)
        self.beds = rng.poisson(size * np.exp(0.3 * day + 0.2 * week + drift)).astype(np.float32)
        turns = 2 * np.pi * np.stack([t / 24, t / 168], 1)
        self.marks = np.concatenate([np.sin(turns), np.cos(turns)], 1).astype(np.float32)

    def __len__(self):
        return len(self.beds) - SEQ_LEN - PRED_LEN + 1

    def __getitem__(self, i):
        middle = i + SEQ_LEN
        return {
            "x": self.beds[i:middle],
            "mark": self.marks[i:middle],
            "y": self.beds[middle : middle + PRED_LEN],
        }


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, n_heads, dropout=dropout, batch_first=True)
        self.conv1, self.conv2 = nn.Conv1d(d_model, d_ff, 1), nn.Conv1d(d_ff, d_model, 1)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout, self.activation = nn.Dropout(dropout), nn.GELU()

    def forward(self, x):
        x = self.norm1(x + self.dropout(self.attention(x, x, x, need_weights=False)[0]))
        y = self.dropout(self.activation(self.conv1(x.transpose(-1, 1))))
        return self.norm2(x + self.dropout(self.conv2(y).transpose(-1, 1)))


class ITransformer(nn.Module):
    def __init__(self, d_model=320, n_heads=8, d_ff=640, e_layers=3, dropout=0.1):
        super().__init__()
        self.value_embedding, self.dropout = nn.Linear(SEQ_LEN, d_model), nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(e_layers))
        self.norm, self.projector = nn.LayerNorm(d_model), nn.Linear(d_model, PRED_LEN)

    def forward(self, x_enc, x_mark):
        means = x_enc.mean(1, keepdim=True).detach()
        x_enc = x_enc - means
        stdev = torch.sqrt(torch.var(x_enc, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        x_enc = x_enc / stdev
        tokens = torch.cat([x_enc.transpose(1, 2), x_mark.transpose(1, 2)], dim=1)
        out = self.dropout(self.value_embedding(tokens))
        for layer in self.layers:
            out = layer(out)
        forecast = self.projector(self.norm(out)).transpose(1, 2)[:, :, : x_enc.shape[-1]]
        return forecast * stdev + means


@torch.no_grad()
def evaluate(model, loader, accelerator):
    model.eval()
    errors, sizes = [], []
    for batch in loader:
        forecast = model(batch["x"], batch["mark"])
        absolute, actual = accelerator.gather_for_metrics(((forecast - batch["y"]).abs(), batch["y"]))
        errors.append(absolute.mean())
        sizes.append(actual.abs().mean())
    model.train()
    return (torch.stack(errors).sum() / torch.stack(sizes).sum()).item()


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.state = patience, math.inf, 0, None

    def __call__(self, score, model):
        if score < self.best:
            self.best, self.bad = score, 0
            self.state = copy.deepcopy({k: v.cpu() for k, v in model.state_dict().items()})
        else:
            self.bad += 1
        return self.bad >= self.patience


def main(epochs=3, batch_size=16, accumulate=2, lr=5e-4):
    accelerator = Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=accumulate, sync_with_dataloader=False
        )
    )
    set_seed(1206)
    wards, rng = Wards(), np.random.default_rng(7)
    train = DataLoader(Subset(wards, rng.integers(0, 700, 64)), batch_size, shuffle=True, drop_last=True)
    valid = DataLoader(Subset(wards, range(900, 980, 5)), batch_size)
    model = ITransformer()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=lr
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    model, optimizer, train, valid, scheduler = accelerator.prepare(model, optimizer, train, valid, scheduler)
    criterion, stopping = nn.HuberLoss(delta=5.0), EarlyStopping(patience=2)
    averaged = AveragedModel(accelerator.unwrap_model(model))

    for epoch in range(epochs):
        losses = []
        for batch in train:
            with accelerator.accumulate(model):
                forecast = model(batch["x"], batch["mark"])
                loss = criterion(forecast, batch["y"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if not accelerator.sync_gradients:
                tell(inputs=batch, activations=[forecast, loss])
                continue
            if epoch:
                averaged.update_parameters(accelerator.unwrap_model(model))
            held = [*averaged.parameters(), *averaged.buffers()]
            end_of_step(inputs=batch, activations=[forecast, loss], weights=held)
        scheduler.step()
        wape = evaluate(model, valid, accelerator)
        accelerator.print(f"epoch {epoch}: loss {torch.stack(losses).mean().item():.3f}, WAPE {wape:.3f}")
        if stopping(wape, accelerator.unwrap_model(model)):
            break
    accelerator.print(f"best {stopping.best:.3f}, averaged {evaluate(averaged, valid, accelerator):.3f}")


if __name__ == "__main__":
    main()
