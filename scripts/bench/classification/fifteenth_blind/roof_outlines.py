"""A U-Net of segmentation-models-pytorch that learns roofs from aerial photos with Lightning, augmenting on the GPU."""

import kornia.augmentation as K
import lightning as L
import numpy as np
import segmentation_models_pytorch as smp
import torch
from kornia.constants import DataKey
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset


class AerialRoofs(Dataset):
    """Tiles of an orthophoto with the mask of its buildings."""

    def __init__(self, n_tiles: int, size: int, seed: int) -> None:
        self.n_tiles, self.size, self.seed = n_tiles, size, seed

    def __len__(self) -> int:
        return self.n_tiles

    def __getitem__(self, index):
        rng = np.random.default_rng(self.seed * 10_000 + index)
        image = rng.integers(60, 140, (self.size, self.size, 3), dtype=np.uint8)
        mask = np.zeros((self.size, self.size), dtype=np.float32)
        for _ in range(rng.integers(3, 9)):
            y, x = rng.integers(0, self.size - 40, 2)
            h, w = rng.integers(14, 40, 2)
            image[y : y + h, x : x + w] = rng.integers(120, 250, 3, dtype=np.uint8)
            mask[y : y + h, x : x + w] = 1.0
        image = torch.from_numpy(image).permute(2, 0, 1).float().div_(255)
        return {"image": image, "mask": torch.from_numpy(mask)[None]}


class RoofSegmenter(L.LightningModule):
    def __init__(
        self, encoder: str = "efficientnet-b0", lr: float = 8e-4, weight_decay: float = 1e-2
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = smp.Unet(
            encoder, encoder_weights=None, in_channels=3, classes=1, decoder_attention_type="scse"
        )
        self.dice = smp.losses.DiceLoss("binary", from_logits=True)
        self.focal = smp.losses.FocalLoss("binary", gamma=2.0)
        self.augment = K.AugmentationSequential(
            K.RandomHorizontalFlip(p=0.5),
            K.RandomVerticalFlip(p=0.5),
            K.RandomAffine(degrees=25.0, translate=(0.05, 0.05), scale=(0.85, 1.2), p=0.8),
            K.ColorJitter(0.2, 0.2, 0.2, 0.05, p=0.8),
            K.RandomGaussianNoise(std=0.02, p=0.3),
            data_keys=[DataKey.IMAGE, DataKey.MASK],
            same_on_batch=False,
        )
        self.normalize = K.Normalize(
            mean=torch.tensor([0.485, 0.456, 0.406]), std=torch.tensor([0.229, 0.224, 0.225])
        )
        self.validation_counts = []

    def on_after_batch_transfer(self, batch, dataloader_idx):
        image, mask = batch["image"], batch["mask"]
        tell(inputs=[image, mask])
        if self.trainer.training:
            with torch.no_grad():
                image, mask = self.augment(image, mask)
        return {"image": self.normalize(image), "mask": (mask > 0.5).float()}

    def forward(self, image):
        return self.model(image)

    def training_step(self, batch, batch_idx):
        logits = self(batch["image"])
        dice, focal = self.dice(logits, batch["mask"]), self.focal(logits, batch["mask"])
        loss = dice + 10 * focal
        self.log_dict({"train/loss": loss, "train/dice": dice}, prog_bar=True)
        tell(inputs=[batch["mask"]])
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch["image"])
        tp, fp, fn, tn = smp.metrics.get_stats(
            logits.sigmoid(), batch["mask"].long(), mode="binary", threshold=0.5
        )
        self.validation_counts.append((tp, fp, fn, tn))
        self.log("val/loss", self.dice(logits, batch["mask"]))

    def on_validation_epoch_end(self):
        counts = [torch.cat(column) for column in zip(*self.validation_counts, strict=True)]
        self.log("val/iou", smp.metrics.iou_score(*counts, reduction="micro"), prog_bar=True)
        self.validation_counts.clear()

    def configure_optimizers(self):
        encoder = list(self.model.encoder.parameters())
        head = [*self.model.decoder.parameters(), *self.model.segmentation_head.parameters()]
        groups = [{"params": encoder, "lr": self.hparams.lr / 4}, {"params": head, "lr": self.hparams.lr}]
        optimizer = torch.optim.AdamW(groups, weight_decay=self.hparams.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=[self.hparams.lr / 4, self.hparams.lr],
            total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=0.2,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class StepEnds(Callback):
    def __init__(self) -> None:
        self.seen = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step > self.seen:
            self.seen = trainer.global_step
            end_of_step(inputs=[batch["mask"]], activations=[outputs["loss"]])


def main() -> None:
    L.seed_everything(7)
    train = DataLoader(
        AerialRoofs(64, 128, seed=1), batch_size=4, shuffle=True, num_workers=0, drop_last=True
    )
    val = DataLoader(AerialRoofs(4, 128, seed=2), batch_size=2, num_workers=0)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=4,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=5,
        num_sanity_val_steps=1,
        log_every_n_steps=2,
        logger=CSVLogger("logs", name="roofs"),
        callbacks=[
            EMAWeightAveraging(decay=0.995, update_every_n_steps=1),
            LearningRateMonitor("step"),
            ModelCheckpoint(monitor="val/iou", mode="max", save_top_k=1),
            StepEnds(),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(RoofSegmenter(), train, val)


if __name__ == "__main__":
    main()
