"""Images from DataLoader workers through pinned memory, a small residual network with batch norm, SGD."""

import torch
import torch.nn as nn
import torch.optim as optim
from own_count import print_count
from torch.utils.data import DataLoader, Dataset


class FakeImages(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 32, 32, generator=g), int(torch.randint(0, 10, (1,), generator=g))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        Residual(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        Residual(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(device, memory_format=torch.channels_last)
    loader = DataLoader(
        FakeImages(), batch_size=32, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True
    )
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)

    running = torch.zeros((), device=device)
    for inputs, targets in loader:
        inputs = inputs.to(device, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to(device, non_blocking=True)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print_count(net, optimizer)
        running += loss.detach()
        correct = outputs.argmax(1).eq(targets).sum().item()
        print(f"{correct}/{len(targets)}")
    print(f"mean loss {running.item() / len(loader):.3f}")


if __name__ == "__main__":
    main()
