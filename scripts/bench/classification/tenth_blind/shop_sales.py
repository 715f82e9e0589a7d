"""What a shop will sell is forecast by a Temporal Fusion Transformer: variables that are chosen by gates, an LSTM and attention, quantiles, Lightning with clipped gradients and a rate that falls when it gets no better."""

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from programs import end_of_step
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ENCODER, HORIZON, BATCH = 56, 14, 32
STATIC = {"shop": 54, "item": 3000, "city": 22}
CALENDAR = {"weekday": 7, "month": 12, "holiday": 20}
KNOWN, OBSERVED = ["price", "promotion", "day"], ["log_sales", "transactions", "oil"]
QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)


class Sales(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g, length = torch.Generator().manual_seed(self.seed + index), ENCODER + HORIZON
        days = torch.arange(length)
        sales = 3 + torch.sin(days * 0.9) + 0.3 * torch.randn(length, generator=g)
        x = {
            "static": torch.stack([torch.randint(n, (), generator=g) for n in STATIC.values()]),
            "calendar": torch.stack([(days // (1 + i)) % n for i, n in enumerate(CALENDAR.values())], dim=-1),
            "known": torch.randn(length, len(KNOWN), generator=g),
            "observed": torch.randn(ENCODER, len(OBSERVED), generator=g),
            "scale": sales[:ENCODER].std().clamp(min=1e-3),
        }
        x["observed"][:, 0] = (sales[:ENCODER] - sales[:ENCODER].mean()) / x["scale"]
        return x, (sales[ENCODER:] - sales[:ENCODER].mean()) / x["scale"]


class GatedLinearUnit(nn.Module):
    def __init__(self, n_in, n_out, dropout=0.1):
        super().__init__()
        self.dropout, self.fc = nn.Dropout(dropout), nn.Linear(n_in, 2 * n_out)

    def forward(self, x):
        return F.glu(self.fc(self.dropout(x)), dim=-1)


class GatedResidualNetwork(nn.Module):
    def __init__(self, n_in, hidden, n_out, context=None):
        super().__init__()
        self.skip = nn.Linear(n_in, n_out) if n_in != n_out else nn.Identity()
        self.fc1, self.fc2 = nn.Linear(n_in, hidden), nn.Linear(hidden, hidden)
        self.context = nn.Linear(context, hidden, bias=False) if context else None
        self.gate, self.norm = GatedLinearUnit(hidden, n_out), nn.LayerNorm(n_out)

    def forward(self, x, context=None):
        h = self.fc1(x)
        if context is not None:
            h = h + self.context(context)
        return self.norm(self.gate(self.fc2(F.elu(h))) + self.skip(x))


class VariableSelection(nn.Module):
    def __init__(self, names, hidden, context=None):
        super().__init__()
        self.single = nn.ModuleDict({name: GatedResidualNetwork(hidden, hidden, hidden) for name in names})
        self.flattened = GatedResidualNetwork(len(names) * hidden, hidden, len(names), context)

    def forward(self, x, context=None):
        outputs = torch.stack([self.single[name](x[name]) for name in self.single], dim=-1)
        weights = self.flattened(torch.cat([x[name] for name in self.single], dim=-1), context)
        weights = weights.softmax(dim=-1).unsqueeze(-2)
        return (outputs * weights).sum(dim=-1), weights


class TemporalFusionTransformer(pl.LightningModule):
    def __init__(self, hidden=192, heads=4, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embeddings = nn.ModuleDict({k: nn.Embedding(n, hidden) for k, n in (STATIC | CALENDAR).items()})
        self.prescalers = nn.ModuleDict({k: nn.Linear(1, hidden) for k in KNOWN + OBSERVED})
        known = [*CALENDAR, *KNOWN]
        self.static_selection = VariableSelection(list(STATIC), hidden)
        self.encoder_selection = VariableSelection(known + OBSERVED, hidden, context=hidden)
        self.decoder_selection = VariableSelection(known, hidden, context=hidden)
        self.contexts = nn.ModuleDict(
            {k: GatedResidualNetwork(hidden, hidden, hidden) for k in ("select", "h", "c", "enrich")}
        )
        self.lstm_encoder, self.lstm_decoder = (nn.LSTM(hidden, hidden, batch_first=True) for _ in range(2))
        self.gate_lstm, self.norm_lstm = GatedLinearUnit(hidden, hidden), nn.LayerNorm(hidden)
        self.enrichment = GatedResidualNetwork(hidden, hidden, hidden, context=hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, dropout=0.1, batch_first=True)
        self.gate_attention, self.norm_attention = GatedLinearUnit(hidden, hidden), nn.LayerNorm(hidden)
        self.feed_forward = GatedResidualNetwork(hidden, hidden, hidden)
        self.gate_out, self.norm_out = GatedLinearUnit(hidden, hidden), nn.LayerNorm(hidden)
        self.output_layer = nn.Linear(hidden, len(QUANTILES))
        self.register_buffer("quantiles", torch.tensor(QUANTILES))

    def forward(self, x):
        static = {k: self.embeddings[k](x["static"][:, i]) for i, k in enumerate(STATIC)}
        over_time = {k: self.embeddings[k](x["calendar"][..., i]) for i, k in enumerate(CALENDAR)}
        over_time |= {k: self.prescalers[k](x["known"][..., i : i + 1]) for i, k in enumerate(KNOWN)}
        past = {k: self.prescalers[k](x["observed"][..., i : i + 1]) for i, k in enumerate(OBSERVED)}
        past |= {k: v[:, :ENCODER] for k, v in over_time.items()}
        future = {k: v[:, ENCODER:] for k, v in over_time.items()}

        static, _ = self.static_selection(static)
        select = self.contexts["select"](static).unsqueeze(1)
        past, importance = self.encoder_selection(past, select)
        future, _ = self.decoder_selection(future, select)
        state = (self.contexts["h"](static).unsqueeze(0), self.contexts["c"](static).unsqueeze(0))
        encoded, state = self.lstm_encoder(past, state)
        decoded, _ = self.lstm_decoder(future, state)
        lstm = torch.cat([encoded, decoded], dim=1)
        lstm = self.norm_lstm(self.gate_lstm(lstm) + torch.cat([past, future], dim=1))

        enriched = self.enrichment(lstm, self.contexts["enrich"](static).unsqueeze(1))
        days = torch.arange(ENCODER + HORIZON, device=lstm.device)
        mask = days[None, :] > days[ENCODER:, None]
        attended, _ = self.attention(enriched[:, ENCODER:], enriched, enriched, attn_mask=mask)
        attended = self.norm_attention(self.gate_attention(attended) + enriched[:, ENCODER:])
        out = self.gate_out(self.feed_forward(attended)) + lstm[:, ENCODER:]
        return self.output_layer(self.norm_out(out)), importance

    def loss(self, forecast, target):
        error = target.unsqueeze(-1) - forecast
        return torch.max((self.quantiles - 1) * error, self.quantiles * error).sum(-1).mean()

    def training_step(self, batch, batch_idx):
        x, y = batch
        forecast, _ = self(x)
        loss = self.loss(forecast, y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        forecast, importance = self(x)
        median = forecast[..., len(QUANTILES) // 2]
        self.log("val_loss", self.loss(forecast, y), prog_bar=True)
        self.log("val_mae", ((median - y).abs() * x["scale"][:, None]).mean())
        self.log("weight_of_sales", importance.mean((0, 1))[..., len(CALENDAR) + len(KNOWN)].mean())

    def configure_optimizers(self):
        optimizer = torch.optim.RAdam(self.parameters(), lr=self.hparams.lr, weight_decay=1e-5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


if __name__ == "__main__":
    pl.seed_everything(1007, verbose=False)
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=4,
        limit_train_batches=2,
        gradient_clip_val=0.1,
        callbacks=[EarlyStopping(monitor="val_loss", min_delta=1e-4, patience=3, mode="min")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(Sales(8 * BATCH, seed=0), BATCH, shuffle=True)
    trainer.fit(TemporalFusionTransformer(), train_loader, DataLoader(Sales(BATCH, seed=10_000), BATCH))
