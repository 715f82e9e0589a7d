"""Deformable registration of lung scans (inhale to exhale) with MONAI's VoxelMorph under Accelerate; the best weights stay on the GPU."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from monai.data import CacheDataset, DataLoader
from monai.losses import BendingEnergyLoss, DiceLoss, LocalNormalizedCrossCorrelationLoss
from monai.metrics import DiceMetric
from monai.networks import one_hot
from monai.networks.blocks import Warp
from monai.networks.nets import VoxelMorph, VoxelMorphUNet
from monai.transforms import Compose, EnsureTyped, RandAffined, ScaleIntensityRanged
from programs import end_of_step, tell

SHAPE = (64, 32, 32)
IMAGES, LABELS = ["fixed_image", "moving_image"], ["fixed_label", "moving_label"]


def scan(random, phase):
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, n) for n in SHAPE], indexing="ij"))
    image = random.normal(-850, 40, SHAPE)
    label = np.zeros(SHAPE)
    for side in (-0.45, 0.45):
        center = np.array([side, 0.05 * phase, 0.1 * phase]).reshape(3, 1, 1, 1)
        size = np.array([0.35, 0.6, 0.8 - 0.1 * phase]).reshape(3, 1, 1, 1)
        inside = (((grid - center) / size) ** 2).sum(0) < 1
        label[inside] = 1
        image[~inside] += 500
    return image[None].astype(np.float32), label[None].astype(np.float32)


def pairs(n, seed):
    random = np.random.default_rng(seed)
    items = []
    for _ in range(n):
        fixed_image, fixed_label = scan(random, 0)
        moving_image, moving_label = scan(random, 1)
        items.append(
            dict(
                fixed_image=fixed_image,
                fixed_label=fixed_label,
                moving_image=moving_image,
                moving_label=moving_label,
            )
        )
    return items


set_seed(2024)
scaling = ScaleIntensityRanged(keys=IMAGES, a_min=-1100, a_max=100, b_min=0, b_max=1, clip=True)
train_transforms = Compose(
    [
        scaling,
        RandAffined(
            keys=IMAGES + LABELS,
            mode=("bilinear", "bilinear", "nearest", "nearest"),
            prob=0.8,
            rotate_range=(0, 0, np.pi / 24),
            scale_range=(0.05, 0.05, 0.05),
            padding_mode="border",
        ),
        EnsureTyped(keys=IMAGES + LABELS, track_meta=False),
    ]
)
val_transforms = Compose([scaling, EnsureTyped(keys=IMAGES + LABELS, track_meta=False)])
train_loader = DataLoader(
    CacheDataset(pairs(4, 1), train_transforms, progress=False), batch_size=1, shuffle=True
)
val_loader = DataLoader(CacheDataset(pairs(1, 2), val_transforms, progress=False), batch_size=1)

accelerator = Accelerator(gradient_accumulation_steps=2)
model = VoxelMorph(
    backbone=VoxelMorphUNet(
        spatial_dims=3,
        in_channels=2,
        unet_out_channels=16,
        channels=(16, 32, 32, 32, 32, 32),
        final_conv_channels=(16, 16),
    ),
    integration_steps=5,
    half_res=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-5, amsgrad=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=10)
model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

warp = Warp("bilinear", "border").to(accelerator.device)
similarity = LocalNormalizedCrossCorrelationLoss(spatial_dims=3, kernel_size=5)
smoothness = BendingEnergyLoss()
overlap = DiceLoss(include_background=False)
dice_metric = DiceMetric(include_background=False, reduction="mean")
best_dice, best_state = -1.0, None

for epoch in range(100):
    model.train()
    for batch in train_loader:
        tell(inputs=batch)
        with accelerator.accumulate(model):
            warped, ddf = model(batch["moving_image"], batch["fixed_image"])
            warped_label = warp(one_hot(batch["moving_label"], 2), ddf)
            loss = (
                similarity(warped, batch["fixed_image"])
                + 0.5 * smoothness(ddf)
                + overlap(warped_label, one_hot(batch["fixed_label"], 2))
            )
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            end_of_step(
                inputs=batch,
                activations=[warped, ddf, warped_label, loss],
                weights=best_state,
            )
    accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")

    model.eval()
    with torch.no_grad():
        for batch in val_loader:
            tell(inputs=batch)
            _, ddf = model(batch["moving_image"], batch["fixed_image"])
            moved = warp(one_hot(batch["moving_label"], 2), ddf)
            dice_metric(y_pred=(moved > 0.5).float(), y=one_hot(batch["fixed_label"], 2))
    dice = dice_metric.aggregate().item()
    dice_metric.reset()
    scheduler.step(dice)
    if dice > best_dice:
        best_dice = dice
        best_state = {
            name: value.detach().clone()
            for name, value in accelerator.unwrap_model(model).state_dict().items()
        }
        accelerator.print(f"epoch {epoch}: new best dice {dice:.4f}")

model.load_state_dict(best_state)
accelerator.save(model.state_dict(), "registration.pt")
