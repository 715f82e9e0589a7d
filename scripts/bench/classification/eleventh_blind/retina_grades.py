"""How ill an eye is gets graded from photos of the retina: a CvT of which the first stage is frozen, bytes that are turned on the device, half precision with a scaler, two batches to a step, an average of the weights that is validated."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from transformers import CvtConfig, CvtForImageClassification


class CFG:
    seed = 1102
    size = 96
    grades = 5
    epochs = 3
    batch_size = 4
    accumulate = 2
    lr = 2e-4
    weight_decay = 1e-2
    max_norm = 10.0
    ema_decay = 0.995
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Fundus(Dataset):
    """Bright discs on black, as bytes."""

    def __init__(self, n, rng):
        self.grades = rng.choice(CFG.grades, n, p=[0.5, 0.1, 0.25, 0.08, 0.07])
        y, x = np.mgrid[: CFG.size, : CFG.size] / CFG.size - 0.5
        inside = (x**2 + y**2 < 0.23)[None, :, :, None]
        photos = rng.integers(40, 200, (n, CFG.size, CFG.size, 3)) + 8 * self.grades[:, None, None, None]
        self.photos = (photos * inside).astype(np.uint8)

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, i):
        return torch.from_numpy(self.photos[i]).permute(2, 0, 1), int(self.grades[i])

    def sampler(self):
        per_grade = np.bincount(self.grades, minlength=CFG.grades).clip(1)
        return WeightedRandomSampler(1.0 / per_grade[self.grades], len(self.grades))


class Preprocess(nn.Module):
    """On the device: scaled, turned and mirrored when training, contrast and colours of a photo."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    @torch.no_grad()
    def forward(self, photos):
        x = photos.float() / 255
        if self.training:
            angle = (torch.rand(len(x), device=x.device) * 2 - 1) * 3.1416
            flip = torch.where(torch.rand(len(x), device=x.device) < 0.5, 1.0, -1.0)
            theta = torch.zeros(len(x), 2, 3, device=x.device)
            theta[:, 0, 0], theta[:, 0, 1] = angle.cos() * flip, -angle.sin()
            theta[:, 1, 0], theta[:, 1, 1] = angle.sin() * flip, angle.cos()
            grid = F.affine_grid(theta, x.shape, align_corners=False)
            x = F.grid_sample(x, grid, align_corners=False)
            contrast = 1 + 0.2 * (torch.rand(len(x), 1, 1, 1, device=x.device) - 0.5)
            x = (x * contrast).clamp(0, 1)
        return (x - self.mean) / self.std


def build_model():
    config = CvtConfig(
        embed_dim=[64, 192, 384],
        num_heads=[1, 3, 6],
        depth=[1, 2, 6],
        drop_path_rate=[0.0, 0.0, 0.1],
        num_labels=CFG.grades - 1,
    )
    model = CvtForImageClassification(config)
    for parameter in model.cvt.encoder.stages[0].parameters():
        parameter.requires_grad = False
    return model


def ordinal_targets(grades):
    """Grade 3 is at least 1, at least 2 and at least 3."""
    return (grades[:, None] > torch.arange(CFG.grades - 1, device=grades.device)).float()


def quadratic_kappa(confusion):
    n = len(confusion)
    i = np.arange(n)
    weights = (i[:, None] - i[None]) ** 2 / (n - 1) ** 2
    expected = np.outer(confusion.sum(1), confusion.sum(0)) / max(confusion.sum(), 1)
    return 1 - (weights * confusion).sum() / max((weights * expected).sum(), 1e-9)


def train_one_epoch(model, ema, preprocess, loader, optimizer, scheduler, scaler, criterion):
    model.train()
    model.cvt.encoder.stages[0].eval()
    preprocess.train()
    optimizer.zero_grad(set_to_none=True)
    for i, (photos, grades) in enumerate(loader):
        photos = photos.to(CFG.device, non_blocking=True)
        grades = grades.to(CFG.device, non_blocking=True)
        images, targets = preprocess(photos), ordinal_targets(grades)
        with torch.autocast(CFG.device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
            logits = model(pixel_values=images).logits
            loss = criterion(logits, targets)
        scaler.scale(loss / CFG.accumulate).backward()
        held = {"inputs": [photos, grades, images, targets], "activations": [logits, loss]}
        if (i + 1) % CFG.accumulate:
            tell(**held)
            continue
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), CFG.max_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        ema.update_parameters(model)
        print(f"loss {loss.item():.4f}, norm {norm.item():.2f}, scale {scaler.get_scale():.0f}")
        end_of_step(**held, weights=[*ema.parameters(), *ema.buffers()])


@torch.inference_mode()
def validate(model, preprocess, loader):
    model.eval()
    preprocess.eval()
    confusion = np.zeros((CFG.grades, CFG.grades))
    for photos, grades in loader:
        images = preprocess(photos.to(CFG.device))
        chances = sum(model(pixel_values=view).logits.sigmoid() for view in (images, images.flip(-1))) / 2
        found = (chances > 0.5).int().cumprod(1).sum(1).cpu()
        np.add.at(confusion, (grades.numpy(), found.numpy()), 1)
    return quadratic_kappa(confusion)


def main():
    torch.manual_seed(CFG.seed)
    rng = np.random.default_rng(CFG.seed)
    train_set, valid_set = Fundus(32, rng), Fundus(8, rng)
    train_loader = DataLoader(train_set, CFG.batch_size, sampler=train_set.sampler(), drop_last=True)
    valid_loader = DataLoader(valid_set, CFG.batch_size)

    model, preprocess = build_model().to(CFG.device), Preprocess().to(CFG.device)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(CFG.ema_decay), use_buffers=True)
    optimizer = torch.optim.NAdam(
        [p for p in model.parameters() if p.requires_grad],
        lr=CFG.lr,
        weight_decay=CFG.weight_decay,
        decoupled_weight_decay=True,
    )
    steps = CFG.epochs * len(train_loader) // CFG.accumulate
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    scaler = torch.amp.GradScaler(CFG.device.type, enabled=CFG.device.type == "cuda")
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 1.2, 2.5, 3.0], device=CFG.device))

    best = -1.0
    for epoch in range(CFG.epochs):
        train_one_epoch(model, ema, preprocess, train_loader, optimizer, scheduler, scaler, criterion)
        kappa = validate(ema.module, preprocess, valid_loader)
        best = max(best, kappa)
        print(f"epoch {epoch}: kappa {kappa:.3f}, best {best:.3f}")


if __name__ == "__main__":
    main()
