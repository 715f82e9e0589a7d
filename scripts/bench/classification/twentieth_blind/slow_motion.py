"""Slow motion from ordinary video: a RIFE-like network finds intermediate flows coarse to fine, warps and blends two frames, with a privileged teacher, AdamW, warm-up and cosine, two micro-batches, clipping, float32."""

import math

import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)
device = torch.device("cuda")


class Triplets(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        scene = torch.rand(3, 12, 14)
        scene = F.interpolate(scene[None], size=(144, 144), mode="bicubic", align_corners=False)[0].clamp(
            0, 1
        )
        dy, dx = torch.randint(0, 8, (2,)).tolist()
        frames = [scene[:, t * dy : t * dy + 128, t * dx : t * dx + 128] for t in range(3)]
        return torch.cat([frames[0], frames[2], frames[1]])


grids = {}


def warp(frame, flow):
    key = (frame.device, tuple(flow.shape))
    if key not in grids:
        b, _, h, w = flow.shape
        x = torch.linspace(-1.0, 1.0, w, device=flow.device).view(1, 1, 1, w).expand(b, -1, h, -1)
        y = torch.linspace(-1.0, 1.0, h, device=flow.device).view(1, 1, h, 1).expand(b, -1, -1, w)
        grids[key] = torch.cat([x, y], 1)
    flow = torch.cat([flow[:, :1] / ((frame.shape[3] - 1) / 2), flow[:, 1:] / ((frame.shape[2] - 1) / 2)], 1)
    grid = (grids[key] + flow).permute(0, 2, 3, 1)
    return F.grid_sample(frame, grid, mode="bilinear", padding_mode="border", align_corners=True)


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.PReLU(cout))


class FlowBlock(nn.Module):
    def __init__(self, cin, channels):
        super().__init__()
        self.down = nn.Sequential(conv(cin, channels // 2, 2), conv(channels // 2, channels, 2))
        self.body = nn.Sequential(*[conv(channels, channels) for _ in range(6)])
        self.up = nn.ConvTranspose2d(channels, 5, 4, 2, 1)

    def forward(self, x, flow, scale):
        size = x.shape[-2:]
        x = F.interpolate(x, scale_factor=1 / scale, mode="bilinear", align_corners=False)
        if flow is not None:
            flow = F.interpolate(flow, scale_factor=1 / scale, mode="bilinear", align_corners=False) / scale
            x = torch.cat([x, flow], 1)
        x = self.down(x)
        x = self.body(x) + x
        out = F.interpolate(self.up(x), size=size, mode="bilinear", align_corners=False)
        return out[:, :4] * scale * 2, out[:, 4:]


class IFNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([FlowBlock(6, 128), FlowBlock(17, 96), FlowBlock(17, 64)])
        self.teacher = FlowBlock(20, 64)

    def forward(self, pair, target=None):
        first, last = pair[:, :3], pair[:, 3:]
        flow = mask = None
        merged, flows = [], []
        warped = (first, last)
        for block, scale in zip(self.blocks, (4, 2, 1)):
            if flow is None:
                flow, mask = block(pair, None, scale)
            else:
                d_flow, d_mask = block(torch.cat([pair, *warped, mask], 1), flow, scale)
                flow, mask = flow + d_flow, mask + d_mask
            warped = (warp(first, flow[:, :2]), warp(last, flow[:, 2:]))
            alpha = mask.sigmoid()
            merged.append(warped[0] * alpha + warped[1] * (1 - alpha))
            flows.append(flow)
        if target is None:
            return merged[-1]
        d_flow, d_mask = self.teacher(torch.cat([pair, *warped, mask, target], 1), flow, 1)
        taught_flow, alpha = flow + d_flow, (mask + d_mask).sigmoid()
        taught = warp(first, taught_flow[:, :2]) * alpha + warp(last, taught_flow[:, 2:]) * (1 - alpha)
        distilled = sum(
            ((taught_flow.detach() - f) ** 2).mean(1, keepdim=True).sqrt().add(1e-6).mean() for f in flows
        )
        return merged, taught, distilled


model = IFNet().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-3)
total, warm_up, accumulate = 12, 2, 2
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda s: (
        (s + 1) / warm_up
        if s < warm_up
        else 0.5 * (1 + math.cos(math.pi * (s - warm_up) / (total - warm_up)))
    ),
)
loader = DataLoader(Triplets(), batch_size=4, shuffle=True, pin_memory=False)
model.train()
step = 0
for i, batch in enumerate(loader):
    batch = batch.to(device, non_blocking=True)
    pair, target = batch[:, :6], batch[:, 6:]
    merged, taught, distilled = model(pair, target)
    loss = F.l1_loss(merged[-1], target) + F.l1_loss(taught, target) + 0.01 * distilled
    (loss / accumulate).backward()
    if (i + 1) % accumulate == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        with torch.no_grad():
            psnr = -10 * torch.log10(((merged[-1] - target) ** 2).mean()).item()
        print(f"step {step} loss {loss.item():.4f} PSNR {psnr:.2f}")
        end_of_step(inputs=[batch, list(grids.values())], activations=[merged, taught, distilled, loss])
