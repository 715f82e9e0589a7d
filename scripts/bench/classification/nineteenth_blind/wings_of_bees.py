"""Landmarks on the wings of bees: an HRNet of timm with a heat-map head under Lightning, Adam with milestones, bf16-mixed, flipped averages when validated."""

import lightning as L
import timm
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric

LANDMARKS = 19
FLIPPED = list(range(LANDMARKS - 1, -1, -1))


class Wings(Dataset):
    """A photographed wing, the heat maps of its vein junctions, and which junctions can be seen."""

    def __init__(self, length, size=192, stride=4, sigma=2.0):
        self.length, self.size, self.stride, self.sigma = length, size, stride, sigma

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        points = torch.rand(LANDMARKS, 2, generator=generator) * (self.size - 16) + 8
        visible = (torch.rand(LANDMARKS, generator=generator) > 0.1).float()
        picture = torch.rand(3, self.size, self.size, generator=generator)
        picture = (picture - 0.45) / 0.225
        grid = torch.arange(self.size // self.stride).float()
        centre = points / self.stride
        dx = (grid[None, None, :] - centre[:, 0, None, None]) ** 2
        dy = (grid[None, :, None] - centre[:, 1, None, None]) ** 2
        maps = torch.exp(-(dx + dy) / (2 * self.sigma**2))
        return {"picture": picture, "maps": maps, "visible": visible, "points": points}


class WingPose(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = timm.create_model(
            "hrnet_w18_small",
            pretrained=False,
            features_only=True,
            feature_location="",
            out_indices=(1, 2, 3, 4),
        )
        channels = sum(self.backbone.feature_info.channels())
        self.head = nn.Sequential(
            nn.Conv2d(channels, channels, 1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, LANDMARKS, 1),
        )
        self.distance = MeanMetric()

    def forward(self, picture):
        features = self.backbone(picture)
        size = features[0].shape[-2:]
        features = [features[0]] + [
            F.interpolate(f, size=size, mode="bilinear", align_corners=False) for f in features[1:]
        ]
        return self.head(torch.cat(features, dim=1))

    def training_step(self, batch, batch_index):
        maps = self(batch["picture"])
        error = F.mse_loss(maps, batch["maps"], reduction="none").mean(dim=(2, 3))
        loss = 0.5 * (error * batch["visible"]).mean()
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_index):
        maps = self(batch["picture"])
        flipped = self(batch["picture"].flip(-1)).flip(-1)[:, FLIPPED]
        maps = (maps + flipped).float() / 2
        best = maps.flatten(2).argmax(-1)
        found = torch.stack([best % maps.shape[-1], best // maps.shape[-1]], dim=-1) * 4.0
        self.distance.update((found - batch["points"]).norm(dim=-1), batch["visible"])
        self.log("val_distance", self.distance)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[170, 200], gamma=0.1)
        return [optimizer], [scheduler]


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        end_of_step(inputs=batch, activations=outputs)


def main():
    L.seed_everything(5, verbose=False)
    train_loader = DataLoader(Wings(120), batch_size=4, shuffle=True, drop_last=True)
    val_loader = DataLoader(Wings(8), batch_size=4)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=210,
        val_check_interval=2,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[StepEnds()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(WingPose(), train_loader, val_loader)


if __name__ == "__main__":
    main()
