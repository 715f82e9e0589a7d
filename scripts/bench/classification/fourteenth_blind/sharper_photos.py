"""Old photos become sharp by a GAN as Real-ESRGAN trains it: pictures are blurred, shrunk, noised and compressed on the device and shuffled in a pool there, an RRDB network, a U-Net with spectral norms as critic, a VGG that judges layers, an EMA that is validated."""

import random
from collections import OrderedDict
from copy import deepcopy

import kornia
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.nn.utils import spectral_norm
from torch.utils.data import DataLoader, Dataset
from torchvision.models import vgg19

OPT = {
    "scale": 4,
    "gt_size": 96,
    "batch_size": 3,
    "queue_size": 6,
    "num_feat": 32,
    "num_block": 3,
    "num_grow_ch": 16,
    "resize_prob": [0.2, 0.7, 0.1],
    "resize_range": [0.3, 1.5],
    "noise_range": [1, 25],
    "jpeg_range": [40, 95],
    "ema_decay": 0.999,
    "lr": 1e-4,
    "total_iter": 4,
    "val_freq": 2,
}
device = torch.device("cuda")


class PhotoDataset(Dataset):
    """Crops of photos, and the kernels to blur them with."""

    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        coarse = torch.rand(1, 3, self.size // 6, self.size // 6, generator=g)
        photo = F.interpolate(coarse, size=(self.size, self.size), mode="bicubic", align_corners=False)
        return {"gt": photo[0].clamp(0, 1), "kernel1": self.kernel(g), "kernel2": self.kernel(g)}

    @staticmethod
    def kernel(g, size=21):
        sigma = 0.2 + 2.8 * torch.rand(2, 1, generator=g)
        lines = torch.exp(-0.5 * (torch.arange(size) - size // 2) ** 2 / sigma**2)
        lines = lines / lines.sum(1, keepdim=True)
        return torch.outer(*lines)


class ResidualDenseBlock(nn.Module):
    def __init__(self, num_feat, num_grow_ch):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(num_feat + i * num_grow_ch, num_grow_ch if i < 4 else num_feat, 3, 1, 1)
            for i in range(5)
        )
        self.lrelu = nn.LeakyReLU(negative_slope=0.2, inplace=True)

    def forward(self, x):
        found = [x]
        for conv in self.convs[:-1]:
            found.append(self.lrelu(conv(torch.cat(found, 1))))
        return self.convs[-1](torch.cat(found, 1)) * 0.2 + x


class RRDB(nn.Module):
    def __init__(self, num_feat, num_grow_ch):
        super().__init__()
        self.rdbs = nn.Sequential(*(ResidualDenseBlock(num_feat, num_grow_ch) for _ in range(3)))

    def forward(self, x):
        return self.rdbs(x) * 0.2 + x


class RRDBNet(nn.Module):
    def __init__(self, num_feat, num_block, num_grow_ch):
        super().__init__()
        self.conv_first = nn.Conv2d(3, num_feat, 3, 1, 1)
        self.body = nn.Sequential(*(RRDB(num_feat, num_grow_ch) for _ in range(num_block)))
        self.conv_body = nn.Conv2d(num_feat, num_feat, 3, 1, 1)
        self.conv_up1 = nn.Conv2d(num_feat, num_feat, 3, 1, 1)
        self.conv_up2 = nn.Conv2d(num_feat, num_feat, 3, 1, 1)
        self.conv_hr = nn.Conv2d(num_feat, num_feat, 3, 1, 1)
        self.conv_last = nn.Conv2d(num_feat, 3, 3, 1, 1)
        self.lrelu = nn.LeakyReLU(negative_slope=0.2, inplace=True)

    def forward(self, x):
        feat = self.conv_first(x)
        feat = feat + self.conv_body(self.body(feat))
        feat = self.lrelu(self.conv_up1(F.interpolate(feat, scale_factor=2, mode="nearest")))
        feat = self.lrelu(self.conv_up2(F.interpolate(feat, scale_factor=2, mode="nearest")))
        return self.conv_last(self.lrelu(self.conv_hr(feat)))


class UNetDiscriminatorSN(nn.Module):
    def __init__(self, num_feat):
        super().__init__()
        self.conv0 = nn.Conv2d(3, num_feat, 3, 1, 1)
        self.conv1 = spectral_norm(nn.Conv2d(num_feat, num_feat * 2, 4, 2, 1, bias=False))
        self.conv2 = spectral_norm(nn.Conv2d(num_feat * 2, num_feat * 4, 4, 2, 1, bias=False))
        self.conv3 = spectral_norm(nn.Conv2d(num_feat * 4, num_feat * 8, 4, 2, 1, bias=False))
        self.conv4 = spectral_norm(nn.Conv2d(num_feat * 8, num_feat * 4, 3, 1, 1, bias=False))
        self.conv5 = spectral_norm(nn.Conv2d(num_feat * 4, num_feat * 2, 3, 1, 1, bias=False))
        self.conv6 = spectral_norm(nn.Conv2d(num_feat * 2, num_feat, 3, 1, 1, bias=False))
        self.conv7 = spectral_norm(nn.Conv2d(num_feat, num_feat, 3, 1, 1, bias=False))
        self.conv9 = nn.Conv2d(num_feat, 1, 3, 1, 1)

    def forward(self, x):
        act = lambda y: F.leaky_relu(y, negative_slope=0.2, inplace=True)
        up = lambda y: F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        x0 = act(self.conv0(x))
        x1 = act(self.conv1(x0))
        x2 = act(self.conv2(x1))
        x3 = act(self.conv3(x2))
        x4 = act(self.conv4(up(x3))) + x2
        x5 = act(self.conv5(up(x4))) + x1
        x6 = act(self.conv6(up(x5))) + x0
        return self.conv9(act(self.conv7(x6)))


class PerceptualLoss(nn.Module):
    WEIGHTS = {2: 0.1, 7: 0.1, 16: 1.0, 25: 1.0}  # conv1_2, conv2_2, conv3_4, conv4_4

    def __init__(self):
        super().__init__()
        self.vgg = vgg19(weights=None).features[:26]
        self.vgg.eval().requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def features(self, x):
        x = (x - self.mean) / self.std
        found = {}
        for i, layer in enumerate(self.vgg):
            x = layer(x)
            if i in self.WEIGHTS:
                found[i] = x.clone()
        return found

    def forward(self, x, gt):
        x_features, gt_features = self.features(x), self.features(gt.detach())
        return sum(w * F.l1_loss(x_features[i], gt_features[i]) for i, w in self.WEIGHTS.items())


class RealESRGANModel:
    def __init__(self, opt):
        self.opt = opt
        self.net_g = RRDBNet(opt["num_feat"], opt["num_block"], opt["num_grow_ch"]).to(device)
        self.net_d = UNetDiscriminatorSN(opt["num_feat"]).to(device)
        self.net_g_ema = deepcopy(self.net_g).eval().requires_grad_(False)
        self.cri_pix = nn.L1Loss().to(device)
        self.cri_perceptual = PerceptualLoss().to(device)
        self.optimizer_g = torch.optim.Adam(self.net_g.parameters(), lr=opt["lr"], betas=(0.9, 0.99))
        self.optimizer_d = torch.optim.Adam(self.net_d.parameters(), lr=opt["lr"], betas=(0.9, 0.99))
        self.schedulers = [
            torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[400000], gamma=0.5)
            for optimizer in (self.optimizer_g, self.optimizer_d)
        ]
        self.queue_ptr = 0

    @torch.no_grad()
    def degrade(self, x, kernel, size=None):
        """Blur, resize, noise, JPEG."""
        out = kornia.filters.filter2d(x, kernel, border_type="reflect")
        kind = random.choices(["up", "down", "keep"], self.opt["resize_prob"])[0]
        low, high = self.opt["resize_range"]
        scale = {"up": random.uniform(1, high), "down": random.uniform(low, 1), "keep": 1.0}[kind]
        mode = random.choice(["area", "bilinear", "bicubic"])
        if size is None:
            out = F.interpolate(out, scale_factor=scale, mode=mode)
        else:
            out = F.interpolate(out, size=size, mode=mode)
        sigma = torch.rand(len(out), 1, 1, 1, device=device) * (self.opt["noise_range"][1] / 255)
        out = torch.clamp(out + torch.randn_like(out) * sigma, 0, 1)
        quality = out.new_zeros(out.size(0)).uniform_(*self.opt["jpeg_range"])
        h, w = out.shape[-2:]
        out = F.pad(out, (0, -w % 16, 0, -h % 16), mode="replicate")
        return kornia.enhance.jpeg_codec_differentiable(out, quality)[..., :h, :w]

    @torch.no_grad()
    def feed_data(self, data):
        self.gt = data["gt"].to(device)
        kernel1, kernel2 = data["kernel1"].to(device), data["kernel2"].to(device)
        out = self.degrade(self.gt, kernel1)
        size = self.opt["gt_size"] // self.opt["scale"]
        out = self.degrade(out, kernel2, size=(size, size))
        self.lq = torch.clamp((out * 255.0).round(), 0, 255) / 255.0
        self._dequeue_and_enqueue()
        self.lq = self.lq.contiguous()

    @torch.no_grad()
    def _dequeue_and_enqueue(self):
        """A pool of pairs, so that a batch has degradations of all kinds."""
        b, c, h, w = self.lq.size()
        n = self.opt["queue_size"]
        if not hasattr(self, "queue_lr"):
            self.queue_lr = torch.zeros(n, c, h, w).to(device)
            self.queue_gt = torch.zeros(n, *self.gt.shape[1:]).to(device)
        if self.queue_ptr == n:
            idx = torch.randperm(n)
            self.queue_lr, self.queue_gt = self.queue_lr[idx], self.queue_gt[idx]
            lq, gt = self.queue_lr[:b].clone(), self.queue_gt[:b].clone()
            self.queue_lr[:b], self.queue_gt[:b] = self.lq.clone(), self.gt.clone()
            self.lq, self.gt = lq, gt
        else:
            self.queue_lr[self.queue_ptr : self.queue_ptr + b] = self.lq.clone()
            self.queue_gt[self.queue_ptr : self.queue_ptr + b] = self.gt.clone()
            self.queue_ptr += b

    def optimize_parameters(self):
        usm = kornia.filters.unsharp_mask(self.gt, (9, 9), (2.0, 2.0))
        self.gt_usm = usm.clamp(0, 1)
        for p in self.net_d.parameters():
            p.requires_grad = False
        self.optimizer_g.zero_grad()
        self.output = self.net_g(self.lq)
        l_g_total, loss_dict = 0, OrderedDict()
        l_g_pix = self.cri_pix(self.output, self.gt_usm)
        l_g_percep = self.cri_perceptual(self.output, self.gt_usm)
        fake_g_pred = self.net_d(self.output)
        l_g_gan = 0.1 * F.binary_cross_entropy_with_logits(fake_g_pred, torch.ones_like(fake_g_pred))
        l_g_total = l_g_pix + l_g_percep + l_g_gan
        l_g_total.backward()
        self.optimizer_g.step()
        loss_dict.update(l_g_pix=l_g_pix, l_g_percep=l_g_percep, l_g_gan=l_g_gan)

        for p in self.net_d.parameters():
            p.requires_grad = True
        self.optimizer_d.zero_grad()
        real_d_pred = self.net_d(self.gt)
        l_d_real = F.binary_cross_entropy_with_logits(real_d_pred, torch.ones_like(real_d_pred))
        l_d_real.backward()
        fake_d_pred = self.net_d(self.output.detach().clone())
        l_d_fake = F.binary_cross_entropy_with_logits(fake_d_pred, torch.zeros_like(fake_d_pred))
        l_d_fake.backward()
        self.optimizer_d.step()
        loss_dict.update(l_d_real=l_d_real, l_d_fake=l_d_fake, out_d_real=real_d_pred.detach().mean())
        self.model_ema(self.opt["ema_decay"])
        self.log_dict = {name: value.mean().item() for name, value in loss_dict.items()}

    def model_ema(self, decay):
        ema_params = dict(self.net_g_ema.named_parameters())
        for name, p in self.net_g.named_parameters():
            ema_params[name].data.mul_(decay).add_(p.data, alpha=1 - decay)

    @torch.no_grad()
    def validation(self, loader):
        psnr = []
        for data in loader:
            gt = data["gt"].to(device)
            lq = F.interpolate(gt, scale_factor=1 / self.opt["scale"], mode="area")
            output = self.net_g_ema(lq).clamp(0, 1)
            psnr.append(kornia.metrics.psnr(output, gt, 1.0).item())
        return float(np.mean(psnr))

    def save(self, current_iter):
        torch.save(
            {"params": self.net_g.state_dict(), "params_ema": self.net_g_ema.state_dict()},
            f"net_g_{current_iter}.pth",
        )


def main():
    random.seed(0)
    torch.manual_seed(0)
    train_loader = DataLoader(
        PhotoDataset(30, OPT["gt_size"]), OPT["batch_size"], shuffle=True, drop_last=True
    )
    val_loader = DataLoader(PhotoDataset(2, 128), 1)
    model = RealESRGANModel(OPT)
    current_iter, batches = 0, iter(train_loader)
    while current_iter < OPT["total_iter"]:
        current_iter += 1
        model.feed_data(next(batches))
        model.optimize_parameters()
        for scheduler in model.schedulers:
            scheduler.step()
        print(f"iter {current_iter}: " + " ".join(f"{k} {v:.3f}" for k, v in model.log_dict.items()))
        if current_iter % OPT["val_freq"] == 0:
            print(f"  psnr {model.validation(val_loader):.2f}")
            model.save(current_iter)
        end_of_step(
            inputs=[model.lq, model.gt, model.gt_usm, model.queue_lr, model.queue_gt],
            activations=model.output,
        )


if __name__ == "__main__":
    main()
