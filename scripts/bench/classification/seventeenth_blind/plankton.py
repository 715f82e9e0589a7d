"""LeJEPA pretraining on unlabelled plankton with lightly and Lightning: multi-crop views through a timm ViT, SIGReg, AdamW, bf16-mixed, an online probe."""

import lightning as L
import numpy as np
import timm
import torch
from lightly.loss.lejepa_loss import LeJEPALoss
from lightly.transforms.dino_transform import DINOTransform
from lightly.utils.benchmarking import OnlineLinearClassifier
from lightly.utils.scheduler import CosineWarmupScheduler
from PIL import Image
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

L.seed_everything(21, verbose=False)


class Plankton(Dataset):
    def __init__(self, n, transform):
        self.n, self.transform = n, transform

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        picture = Image.fromarray(rng.integers(0, 255, (128, 128, 3), dtype=np.uint8))
        return self.transform(picture), int(rng.integers(0, 30))


class LeJEPA(L.LightningModule):
    def __init__(self, total_steps):
        super().__init__()
        self.total_steps = total_steps
        self.backbone = timm.create_model(
            "vit_small_patch16_224",
            pretrained=False,
            img_size=96,
            patch_size=12,
            embed_dim=256,
            depth=5,
            num_heads=4,
            num_classes=0,
            dynamic_img_size=True,
            drop_path_rate=0.1,
        )
        self.projector = nn.Sequential(
            nn.Linear(256, 1024),
            nn.BatchNorm1d(1024),
            nn.GELU(),
            nn.Linear(1024, 1024),
            nn.BatchNorm1d(1024),
            nn.GELU(),
            nn.Linear(1024, 64),
        )
        self.criterion = LeJEPALoss(lambda_param=0.05, sigreg_num_vectors=512)
        self.probe = OnlineLinearClassifier(feature_dim=256, num_classes=30)

    def encode(self, views):
        features = self.backbone(torch.cat(views))
        projections = self.projector(features).unflatten(0, (len(views), -1))
        return features.unflatten(0, (len(views), -1)), projections

    def training_step(self, batch, batch_idx):
        views, targets = batch
        global_features, global_proj = self.encode(views[:2])
        _, local_proj = self.encode(views[2:])
        loss = self.criterion(local_proj=local_proj.float(), global_proj=global_proj.float())
        probe_loss, probe_log = self.probe.training_step((global_features[0].detach(), targets), batch_idx)
        self.log("train_loss", loss, prog_bar=False)
        self.log_dict(probe_log)
        return loss + probe_loss

    def configure_optimizers(self):
        decayed = [p for p in self.backbone.parameters() if p.ndim > 1] + [
            p for p in self.projector.parameters() if p.ndim > 1
        ]
        plain = [p for p in self.backbone.parameters() if p.ndim <= 1] + [
            p for p in self.projector.parameters() if p.ndim <= 1
        ]
        optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": 0.05},
                {"params": plain, "weight_decay": 0.0},
                {"params": self.probe.parameters(), "weight_decay": 1e-7, "lr": 1e-3},
            ],
            lr=5e-4,
        )
        schedule = CosineWarmupScheduler(optimizer, warmup_epochs=2, max_epochs=self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class StepEnds(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)


transform = DINOTransform(
    global_crop_size=96, local_crop_size=48, n_local_views=4, gaussian_blur=(0.5, 0.0, 0.0)
)
loader = DataLoader(Plankton(128, transform), batch_size=16, shuffle=True, drop_last=True, num_workers=0)
trainer = L.Trainer(
    max_steps=8,
    callbacks=[StepEnds()],
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(LeJEPA(8), loader)
