"""Fields are told apart in pictures of a satellite: a MobileViT with a DeepLab head on more than three channels, Lightning in bfloat16, a backbone that is frozen for an epoch, flips on the device, IoU between."""

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BackboneFinetuning, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
from transformers import MobileViTV2Config, MobileViTV2ForSemanticSegmentation

BANDS, CLASSES, TILE, IGNORE = 6, 9, 128, 255


class Tiles(Dataset):
    """Reflectances of six bands, with labels of which clouds hide some."""

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        coarse = torch.randint(CLASSES, (n, 1, 8, 8), generator=generator).float()
        self.masks = F.interpolate(coarse, size=TILE, mode="nearest").squeeze(1).long()
        spectra = torch.rand(CLASSES, BANDS, generator=generator)
        clean = spectra[self.masks].permute(0, 3, 1, 2)
        self.images = clean + 0.1 * torch.randn(clean.shape, generator=generator)
        clouds = torch.rand(n, 1, 8, 8, generator=generator) < 0.1
        self.masks[F.interpolate(clouds.float(), size=TILE).squeeze(1) > 0] = IGNORE

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "mask": self.masks[i]}


class FieldsData(L.LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage=None):
        self.train, self.val = Tiles(8, seed=1), Tiles(4, seed=2)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        image, mask = batch["image"], batch["mask"]
        image = (image - 0.5) / 0.3
        if self.trainer.training:
            for axis in (-1, -2):
                if torch.rand(()) < 0.5:
                    image, mask = image.flip(axis), mask.flip(axis)
            k = int(torch.randint(4, ()))
            image, mask = torch.rot90(image, k, (-2, -1)), torch.rot90(mask, k, (-2, -1))
        return {"image": image, "mask": mask}


def dice_loss(logits, target, eps=1.0):
    valid = (target != IGNORE).unsqueeze(1)
    onehot = F.one_hot(target.clamp(max=CLASSES - 1), CLASSES).permute(0, 3, 1, 2) * valid
    probabilities = logits.softmax(1) * valid
    intersection = (probabilities * onehot).sum((0, 2, 3))
    total = probabilities.sum((0, 2, 3)) + onehot.sum((0, 2, 3))
    return 1 - ((2 * intersection + eps) / (total + eps)).mean()


class FieldSegmenter(L.LightningModule):
    def __init__(self, lr=1e-3, backbone_lr=1e-4, weight_decay=1e-2):
        super().__init__()
        self.save_hyperparameters()
        config = MobileViTV2Config(
            num_channels=BANDS,
            image_size=TILE,
            width_multiplier=0.75,
            aspp_out_channels=256,
            num_labels=CLASSES,
            semantic_loss_ignore_index=IGNORE,
        )
        network = MobileViTV2ForSemanticSegmentation(config)
        self.backbone, self.head = network.mobilevitv2, network.segmentation_head
        metrics = MetricCollection(
            {
                "iou": MulticlassJaccardIndex(CLASSES, ignore_index=IGNORE),
                "accuracy": MulticlassAccuracy(CLASSES, ignore_index=IGNORE, average="micro"),
            }
        )
        self.train_metrics = metrics.clone(prefix="train/")
        self.val_metrics = metrics.clone(prefix="val/")

    def forward(self, image):
        hidden = self.backbone(image, output_hidden_states=True).hidden_states
        logits = self.head(hidden)
        return F.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)

    def shared_step(self, batch):
        logits = self(batch["image"])
        loss = F.cross_entropy(logits, batch["mask"], ignore_index=IGNORE) + dice_loss(logits, batch["mask"])
        return logits, loss

    def training_step(self, batch, batch_idx):
        logits, loss = self.shared_step(batch)
        self.train_metrics.update(logits.argmax(1), batch["mask"])
        self.log("train/loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log_dict(self.train_metrics.compute())
        self.train_metrics.reset()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        logits, loss = self.shared_step(batch)
        self.val_metrics.update(logits.argmax(1), batch["mask"])
        self.log("val/loss", loss, prog_bar=True)

    def on_validation_epoch_end(self):
        self.log_dict(self.val_metrics.compute())
        self.val_metrics.reset()

    def configure_optimizers(self):
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=self.hparams.lr, weight_decay=self.hparams.weight_decay, amsgrad=True
        )
        return [optimizer], [torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=10, power=0.9)]


if __name__ == "__main__":
    L.seed_everything(1002, verbose=False)
    torch.set_float32_matmul_precision("high")
    finetuning = BackboneFinetuning(
        unfreeze_backbone_at_epoch=1, backbone_initial_lr=1e-4, should_align=False, train_bn=True
    )
    trainer = L.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        max_epochs=4,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        callbacks=[finetuning, LearningRateMonitor("epoch")],
        logger=CSVLogger("logs"),
        log_every_n_steps=1,
        num_sanity_val_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(FieldSegmenter(), datamodule=FieldsData())
