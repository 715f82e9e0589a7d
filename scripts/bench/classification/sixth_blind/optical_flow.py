"""A RAFT learns how things move between two pictures: all pairs are compared, a recurrent unit refines, one cycle of rates."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

HEIGHT, WIDTH, N_ITERATIONS, GAMMA, MAX_FLOW = 112, 144, 6, 0.8, 400


class Pairs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        flow = F.interpolate(torch.randn(1, 2, 7, 9) * 6, (HEIGHT, WIDTH), mode="bilinear")[0]
        image1, image2 = torch.randint(0, 256, (2, 3, HEIGHT, WIDTH)).float()
        valid = (flow.abs() < 1000).all(0).float()
        return image1, image2, flow, valid


class ResidualBlock(nn.Module):
    def __init__(self, in_planes, planes, norm, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, padding=1, stride=stride)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1)
        self.norm1, self.norm2 = norm(planes), norm(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride), norm(planes))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


class Encoder(nn.Module):
    def __init__(self, out, norm, dropout=0.0):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, stride=2, padding=3), norm(32), nn.ReLU(inplace=True))
        layers, planes = [], 32
        for width, stride in ((32, 1), (64, 2), (96, 2)):
            layers += [ResidualBlock(planes, width, norm, stride), ResidualBlock(width, width, norm)]
            planes = width
        self.layers = nn.Sequential(*layers)
        self.out, self.dropout = nn.Conv2d(planes, out, 1), nn.Dropout2d(dropout)

    def forward(self, x):
        return self.dropout(self.out(self.layers(self.stem(x))))


def bilinear_sampler(image, coords):
    h, w = image.shape[-2:]
    x, y = coords.split(1, dim=-1)
    grid = torch.cat((2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1), dim=-1)
    return F.grid_sample(image, grid, align_corners=True)


class CorrBlock:
    def __init__(self, fmap1, fmap2, num_levels=3, radius=3):
        self.radius = radius
        b, c, h, w = fmap1.shape
        corr = fmap1.view(b, c, h * w).transpose(1, 2) @ fmap2.view(b, c, h * w)
        corr = corr.reshape(b * h * w, 1, h, w) / c**0.5
        self.pyramid = [corr]
        for _ in range(num_levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.pyramid.append(corr)

    def __call__(self, coords):
        coords = coords.permute(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        d = torch.linspace(-self.radius, self.radius, 2 * self.radius + 1, device=coords.device)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1)
        found = []
        for level, corr in enumerate(self.pyramid):
            lookup = coords.reshape(b * h * w, 1, 1, 2) / 2**level + delta[None]
            found.append(bilinear_sampler(corr, lookup).view(b, h, w, -1))
        return torch.cat(found, dim=-1).permute(0, 3, 1, 2).contiguous().float()


class ConvGRU(nn.Module):
    def __init__(self, hidden, incoming):
        super().__init__()
        self.convz, self.convr, self.convq = (
            nn.Conv2d(hidden + incoming, hidden, 3, padding=1) for _ in range(3)
        )

    def forward(self, h, x):
        hx = torch.cat([h, x], dim=1)
        z, r = torch.sigmoid(self.convz(hx)), torch.sigmoid(self.convr(hx))
        q = torch.tanh(self.convq(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class UpdateBlock(nn.Module):
    def __init__(self, hidden, context, n_corr):
        super().__init__()
        self.convc1, self.convc2 = nn.Conv2d(n_corr, 128, 1), nn.Conv2d(128, 96, 3, padding=1)
        self.convf1, self.convf2 = nn.Conv2d(2, 64, 7, padding=3), nn.Conv2d(64, 32, 3, padding=1)
        self.conv = nn.Conv2d(128, 80, 3, padding=1)
        self.gru = ConvGRU(hidden, 82 + context)
        self.flow_head = nn.Sequential(
            nn.Conv2d(hidden, 128, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(128, 2, 3, padding=1)
        )
        self.mask = nn.Sequential(
            nn.Conv2d(hidden, 128, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(128, 64 * 9, 1)
        )

    def forward(self, net, inp, corr, flow):
        cor = F.relu(self.convc2(F.relu(self.convc1(corr))))
        flo = F.relu(self.convf2(F.relu(self.convf1(flow))))
        motion = torch.cat([F.relu(self.conv(torch.cat([cor, flo], dim=1))), flow], dim=1)
        net = self.gru(net, torch.cat([inp, motion], dim=1))
        return net, 0.25 * self.mask(net), self.flow_head(net)


class RAFT(nn.Module):
    def __init__(self, hidden=96, context=64):
        super().__init__()
        self.sizes = hidden, context
        self.fnet = Encoder(128, nn.InstanceNorm2d)
        self.cnet = Encoder(hidden + context, nn.BatchNorm2d)
        self.update_block = UpdateBlock(hidden, context, 3 * 7 * 7)

    def upsample_flow(self, flow, mask):
        n, _, h, w = flow.shape
        mask = torch.softmax(mask.view(n, 1, 9, 8, 8, h, w), dim=2)
        up_flow = F.unfold(8 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
        up_flow = torch.sum(mask * up_flow, dim=2).permute(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(n, 2, 8 * h, 8 * w)

    def forward(self, image1, image2, iters=N_ITERATIONS):
        image1 = (2 * (image1 / 255.0) - 1.0).contiguous()
        image2 = (2 * (image2 / 255.0) - 1.0).contiguous()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            fmap1, fmap2 = self.fnet(torch.cat([image1, image2])).chunk(2)
        corr_fn = CorrBlock(fmap1.float(), fmap2.float())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            net, inp = torch.split(self.cnet(image1), self.sizes, dim=1)
            net, inp = torch.tanh(net), torch.relu(inp)
        n, _, h, w = fmap1.shape
        y, x = torch.meshgrid(
            torch.arange(h, device=image1.device), torch.arange(w, device=image1.device), indexing="ij"
        )
        coords0 = torch.stack((x, y)).float()[None].repeat(n, 1, 1, 1)
        coords1 = coords0.clone()
        flow_predictions = []
        for _ in range(iters):
            coords1 = coords1.detach()
            corr = corr_fn(coords1)
            flow = coords1 - coords0
            with torch.autocast("cuda", dtype=torch.bfloat16):
                net, up_mask, delta_flow = self.update_block(net, inp, corr, flow)
            coords1 = coords1 + delta_flow
            flow_predictions.append(self.upsample_flow(coords1 - coords0, up_mask.float()))
        return flow_predictions


def sequence_loss(flow_preds, flow_gt, valid):
    flow_loss = 0.0
    mag = torch.sum(flow_gt**2, dim=1).sqrt()
    valid = (valid >= 0.5) & (mag < MAX_FLOW)
    for i, pred in enumerate(flow_preds):
        weight = GAMMA ** (len(flow_preds) - i - 1)
        flow_loss += weight * (valid[:, None] * (pred - flow_gt).abs()).mean()
    epe = torch.sum((flow_preds[-1] - flow_gt) ** 2, dim=1).sqrt().view(-1)[valid.view(-1)]
    return flow_loss, {"epe": epe.mean().item(), "1px": (epe < 1).float().mean().item()}


def main(num_steps=100):
    torch.manual_seed(212)
    model = RAFT()
    model.cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=1e-4, eps=1e-8)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 4e-4, num_steps + 100, pct_start=0.05, cycle_momentum=False, anneal_strategy="linear"
    )
    train_loader = DataLoader(Pairs(20), batch_size=4, shuffle=True, drop_last=True)
    for i_batch, data_blob in enumerate(train_loader):
        optimizer.zero_grad()
        image1, image2, flow, valid = [x.cuda() for x in data_blob]
        flow_predictions = model(image1, image2)
        loss, metrics = sequence_loss(flow_predictions, flow, valid)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(f"step {i_batch}: loss {loss.item():.3f}, {metrics}")
        end_of_step(inputs=[image1, image2, flow, valid], activations=[flow_predictions, loss])


if __name__ == "__main__":
    main()
