"""timm: a small ViT with mixup, label smoothing, an averaged copy of the weights, and autocast with a scaler."""

import timm
import torch
from own_count import print_count
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3

torch.manual_seed(0)
device = "cuda"

model = timm.create_model(
    "vit_tiny_patch16_224", pretrained=False, img_size=64, num_classes=100, drop_path_rate=0.1
).to(device)
ema = ModelEmaV3(model, decay=0.999)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=100)
criterion = SoftTargetCrossEntropy().to(device)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=10)
scaler = torch.amp.GradScaler("cuda")

for update in range(5):
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 100, (16,))
    images, targets = mixup(images.to(device), labels.to(device))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(images), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ema.update(model, step=update)
    scheduler.step_update(update)
    print_count([model, ema], optimizer, is_autocast=True)
    print(update, f"{loss.item():.3f}")
