"""A U-Net cuts cars out of photos as the best known repository of it does: RMSprop with momentum, a scaler, Dice, validation in an epoch."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


class DoubleConv(nn.Sequential):
    """A convolution, a norm and a ReLU, twice."""

    def __init__(self, in_channels, out_channels, mid_channels=None):
        mid_channels = mid_channels or out_channels
        super().__init__(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class Down(nn.Sequential):
    def __init__(self, in_channels, out_channels):
        super().__init__(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diff_y, diff_x = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [diff_x // 2, diff_x - diff_x // 2, diff_y // 2, diff_y - diff_y // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=32):
        super().__init__()
        self.n_channels, self.n_classes = n_channels, n_classes
        w = width
        self.inc = DoubleConv(n_channels, w)
        self.down1, self.down2 = Down(w, 2 * w), Down(2 * w, 4 * w)
        self.down3, self.down4 = Down(4 * w, 8 * w), Down(8 * w, 8 * w)
        self.up1, self.up2 = Up(16 * w, 4 * w), Up(8 * w, 2 * w)
        self.up3, self.up4 = Up(4 * w, w), Up(2 * w, w)
        self.outc = nn.Conv2d(w, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x5 = self.down4(x4)
        x = self.up1(x5, x4)
        x = self.up2(x, x3)
        x = self.up3(x, x2)
        x = self.up4(x, x1)
        return self.outc(x)


class Carvana(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, idx):
        mask = torch.zeros(65, 97, dtype=torch.long)
        mask[20 : 40 + idx, 10:70] = 1
        return {"image": torch.rand(3, 65, 97), "mask": mask}


def dice_coeff(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, dataloader, device, amp):
    net.eval()
    dice_score = 0
    with torch.autocast(device.type, enabled=amp):
        for batch in dataloader:
            image = batch["image"].to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            mask_true = batch["mask"].to(device=device, dtype=torch.long)
            mask_pred = (F.sigmoid(net(image).squeeze(1)) > 0.5).float()
            dice_score += dice_coeff(mask_pred, mask_true)
    net.train()
    return dice_score / max(len(dataloader), 1)


def train_model(model, device, epochs=2, batch_size=4, learning_rate=1e-5, amp=True):
    train_set, val_set = random_split(Carvana(), [16, 6], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=batch_size)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, batch_size=batch_size)
    optimizer = optim.RMSprop(
        model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler(device.type, enabled=amp)
    criterion = nn.BCEWithLogitsLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch["image"], batch["mask"]
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            with torch.autocast(device.type, enabled=amp):
                masks_pred = model(images)
                loss = criterion(masks_pred.squeeze(1), true_masks.float())
                loss += 1 - dice_coeff(F.sigmoid(masks_pred.squeeze(1)), true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            global_step += 1
            epoch_loss += loss.item()
            end_of_step(inputs=[images, true_masks], activations=[masks_pred, loss])
            if global_step % 2 == 0:
                val_score = evaluate(model, val_loader, device, amp)
                scheduler.step(val_score)
                print(f"step {global_step}: Dice {val_score.item():.4f}, epoch {epoch}: {epoch_loss:.3f}")


if __name__ == "__main__":
    torch.manual_seed(304)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = UNet(n_channels=3, n_classes=1)
    model = model.to(memory_format=torch.channels_last)
    model.to(device=device)
    train_model(model, device)
