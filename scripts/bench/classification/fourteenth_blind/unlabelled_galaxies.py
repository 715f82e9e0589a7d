"""A ViT learns galaxies without labels by DINO with parts of lightly under Lightning: a teacher that follows, two large and four small crops of every picture, the last layer's gradient cancelled at first, rates and decays on a cosine, nearest neighbours in a bank of vectors between."""

import copy
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from lightly.data import LightlyDataset
from lightly.loss import DINOLoss
from lightly.models.modules import DINOProjectionHead
from lightly.models.utils import (
    deactivate_requires_grad,
    get_weight_decay_parameters,
    update_momentum,
)
from lightly.transforms import DINOTransform
from lightly.utils.benchmarking import knn_predict
from lightly.utils.scheduler import CosineWarmupScheduler, cosine_schedule
from PIL import Image
from programs import end_of_step
from timm.models.vision_transformer import VisionTransformer
from torch.utils.data import DataLoader
from torchvision import transforms as T

BATCH_SIZE = 6
CLASSES = ["spiral", "elliptical", "irregular"]
OUTPUT_DIM = 4096


def write_pictures(root, per_class, seed):
    rng = np.random.default_rng(seed)
    for name in CLASSES:
        folder = Path(root) / name
        folder.mkdir(parents=True)
        for i in range(per_class):
            pixels = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((120, 120), Image.Resampling.BICUBIC).save(folder / f"{i}.png")


class DINO(pl.LightningModule):
    def __init__(self, bank_loader):
        super().__init__()
        self.bank_loader = bank_loader
        backbone = VisionTransformer(
            img_size=96,
            patch_size=16,
            embed_dim=192,
            depth=6,
            num_heads=3,
            num_classes=0,
            drop_path_rate=0.1,
            dynamic_img_size=True,
        )
        self.student_backbone = backbone
        self.student_head = DINOProjectionHead(
            192, 512, 128, OUTPUT_DIM, freeze_last_layer=1, norm_last_layer=True
        )
        self.teacher_backbone = copy.deepcopy(backbone)
        self.teacher_head = DINOProjectionHead(192, 512, 128, OUTPUT_DIM)
        self.teacher_head.load_state_dict(self.student_head.state_dict())
        deactivate_requires_grad(self.teacher_backbone)
        deactivate_requires_grad(self.teacher_head)
        self.criterion = DINOLoss(output_dim=OUTPUT_DIM, warmup_teacher_temp_epochs=2)
        self.bank = []

    def forward(self, x):
        return self.teacher_backbone(x)

    def forward_student(self, x):
        return self.student_head(self.student_backbone(x).flatten(start_dim=1))

    def forward_teacher(self, x):
        return self.teacher_head(self.teacher_backbone(x).flatten(start_dim=1))

    def training_step(self, batch, batch_idx):
        momentum = cosine_schedule(self.global_step, self.trainer.estimated_stepping_batches, 0.996, 1)
        update_momentum(self.student_backbone, self.teacher_backbone, m=momentum)
        update_momentum(self.student_head, self.teacher_head, m=momentum)
        views = [view.to(self.device) for view in batch[0]]
        with torch.no_grad():
            teacher_out = self.forward_teacher(torch.cat(views[:2]))
        student_out = torch.cat(
            [self.forward_student(torch.cat(views[:2])), self.forward_student(torch.cat(views[2:]))]
        )
        loss = self.criterion(teacher_out.chunk(2), student_out.chunk(len(views)), epoch=self.current_epoch)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(views[0]))
        return loss

    def on_after_backward(self):
        self.student_head.cancel_last_layer_gradients(self.current_epoch)

    def on_validation_epoch_start(self):
        self.bank, self.labels = [], []
        with torch.no_grad():
            for images, targets, _ in self.bank_loader:
                features = self(images.to(self.device)).flatten(start_dim=1)
                self.bank.append(torch.nn.functional.normalize(features, dim=1))
                self.labels.append(targets.to(self.device))
        self.bank = torch.cat(self.bank).t().contiguous()
        self.labels = torch.cat(self.labels)

    def validation_step(self, batch, batch_idx):
        images, targets, _ = batch
        features = torch.nn.functional.normalize(self(images).flatten(start_dim=1), dim=1)
        predicted = knn_predict(features, self.bank, self.labels, len(CLASSES), knn_k=5, knn_t=0.1)
        self.log(
            "knn_accuracy", (predicted[:, 0] == targets).float().mean(), prog_bar=True, batch_size=len(images)
        )

    def configure_optimizers(self):
        params, params_no_weight_decay = get_weight_decay_parameters(
            [self.student_backbone, self.student_head]
        )
        optimizer = torch.optim.AdamW(
            [
                {"name": "dino", "params": params},
                {"name": "dino_no_weight_decay", "params": params_no_weight_decay, "weight_decay": 0.0},
            ],
            lr=5e-4 * BATCH_SIZE / 256,
            weight_decay=0.04,
        )
        scheduler = CosineWarmupScheduler(
            optimizer, warmup_epochs=2, max_epochs=int(self.trainer.estimated_stepping_batches)
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=3.0, gradient_clip_algorithm="norm")


class Steps(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=[batch], activations=[outputs, module.bank])


def main():
    pl.seed_everything(1)
    write_pictures("train", 4, seed=1)
    write_pictures("val", 3, seed=2)
    transform = DINOTransform(
        global_crop_size=96,
        global_crop_scale=(0.4, 1),
        local_crop_size=48,
        local_crop_scale=(0.05, 0.4),
        n_local_views=4,
    )
    plain = T.Compose([T.Resize(96), T.ToTensor(), T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    train_loader = DataLoader(
        LightlyDataset("train", transform=transform), BATCH_SIZE, shuffle=True, drop_last=True, num_workers=0
    )
    bank_loader = DataLoader(LightlyDataset("train", transform=plain), BATCH_SIZE)
    val_loader = DataLoader(LightlyDataset("val", transform=plain), BATCH_SIZE)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        callbacks=[Steps()],
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DINO(bank_loader), train_loader, val_loader)


if __name__ == "__main__":
    main()
