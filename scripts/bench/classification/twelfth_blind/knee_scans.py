"""Scans of knees are made of a part of what the coils measured by an end-to-end VarNet, as fastMRI trains it: sensitivities that are learned, cascades of U-Nets that take complex numbers apart, a loss of structure, Lightning with RMSprop."""

import lightning.pytorch as pl
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

SIZE, COILS = 96, 6


def fft2c(image):
    return torch.fft.fftshift(
        torch.fft.fft2(torch.fft.ifftshift(image, dim=(-2, -1)), norm="ortho"), dim=(-2, -1)
    )


def ifft2c(kspace):
    return torch.fft.fftshift(
        torch.fft.ifft2(torch.fft.ifftshift(kspace, dim=(-2, -1)), norm="ortho"), dim=(-2, -1)
    )


def rss(images, dim=1):
    return images.abs().square().sum(dim).sqrt()


class Knees(Dataset):
    """Ellipses as several coils hear them; lines of k-space are left out."""

    def __init__(self, n, rng, acceleration=4, center=0.08):
        self.n, self.rng, self.acceleration, self.center = n, rng, acceleration, center
        self.y, self.x = np.mgrid[:SIZE, :SIZE] / SIZE - 0.5

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        image = np.zeros((SIZE, SIZE))
        for _ in range(8):
            cy, cx, ry, rx = self.rng.uniform([-0.3, -0.3, 0.03, 0.03], [0.3, 0.3, 0.2, 0.2])
            image += ((self.y - cy) / ry) ** 2 + ((self.x - cx) / rx) ** 2 < 1
        angles = 2 * np.pi * np.arange(COILS) / COILS
        sens = [
            np.exp(-((self.y - 0.5 * np.sin(a)) ** 2 + (self.x - 0.5 * np.cos(a)) ** 2) * 3 + 1j * a)
            for a in angles
        ]
        kspace = fft2c(torch.from_numpy(image * np.stack(sens)).to(torch.complex64))
        mask = torch.from_numpy(self.rng.random(SIZE) < 1 / self.acceleration)
        low = int(SIZE * self.center)
        mask[(SIZE - low) // 2 : (SIZE + low) // 2] = True
        return kspace * mask, mask[None, None], rss(ifft2c(kspace), dim=0)


class ConvBlock(nn.Sequential):
    def __init__(self, n_in, n_out):
        super().__init__(
            nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
            nn.InstanceNorm2d(n_out),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
            nn.InstanceNorm2d(n_out),
            nn.LeakyReLU(0.2, inplace=True),
        )


class Unet(nn.Module):
    def __init__(self, chans, n_pools):
        super().__init__()
        widths = [chans * 2**i for i in range(n_pools + 1)]
        self.down = nn.ModuleList(ConvBlock(a, b) for a, b in zip([2, *widths[:-2]], widths[:-1]))
        self.bottom = ConvBlock(widths[-2], widths[-1])
        self.up_t = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2, bias=False) for w in widths[-2::-1])
        self.up = nn.ModuleList(ConvBlock(2 * w, w) for w in widths[-2::-1])
        self.last = nn.Conv2d(chans, 2, 1)

    def forward(self, x):
        stack = []
        for layer in self.down:
            x = layer(x)
            stack.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.bottom(x)
        for up_t, up in zip(self.up_t, self.up):
            x = up(torch.cat([up_t(x), stack.pop()], dim=1))
        return self.last(x)


class NormUnet(nn.Module):
    """Complex in, complex out: two channels that are normalized between."""

    def __init__(self, chans, n_pools):
        super().__init__()
        self.unet = Unet(chans, n_pools)

    def forward(self, image):
        x = torch.view_as_real(image).permute(0, 3, 1, 2).contiguous()
        mean, std = x.mean(dim=(2, 3), keepdim=True), x.std(dim=(2, 3), keepdim=True) + 1e-6
        x = self.unet((x - mean) / std) * std + mean
        return torch.view_as_complex(x.permute(0, 2, 3, 1).contiguous())


class VarNetBlock(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.dc_weight = model, nn.Parameter(torch.ones(1))

    def forward(self, current, reference, mask, sens):
        soft_dc = torch.where(mask, current - reference, 0) * self.dc_weight
        image = (ifft2c(current) * sens.conj()).sum(1)
        return current - soft_dc - fft2c(self.model(image).unsqueeze(1) * sens)


class VarNet(nn.Module):
    def __init__(self, num_cascades=4, chans=18, pools=3, sens_chans=8):
        super().__init__()
        self.sens_net = NormUnet(sens_chans, pools)
        self.cascades = nn.ModuleList(VarNetBlock(NormUnet(chans, pools)) for _ in range(num_cascades))

    def sensitivities(self, kspace):
        low = torch.zeros(SIZE, dtype=torch.bool, device=kspace.device)
        low[SIZE // 2 - 4 : SIZE // 2 + 4] = True
        images = ifft2c(kspace * low)
        maps = self.sens_net(images.flatten(0, 1)).view_as(images)
        return maps / (rss(maps).unsqueeze(1) + 1e-6)

    def forward(self, masked_kspace, mask):
        sens, kspace = self.sensitivities(masked_kspace), masked_kspace.clone()
        for cascade in self.cascades:
            kspace = cascade(kspace, masked_kspace, mask, sens)
        return rss(ifft2c(kspace))


class SSIMLoss(nn.Module):
    def __init__(self, win=7, k1=0.01, k2=0.03):
        super().__init__()
        self.k1, self.k2, self.cov_norm = k1, k2, win**2 / (win**2 - 1)
        self.register_buffer("w", torch.ones(1, 1, win, win) / win**2)

    def forward(self, x, y):
        c1, c2 = ((k * y.amax(dim=(1, 2, 3), keepdim=True)) ** 2 for k in (self.k1, self.k2))
        ux, uy, uxx, uyy, uxy = (F.conv2d(v, self.w) for v in (x, y, x * x, y * y, x * y))
        vx, vy, vxy = (self.cov_norm * v for v in (uxx - ux * ux, uyy - uy * uy, uxy - ux * uy))
        s = (2 * ux * uy + c1) * (2 * vxy + c2) / ((ux**2 + uy**2 + c1) * (vx + vy + c2))
        return 1 - s.mean()


class VarNetModule(pl.LightningModule):
    def __init__(self, lr=3e-4, lr_step_size=40, lr_gamma=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.varnet, self.loss = VarNet(), SSIMLoss()

    def training_step(self, batch, batch_idx):
        kspace, mask, target = batch
        loss = self.loss(self.varnet(kspace, mask).unsqueeze(1), target.unsqueeze(1))
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def validation_step(self, batch, batch_idx):
        kspace, mask, target = batch
        output = self.varnet(kspace, mask)
        nmse = (output - target).square().sum() / target.square().sum()
        self.log_dict({"val_nmse": nmse, "val_loss": self.loss(output[:, None], target[:, None])})

    def configure_optimizers(self):
        optimizer = torch.optim.RMSprop(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, self.hparams.lr_step_size)]


if __name__ == "__main__":
    pl.seed_everything(1201, verbose=False)
    rng = np.random.default_rng(1201)
    trainer = pl.Trainer(accelerator="auto", devices=1, max_epochs=4, logger=False, num_sanity_val_steps=1, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(VarNetModule(), DataLoader(Knees(4, rng), 2, shuffle=True), DataLoader(Knees(2, rng), 1))
