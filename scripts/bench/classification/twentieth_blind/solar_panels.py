"""Solar panels on roofs are segmented in aerial photographs: a DeepLabV3+ with an EfficientNet encoder, Dice and focal loss, AdamW with two rates, one cycle, bfloat16 autocast."""

import segmentation_models_pytorch as smp
import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
device = torch.device("cuda")


class Roofs(Dataset):
    def __init__(self, count, train):
        self.count = count
        self.train = train

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 128, 128, generator=generator)
        mask = torch.zeros(1, 128, 128)
        top, left = torch.randint(0, 85, (2,), generator=generator).tolist()
        mask[:, top : top + 40, left : left + 28] = 1.0
        image = image * 0.4 + 0.3 * (1 - mask)
        if self.train and torch.rand(1).item() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


def validate(model, loader):
    model.eval()
    tp = fp = fn = tn = 0
    with torch.no_grad():
        for images, masks in loader:
            images, masks = images.to(device), masks.to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(images)
            stats = smp.metrics.get_stats(
                (logits.float().sigmoid() > 0.5).long(), masks.long(), mode="binary"
            )
            tp, fp, fn, tn = (a + b.sum().item() for a, b in zip((tp, fp, fn, tn), stats))
    return tp / max(tp + fp + fn, 1)


train_loader = DataLoader(Roofs(8, True), batch_size=4, shuffle=True, drop_last=True)
valid_loader = DataLoader(Roofs(4, False), batch_size=4)
model = smp.DeepLabV3Plus("efficientnet-b0", encoder_weights=None, classes=1, decoder_channels=128).to(device)
dice = smp.losses.DiceLoss(mode="binary")
focal = smp.losses.FocalLoss(mode="binary")
epochs = 4
optimizer = torch.optim.AdamW(
    [
        {"params": model.encoder.parameters(), "lr": 1e-4},
        {"params": list(model.decoder.parameters()) + list(model.segmentation_head.parameters()), "lr": 1e-3},
    ],
    weight_decay=1e-2,
)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=[1e-4, 1e-3], total_steps=epochs * len(train_loader)
)

best = 0.0
for epoch in range(epochs):
    model.train()
    for images, masks in train_loader:
        images = images.to(device, non_blocking=True)
        masks = masks.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(images)
            loss = dice(logits, masks) + focal(logits, masks)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
        end_of_step(inputs=[images, masks], activations=[logits, loss])
    iou = validate(model, valid_loader)
    if iou >= best:
        best = iou
        torch.save(model.state_dict(), "best.pt")
    print(f"epoch {epoch} IoU {iou:.3f}")
