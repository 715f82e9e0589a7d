"""Pictures are learned without labels as DINO does it: a teacher that follows, crops of two sizes, centred answers, Lightning in half precision, a nearest neighbour's vote between."""

import copy
import math

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTModel

GLOBAL, LOCAL, N_LOCAL, N_OUT, N_CLASSES = 64, 32, 4, 3072, 20


class MultiCrop(Dataset):
    """Two large views and some small ones of every picture, made on the host."""

    def __init__(self, n, n_local=N_LOCAL):
        self.images, self.labels = torch.rand(n, 3, 80, 80), torch.randint(N_CLASSES, (n,))
        self.n_local = n_local

    def __len__(self):
        return len(self.images)

    def view(self, image, size):
        extent = int(torch.randint(size, 81, ()))
        top, left = (int(torch.randint(81 - extent, ())) for _ in range(2))
        crop = image[None, :, top : top + extent, left : left + extent]
        crop = F.interpolate(crop, (size, size), mode="bilinear", antialias=True)[0]
        crop = crop.flip(-1) if torch.rand(()) < 0.5 else crop
        return (crop * (0.6 + 0.8 * torch.rand(3, 1, 1)) - 0.5) / 0.25

    def __getitem__(self, index):
        image = self.images[index]
        views = [self.view(image, GLOBAL) for _ in range(2)]
        return views + [self.view(image, LOCAL) for _ in range(self.n_local)], self.labels[index]


class DINOProjectionHead(nn.Module):
    def __init__(self, in_dim, hidden_dim=768, bottleneck_dim=256, freeze_last_layer=1):
        super().__init__()
        self.freeze_last_layer = freeze_last_layer
        first, second = nn.Linear(in_dim, hidden_dim), nn.Linear(hidden_dim, hidden_dim)
        last = nn.Linear(hidden_dim, bottleneck_dim)
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(bottleneck_dim, N_OUT, bias=False))
        self.last_layer.parametrizations.weight.original0.data.fill_(1)
        self.last_layer.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last_layer(F.normalize(self.layers(x), dim=-1))

    def cancel_last_layer_gradients(self, current_epoch):
        if current_epoch < self.freeze_last_layer:
            for p in self.last_layer.parameters():
                p.grad = None


class DINOLoss(nn.Module):
    def __init__(self, teacher_temp=0.04, student_temp=0.1, center_momentum=0.9):
        super().__init__()
        self.teacher_temp, self.student_temp, self.m = teacher_temp, student_temp, center_momentum
        self.register_buffer("center", torch.zeros(1, 1, N_OUT))

    def forward(self, teacher_out, student_out):
        teacher_out, student_out = torch.stack(teacher_out), torch.stack(student_out)
        t_out = F.softmax((teacher_out - self.center) / self.teacher_temp, dim=-1)
        s_out = F.log_softmax(student_out / self.student_temp, dim=-1)
        # Every view but the same one.
        loss = -torch.einsum("tbd,sbd->ts", t_out, s_out)
        loss.fill_diagonal_(0)
        self.update_center(teacher_out)
        return loss.sum() / ((loss.numel() - len(teacher_out)) * teacher_out.shape[1])

    @torch.no_grad()
    def update_center(self, teacher_out):
        self.center.lerp_(teacher_out.float().mean(dim=(0, 1), keepdim=True), 1 - self.m)


def cosine_schedule(step, max_steps, start, end):
    return end - (end - start) * (math.cos(math.pi * step / max_steps) + 1) / 2


@torch.no_grad()
def update_momentum(model, model_ema, m):
    for p, p_ema in zip(model.parameters(), model_ema.parameters()):
        p_ema.data = p_ema.data * m + p.data * (1.0 - m)


class DINO(pl.LightningModule):
    def __init__(self, max_steps=8):
        super().__init__()
        config = ViTConfig(
            image_size=GLOBAL,
            patch_size=8,
            hidden_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=1024,
        )
        self.student_backbone = ViTModel(config, add_pooling_layer=False)
        self.student_head = DINOProjectionHead(256)
        self.teacher_backbone, self.teacher_head = (
            copy.deepcopy(part).requires_grad_(False) for part in (self.student_backbone, self.student_head)
        )
        self.criterion, self.max_steps = DINOLoss(), max_steps
        self.bank = self.bank_labels = ()

    @staticmethod
    def encode(backbone, x):
        return backbone(x, interpolate_pos_encoding=x.shape[-1] != GLOBAL).last_hidden_state[:, 0]

    def training_step(self, batch, batch_idx):
        momentum = cosine_schedule(self.global_step, self.max_steps, 0.996, 1)
        update_momentum(self.student_backbone, self.teacher_backbone, m=momentum)
        update_momentum(self.student_head, self.teacher_head, m=momentum)
        views, _ = batch
        with torch.no_grad():
            large = self.encode(self.teacher_backbone, torch.cat(views[:2]))
            teacher_out = self.teacher_head(large).chunk(2)
        # One pass for each of the sizes.
        sizes = torch.cat(views[:2]), torch.cat(views[2:])
        student_out = self.student_head(torch.cat([self.encode(self.student_backbone, v) for v in sizes]))
        loss = self.criterion(teacher_out, student_out.chunk(len(views)))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_after_backward(self):
        self.student_head.cancel_last_layer_gradients(current_epoch=self.current_epoch)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        teacher = [*self.teacher_backbone.parameters(), *self.teacher_head.parameters()]
        end_of_step(inputs=[batch, self.bank, self.bank_labels], activations=outputs, weights=teacher)

    def on_validation_epoch_start(self):
        self.bank, self.bank_labels = [], []

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        views, labels = batch
        found = F.normalize(self.encode(self.teacher_backbone, views[0]).float(), dim=1)
        if dataloader_idx == 0:
            self.bank.append(found)
            self.bank_labels.append(labels)
            return
        nearest = (found @ torch.cat(self.bank).T).topk(3, dim=1).indices
        votes = F.one_hot(torch.cat(self.bank_labels)[nearest], N_CLASSES).sum(1)
        self.log("knn", votes.argmax(1).eq(labels).float().mean(), add_dataloader_idx=False)

    def configure_optimizers(self):
        student = [*self.student_backbone.parameters(), *self.student_head.parameters()]
        student = [p for p in student if p.requires_grad]
        groups = [{"params": [p for p in student if p.ndim > 1], "weight_decay": 0.04}]
        groups.append({"params": [p for p in student if p.ndim <= 1], "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, lr=5e-4)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.max_steps)
        both = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], milestones=[2])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": both, "interval": "step"}}


if __name__ == "__main__":
    pl.seed_everything(907, verbose=False)
    images = MultiCrop(12)
    train_loader = DataLoader(images, batch_size=6, shuffle=True, drop_last=True)
    val_loaders = [DataLoader(MultiCrop(n, n_local=0), batch_size=8) for n in (8, 8)]
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=4,
        precision="16-mixed" if torch.cuda.is_available() else "32-true",
        gradient_clip_val=3.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(DINO(), train_loader, val_loaders)
