"""Faces are told apart by angles, as ArcFace does: an IResNet in half precision with a scaler, a large last layer, SGD, pairs compared between."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_PEOPLE, EMBEDDING, SIZE = 6000, 256, 56


class Faces(Dataset):
    """Aligned crops, as bytes."""

    def __init__(self, n):
        self.n = n
        self.random = torch.Generator().manual_seed(402)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        image = torch.randint(0, 256, (SIZE, SIZE, 3), dtype=torch.uint8, generator=self.random)
        return image, index * 31 % N_PEOPLE


class IBasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1, downsample=None):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inplanes, eps=1e-05)
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes, eps=1e-05)
        self.prelu = nn.PReLU(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes, eps=1e-05)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.bn1(x)
        out = self.conv1(out)
        out = self.bn2(out)
        out = self.prelu(out)
        out = self.conv2(out)
        out = self.bn3(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return out


class IResNet(nn.Module):
    def __init__(self, layers, widths=(32, 64, 128, 256), dropout=0.0, num_features=EMBEDDING, fp16=False):
        super().__init__()
        self.fp16 = fp16
        self.inplanes = widths[0]
        self.conv1 = nn.Conv2d(3, self.inplanes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(self.inplanes, eps=1e-05)
        self.prelu = nn.PReLU(self.inplanes)
        self.layer1 = self._make_layer(widths[0], layers[0])
        self.layer2 = self._make_layer(widths[1], layers[1])
        self.layer3 = self._make_layer(widths[2], layers[2])
        self.layer4 = self._make_layer(widths[3], layers[3])
        self.bn2 = nn.BatchNorm2d(widths[3], eps=1e-05)
        self.dropout = nn.Dropout(p=dropout, inplace=True)
        self.fc = nn.Linear(widths[3] * (SIZE // 16 + 1) ** 2, num_features)
        self.features = nn.BatchNorm1d(num_features, eps=1e-05)
        nn.init.constant_(self.features.weight, 1.0)
        self.features.weight.requires_grad = False
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, 0, 0.1)

    def _make_layer(self, planes, blocks):
        downsample = nn.Sequential(
            nn.Conv2d(self.inplanes, planes, kernel_size=1, stride=2, bias=False),
            nn.BatchNorm2d(planes, eps=1e-05),
        )
        layers = [IBasicBlock(self.inplanes, planes, 2, downsample)]
        self.inplanes = planes
        layers += [IBasicBlock(planes, planes) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        with torch.autocast("cuda", enabled=self.fp16):
            x = self.prelu(self.bn1(self.conv1(x)))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            x = self.bn2(x)
            x = torch.flatten(x, 1)
            x = self.dropout(x)
        x = self.fc(x.float() if self.fp16 else x)
        return self.features(x)


class ArcMargin(nn.Module):
    def __init__(self, n_classes, s=64.0, margin=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.normal(0, 0.01, (n_classes, EMBEDDING)))
        self.s, self.margin = s, margin

    def forward(self, embeddings, labels):
        logits = F.linear(F.normalize(embeddings), F.normalize(self.weight)).clamp(-1, 1)
        index = torch.where(labels != -1)[0]
        target_logit = logits[index, labels[index].view(-1)]
        with torch.no_grad():
            target_logit.arccos_()
            logits.arccos_()
            logits[index, labels[index].view(-1)] = target_logit + self.margin
            logits.cos_()
        logits = logits * self.s
        return F.cross_entropy(logits, labels), logits


def preprocess(images, device):
    images = images.to(device, non_blocking=True).permute(0, 3, 1, 2).float()
    images = images.div_(255).sub_(0.5).div_(0.5)
    flipped = torch.rand(len(images), 1, 1, 1, device=device) < 0.5
    return torch.where(flipped, images.flip(-1), images)


@torch.no_grad()
def verify(backbone, pairs, issame, device):
    """How well a threshold tells the pairs of one person."""
    backbone.eval()
    first, second = (F.normalize(backbone(images.to(device))) for images in pairs)
    dist = (first - second).square().sum(1).cpu()
    backbone.train()
    return max(((dist < t) == issame).float().mean().item() for t in torch.arange(0, 4, 0.1))


def main(total_step=6, batch_size=16, warmup=2, lr=0.02):
    torch.manual_seed(401)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Faces(96), batch_size=batch_size, shuffle=True, drop_last=True)
    pairs = torch.randn(2, 8, 3, SIZE, SIZE)
    issame = torch.arange(8) % 2 == 0
    backbone = IResNet([2, 3, 4, 2], fp16=True).to(device).train()
    module_fc = ArcMargin(N_PEOPLE).train().to(device)
    opt = torch.optim.SGD(
        params=[{"params": backbone.parameters()}, {"params": module_fc.parameters()}],
        lr=lr,
        momentum=0.9,
        weight_decay=5e-4,
    )
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(
        opt,
        [
            torch.optim.lr_scheduler.LinearLR(opt, 0.01, total_iters=warmup),
            torch.optim.lr_scheduler.PolynomialLR(opt, total_step - warmup, power=2),
        ],
        milestones=[warmup],
    )
    amp = torch.amp.GradScaler(device.type, init_scale=2.0**9, growth_interval=100)
    for global_step, (img, local_labels) in enumerate(train_loader, 1):
        img, local_labels = preprocess(img, device), local_labels.to(device)
        local_embeddings = backbone(img)
        loss, logits = module_fc(local_embeddings, local_labels)
        amp.scale(loss).backward()
        amp.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(backbone.parameters(), 5)
        amp.step(opt)
        amp.update()
        opt.zero_grad()
        lr_scheduler.step()
        print(f"step {global_step}: loss {loss.item():.3f}, scale {amp.get_scale():.0f}")
        end_of_step(inputs=[img, local_labels], activations=[local_embeddings, logits, loss])
        if global_step % 2 == 0:
            print(f"accuracy {verify(backbone, pairs, issame, device):.3f}")


if __name__ == "__main__":
    main()
