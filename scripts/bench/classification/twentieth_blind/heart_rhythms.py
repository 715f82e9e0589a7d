"""Rhythm disorders in twelve-lead electrocardiograms: an InceptionTime with Lightning in float32, Adam, rate halved on plateaus, weighted multi-label loss, AUROC."""

import lightning as L
import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAUROC

L.seed_everything(5)
CLASSES = 9


class Inception(nn.Module):
    def __init__(self, channels, filters=32, bottleneck=32):
        super().__init__()
        self.bottleneck = nn.Conv1d(channels, bottleneck, 1, bias=False)
        self.convs = nn.ModuleList(
            nn.Conv1d(bottleneck, filters, k, padding=k // 2, bias=False) for k in (39, 19, 9)
        )
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(channels, filters, 1, bias=False))
        self.norm = nn.BatchNorm1d(4 * filters)

    def forward(self, x):
        narrow = self.bottleneck(x)
        return torch.relu(self.norm(torch.cat([*(conv(narrow) for conv in self.convs), self.pooled(x)], 1)))


class InceptionTime(nn.Module):
    def __init__(self, leads=12, depth=6, filters=32):
        super().__init__()
        wide = 4 * filters
        self.blocks = nn.ModuleList(Inception(leads if d == 0 else wide, filters) for d in range(depth))
        self.shortcuts = nn.ModuleList(
            nn.Sequential(nn.Conv1d(leads if d == 0 else wide, wide, 1, bias=False), nn.BatchNorm1d(wide))
            for d in range(depth // 3)
        )
        self.head = nn.Linear(wide, CLASSES)

    def forward(self, x):
        residual = x
        for d, block in enumerate(self.blocks):
            x = block(x)
            if d % 3 == 2:
                x = residual = torch.relu(x + self.shortcuts[d // 3](residual))
        return self.head(x.mean(-1))


class Rhythms(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = InceptionTime()
        self.loss = nn.BCEWithLogitsLoss(pos_weight=torch.full((CLASSES,), 4.0))
        self.auroc = MultilabelAUROC(CLASSES, thresholds=50)

    def training_step(self, batch, index):
        signals, labels = batch
        loss = self.loss(self.net(signals), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        signals, labels = batch
        logits = self.net(signals)
        self.log("val_loss", self.loss(logits, labels))
        self.auroc.update(logits.sigmoid(), labels.int())
        self.log("val_auroc", self.auroc)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        end_of_step(inputs=list(batch), activations=outputs)


def records(count):
    return TensorDataset(torch.randn(count, 12, 750), (torch.rand(count, CLASSES) < 0.2).float())


trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    max_epochs=3,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
    callbacks=[StepEnds()],
)
trainer.fit(
    Rhythms(),
    DataLoader(records(24), 12, shuffle=True, drop_last=True),
    DataLoader(records(12), 12),
)
