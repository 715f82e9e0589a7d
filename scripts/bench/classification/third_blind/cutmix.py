"""A ResNet in half precision on cut and mixed images: a gradient scaler, one cycle of rates, metrics on the device."""

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_planes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def resnet(width=40, n_classes=100, depth=2):
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    planes = width
    for stage in range(4):
        for block in range(depth):
            layers.append(BasicBlock(planes, width * 2**stage, 2 if stage and not block else 1))
            planes = width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(planes, n_classes))


class Mean:
    """A running mean that never waits for the device."""

    def __init__(self, device):
        self.total, self.n = torch.zeros((), device=device), 0

    def update(self, value, n):
        self.total += value.detach() * n
        self.n += n

    def result(self):
        return (self.total / max(self.n, 1)).item()


def cut_and_mix(images, labels):
    share = torch.rand(()).item()
    size = images.shape[-1]
    side = int(size * (1 - share) ** 0.5)
    top, left = (int(torch.randint(0, size - side + 1, ())) for _ in range(2))
    order = torch.randperm(len(images), device=images.device)
    images[:, :, top : top + side, left : left + side] = images[
        order, :, top : top + side, left : left + side
    ]
    return images, labels, labels[order], 1 - (side / size) ** 2


def train_one_epoch(model, loader, criterion, optimizer, scheduler, scaler, device):
    model.train()
    losses, hits = Mean(device), Mean(device)
    for images, labels in loader:
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        images, first, second, share = cut_and_mix(images, labels)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
            loss = share * criterion(output, first) + (1 - share) * criterion(output, second)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.update(loss, len(images))
        hits.update((output.argmax(1) == first).float().mean(), len(images))
        end_of_step(inputs=[images, labels, second], activations=[output, loss])
    return losses.result(), hits.result()


@torch.no_grad()
def validate(model, loader, criterion, device):
    model.eval()
    losses = Mean(device)
    for images, labels in loader:
        images = images.to(device, memory_format=torch.channels_last)
        labels = labels.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            losses.update(criterion(model(images), labels), len(images))
    return losses.result()


def main():
    torch.manual_seed(64)
    device = torch.device("cuda")
    model = resnet().to(device, memory_format=torch.channels_last)
    train = TensorDataset(torch.randn(32, 3, 32, 32), torch.randint(0, 100, (32,)))
    valid = TensorDataset(torch.randn(32, 3, 32, 32), torch.randint(0, 100, (32,)))
    train_loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
    valid_loader = DataLoader(valid, batch_size=16)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=20)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(3):
        found = train_one_epoch(model, train_loader, criterion, optimizer, scheduler, scaler, device)
        print(epoch, *found, validate(model, valid_loader, criterion, device))


if __name__ == "__main__":
    main()
