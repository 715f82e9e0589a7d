"""Semi-supervised segmentation of floods in satellite tiles with Lightning: a mean teacher, kornia augmentation on the GPU, SGD, bfloat16."""

import copy

import kornia.augmentation as K
import lightning as L
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import CombinedLoader
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from torchmetrics import JaccardIndex

N_CLASSES = 3
N_BANDS = 6
SIZE = 128


class Tiles(Dataset):
    def __init__(self, n, labelled=True, seed=0):
        self.n, self.labelled, self.seed = n, labelled, seed

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 10_000 + index)
        coarse = torch.randn(1, N_CLASSES, 8, 8, generator=generator)
        mask = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic").argmax(1)[0]
        image = 0.1 * torch.randn(N_BANDS, SIZE, SIZE, generator=generator) + 0.2 + 0.2 * mask
        return {"image": image, "mask": mask} if self.labelled else {"image": image}


class FloodData(L.LightningDataModule):
    def train_dataloader(self):
        return CombinedLoader(
            {
                "labelled": DataLoader(Tiles(32), batch_size=4, shuffle=True, drop_last=True),
                "unlabelled": DataLoader(
                    Tiles(96, labelled=False, seed=1), batch_size=6, shuffle=True, drop_last=True
                ),
            },
            mode="max_size_cycle",
        )

    def val_dataloader(self):
        return DataLoader(Tiles(16, seed=2), batch_size=8)


class MeanTeacher(L.LightningModule):
    def __init__(self, lr=0.02, weight_decay=1e-4, ema=0.99, threshold=0.8, max_steps=2000):
        super().__init__()
        self.save_hyperparameters()
        self.student = smp.Unet(
            "mobilenet_v2",
            encoder_weights=None,
            decoder_channels=(192, 96, 64, 32, 16),
            in_channels=N_BANDS,
            classes=N_CLASSES,
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.dice = smp.losses.DiceLoss("multiclass")
        self.iou = JaccardIndex("multiclass", num_classes=N_CLASSES)
        self.weak = K.AugmentationSequential(
            K.RandomHorizontalFlip(p=0.5),
            K.RandomVerticalFlip(p=0.5),
            K.RandomAffine(degrees=20, scale=(0.8, 1.2), p=0.7),
            data_keys=["input", "mask"],
        )
        self.strong = K.AugmentationSequential(
            K.RandomGaussianNoise(std=0.05, p=0.5),
            K.RandomGaussianBlur((5, 5), (0.1, 2.0), p=0.5),
            K.RandomErasing(scale=(0.02, 0.2), p=0.5),
            data_keys=["input"],
        )

    def forward(self, image):
        return self.student(image)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        tell(inputs=batch)
        if not self.trainer.training:
            return batch
        with torch.no_grad():
            labelled = batch["labelled"]
            image, mask = self.weak(labelled["image"], labelled["mask"].unsqueeze(1).float())
            weak = self.weak(batch["unlabelled"]["image"], data_keys=["input"])
            strong = self.strong(weak)
        return {"image": image, "mask": mask.squeeze(1).long(), "weak": weak, "strong": strong}

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            self.teacher.eval()
            confidence, pseudo = self.teacher(batch["weak"]).softmax(1).max(1)
            pseudo = pseudo.masked_fill(confidence < self.hparams.threshold, 255)
        logits = self.student(torch.cat([batch["image"], batch["strong"]]))
        n = len(batch["image"])
        supervised = F.cross_entropy(logits[:n], batch["mask"]) + self.dice(logits[:n], batch["mask"])
        unsupervised = F.cross_entropy(logits[n:], pseudo, ignore_index=255, reduction="sum") / pseudo.numel()
        ramp = min(1.0, self.global_step / 500)
        loss = supervised + ramp * unsupervised
        self.log_dict({"train/loss": loss, "train/confident": (pseudo != 255).float().mean()}, prog_bar=True)
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        decay = min(self.hparams.ema, 1 - 1 / (self.global_step + 1))
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters()):
            slow.lerp_(fast, 1 - decay)
        for slow, fast in zip(self.teacher.buffers(), self.student.buffers()):
            slow.copy_(fast)

    def validation_step(self, batch, batch_idx):
        logits = self.teacher(batch["image"])
        self.log("val/loss", F.cross_entropy(logits, batch["mask"]), on_epoch=True)
        self.iou(logits.argmax(1), batch["mask"])
        self.log("val/iou", self.iou, on_epoch=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.student.parameters(),
            lr=self.hparams.lr,
            momentum=0.9,
            nesterov=True,
            weight_decay=self.hparams.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.PolynomialLR(
            optimizer, total_iters=self.hparams.max_steps, power=0.9
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)


L.seed_everything(5)
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    max_steps=2000,
    gradient_clip_val=5.0,
    log_every_n_steps=5,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[StepEnds(), L.pytorch.callbacks.ModelCheckpoint("checkpoints", monitor="val/iou", mode="max")],
)
trainer.fit(MeanTeacher(), FloodData())
