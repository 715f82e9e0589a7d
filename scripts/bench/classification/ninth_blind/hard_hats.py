"""Hard hats are found on building sites by a small YOLO: bytes come to the device, a scaler, two batches to a step, an average of the weights that is validated."""

import math
import random
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset

IMGSZ, NC, STRIDES = 128, 3, (8, 16, 32)
ANCHORS = [[[4, 5], [6, 12], [13, 9]], [[12, 24], [24, 18], [24, 48]], [[46, 36], [62, 80], [120, 105]]]
HYP = {"lr0": 0.01, "momentum": 0.937, "weight_decay": 5e-4, "warmup_bias_lr": 0.1, "anchor_t": 4.0}


class LoadImagesAndLabels(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        n = random.randint(1, 6)
        cls, xy, wh = torch.randint(NC, (n, 1)), torch.rand(n, 2) * 0.8 + 0.1, torch.rand(n, 2) * 0.3 + 0.05
        labels = torch.cat((torch.zeros(n, 1), cls, xy, wh), 1)
        return torch.randint(256, (3, IMGSZ, IMGSZ), dtype=torch.uint8), labels


def collate_fn(batch):
    img, label = zip(*batch)
    for i, lb in enumerate(label):
        lb[:, 0] = i  # which image they are of
    return torch.stack(img, 0), torch.cat(label, 0)


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C3(nn.Module):
    def __init__(self, c1, c2, shortcut=True):
        super().__init__()
        c = c2 // 2
        self.cv1, self.cv2, self.cv3 = Conv(c1, c), Conv(c1, c), Conv(2 * c, c2)
        self.m, self.add = nn.Sequential(Conv(c, c, 1), Conv(c, c, 3)), shortcut

    def forward(self, x):
        y = self.cv1(x)
        y = y + self.m(y) if self.add else self.m(y)
        return self.cv3(torch.cat((y, self.cv2(x)), 1))


class Model(nn.Module):
    def __init__(self, w=24):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), C3(2 * w, 2 * w))
        self.p3, self.p4, self.p5 = (
            nn.Sequential(Conv(c * w, 2 * c * w, 3, 2), C3(2 * c * w, 2 * c * w)) for c in (2, 4, 8)
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.l5, self.h4 = Conv(16 * w, 8 * w), C3(16 * w, 8 * w, False)
        self.l4, self.h3 = Conv(8 * w, 4 * w), C3(8 * w, 4 * w, False)
        self.d3, self.d4 = Conv(4 * w, 4 * w, 3, 2), Conv(8 * w, 8 * w, 3, 2)
        self.n4, self.n5 = C3(8 * w, 8 * w, False), C3(16 * w, 16 * w, False)
        self.detect = nn.ModuleList(nn.Conv2d(c * w, 3 * (NC + 5), 1) for c in (4, 8, 16))
        self.register_buffer("anchors", torch.tensor(ANCHORS) / torch.tensor(STRIDES).view(3, 1, 1))
        for m, s in zip(self.detect, STRIDES):
            m.bias.data.view(3, -1)[:, 4] += math.log(8 / (640 / s) ** 2)

    def forward(self, x):
        c3 = self.p3(self.stem(x))
        c4 = self.p4(c3)
        l5 = self.l5(self.p5(c4))
        l4 = self.l4(self.h4(torch.cat((self.up(l5), c4), 1)))
        out3 = self.h3(torch.cat((self.up(l4), c3), 1))
        out4 = self.n4(torch.cat((self.d3(out3), l4), 1))
        out5 = self.n5(torch.cat((self.d4(out4), l5), 1))
        found = [m(y) for m, y in zip(self.detect, (out3, out4, out5))]
        return [y.unflatten(1, (3, NC + 5)).permute(0, 1, 3, 4, 2).contiguous() for y in found]


class ModelEMA:
    def __init__(self, model):
        self.ema, self.updates = deepcopy(model).eval().requires_grad_(False), 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d, msd = 0.9999 * (1 - math.exp(-self.updates / 2000)), model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v.mul_(d).add_(msd[k].detach(), alpha=1 - d)


def bbox_giou(box1, box2, eps=1e-7):
    (xy1, wh1), (xy2, wh2) = box1.split(2, -1), box2.split(2, -1)
    low1, low2, high1, high2 = xy1 - wh1 / 2, xy2 - wh2 / 2, xy1 + wh1 / 2, xy2 + wh2 / 2
    inter = (torch.min(high1, high2) - torch.max(low1, low2)).clamp(0).prod(-1)
    union = wh1.prod(-1) + wh2.prod(-1) - inter + eps
    c_area = (torch.max(high1, high2) - torch.min(low1, low2)).prod(-1) + eps
    return inter / union - (c_area - union) / c_area


def compute_loss(p, targets, anchors):
    device = targets.device
    lcls, lbox, lobj = (torch.zeros(1, device=device) for _ in range(3))
    ai = torch.arange(3, device=device).float().view(3, 1).repeat(1, len(targets))
    targets = torch.cat((targets.repeat(3, 1, 1), ai[..., None]), 2)
    for i, (pi, balance) in enumerate(zip(p, (4.0, 1.0, 0.4))):
        t = targets * torch.tensor([1, 1, *pi.shape[3:1:-1] * 2, 1], device=device)
        r = t[..., 4:6] / anchors[i][:, None]
        t = t[torch.max(r, 1 / r).max(2)[0] < HYP["anchor_t"]]
        tobj = torch.zeros(pi.shape[:4], dtype=pi.dtype, device=device)
        if len(t):
            bc, gxy, gwh, a = t.split((2, 2, 2, 1), 1)
            (b, c), a, gij = bc.long().T, a.long().view(-1), gxy.long()
            gi, gj = gij.T
            pxy, pwh, _, pcls = pi[b, a, gj, gi].split((2, 2, 1, NC), 1)
            pbox = torch.cat((pxy.sigmoid() * 2 - 0.5, (pwh.sigmoid() * 2) ** 2 * anchors[i][a]), 1)
            iou = bbox_giou(pbox, torch.cat((gxy - gij, gwh), 1))
            lbox += (1.0 - iou).mean()
            tobj[b, a, gj, gi] = iou.detach().clamp(0).type(tobj.dtype)
            lcls += F.binary_cross_entropy_with_logits(pcls, F.one_hot(c, NC).to(pcls.dtype))
        lobj += F.binary_cross_entropy_with_logits(pi[..., 4], tobj) * balance
    parts = torch.cat((lbox * 0.05, lobj, lcls * 0.5))
    return parts.sum() * p[0].shape[0], parts.detach()


def train(device, epochs=2, batch_size=4, nbs=8):
    model = Model().to(device)
    accumulate, g = max(round(nbs / batch_size), 1), ([], [], [])
    for v in model.modules():
        for name, p in v.named_parameters(recurse=False):
            g[2 if name == "bias" else 1 if isinstance(v, nn.BatchNorm2d) else 0].append(p)
    optimizer = torch.optim.SGD(g[2], lr=HYP["lr0"], momentum=HYP["momentum"], nesterov=True)
    optimizer.add_param_group({"params": g[0], "weight_decay": HYP["weight_decay"]})
    optimizer.add_param_group({"params": g[1], "weight_decay": 0.0})
    train_loader = DataLoader(LoadImagesAndLabels(), batch_size, shuffle=True, collate_fn=collate_fn)
    val_loader = DataLoader(LoadImagesAndLabels(), batch_size * 2, collate_fn=collate_fn)
    scaler, ema = torch.amp.GradScaler(device.type), ModelEMA(model)
    for ni, (imgs, targets) in enumerate(batch for _ in range(epochs) for batch in train_loader):
        model.train()
        imgs, targets = imgs.to(device, non_blocking=True).float() / 255, targets.to(device)
        for j, group in enumerate(optimizer.param_groups):
            start = HYP["warmup_bias_lr"] if j == 0 else 0.0
            group["lr"] = start + (HYP["lr0"] - start) * min(ni / 100, 1)
        with torch.amp.autocast(device.type, enabled=device.type == "cuda"):
            pred = model(imgs)
            loss, loss_items = compute_loss(pred, targets, model.anchors)
        scaler.scale(loss).backward()
        kept = {"inputs": [imgs, targets], "activations": [pred, loss, loss_items]}
        kept["weights"] = [*ema.ema.parameters(), *ema.ema.buffers()]
        if (ni + 1) % accumulate:
            tell(**kept)
            continue
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ema.update(model)
        end_of_step(**kept)
        if (ni + 1) % 4 == 0:
            with torch.no_grad():
                im, truth = (part.to(device) for part in next(iter(val_loader)))
                val = compute_loss(ema.ema(im.float() / 255), truth, ema.ema.anchors)[1].tolist()
            print(f"{ni}: box, object, class {loss_items.tolist()}, of the average {val}")


if __name__ == "__main__":
    random.seed(901)
    torch.manual_seed(901)
    train(torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
