"""A HiFi-GAN makes sound of spectra: weight norms, discriminators of periods and scales, Lightning with two optimizers stepped by hand."""

from functools import partial
from itertools import pairwise

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from programs import end_of_step, tell
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import DataLoader, Dataset

N_FFT, HOP, N_MELS, SEGMENT, SLOPE = 512, 128, 80, 4096, 0.1


class Segments(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        start = torch.rand(1) * 6.28
        return torch.sin(torch.arange(SEGMENT) * (0.02 + 0.001 * index) + start)[None] * 0.9


class MelSpectrogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT))
        self.register_buffer("basis", torch.rand(N_MELS, N_FFT // 2 + 1) / 50)

    def forward(self, y):
        pad = (N_FFT - HOP) // 2
        y = F.pad(y, (pad, pad), mode="reflect").squeeze(1)
        spec = torch.stft(y, N_FFT, HOP, window=self.window, center=False, return_complex=True)
        spec = torch.sqrt(torch.view_as_real(spec).pow(2).sum(-1) + 1e-9)
        return torch.log(torch.clamp(self.basis @ spec, min=1e-5))


class ResBlock(nn.Module):
    def __init__(self, channels, kernel_size, dilations=(1, 3, 5)):
        super().__init__()
        conv = partial(nn.Conv1d, channels, channels, kernel_size, padding="same")
        self.convs1 = nn.ModuleList(weight_norm(conv(dilation=d)) for d in dilations)
        self.convs2 = nn.ModuleList(weight_norm(conv()) for _ in dilations)

    def forward(self, x):
        for c1, c2 in zip(self.convs1, self.convs2):
            x = c2(F.leaky_relu(c1(F.leaky_relu(x, SLOPE)), SLOPE)) + x
        return x


class Generator(nn.Module):
    def __init__(self, width=256, rates=(8, 4, 4), kernels=(3,)):
        super().__init__()
        self.conv_pre = weight_norm(nn.Conv1d(N_MELS, width, 7, padding=3))
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for i, rate in enumerate(rates):
            before, after = width // 2**i, width // 2 ** (i + 1)
            self.ups.append(weight_norm(nn.ConvTranspose1d(before, after, 2 * rate, rate, padding=rate // 2)))
            self.resblocks.append(nn.ModuleList(ResBlock(after, kernel) for kernel in kernels))
        self.conv_post = weight_norm(nn.Conv1d(after, 1, 7, padding=3))

    def forward(self, x):
        x = self.conv_pre(x)
        for up, blocks in zip(self.ups, self.resblocks):
            x = up(F.leaky_relu(x, SLOPE))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class DiscriminatorP(nn.Module):
    def __init__(self, period, widths=(1, 16, 64, 128, 256)):
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in pairwise(widths)
        )
        self.conv_post = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, -x.size(-1) % self.period), "reflect")
        x = x.view(len(x), 1, -1, self.period)
        fmap = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        return x.flatten(1), [*fmap, x]


class DiscriminatorS(nn.Module):
    def __init__(self, norm):
        super().__init__()
        shapes = [(1, 32, 15, 2, 1), (32, 128, 41, 4, 4), (128, 256, 41, 4, 16), (256, 256, 5, 1, 1)]
        self.convs = nn.ModuleList(
            norm(nn.Conv1d(a, b, k, s, groups=g, padding=k // 2)) for a, b, k, s, g in shapes
        )
        self.conv_post = norm(nn.Conv1d(256, 1, 3, padding=1))

    def forward(self, x):
        fmap = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            fmap.append(x)
        x = self.conv_post(x)
        return x.flatten(1), [*fmap, x]


class HiFiGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.mel, self.generator = MelSpectrogram(), Generator()
        self.mpd = nn.ModuleList(DiscriminatorP(period) for period in (2, 3, 5))
        self.msd = nn.ModuleList([DiscriminatorS(spectral_norm), DiscriminatorS(weight_norm)])

    def judged(self, y):
        pooled = F.avg_pool1d(y, 4, 2, padding=2)
        return [*(d(y) for d in self.mpd), self.msd[0](y), self.msd[1](pooled)]

    def training_step(self, y, batch_idx):
        optim_g, optim_d = self.optimizers()
        mel = self.mel(y)
        y_hat = self.generator(mel)

        real, fake = self.judged(y), self.judged(y_hat.detach())
        loss_d = sum(((1 - r) ** 2).mean() + (f**2).mean() for (r, _), (f, _) in zip(real, fake))
        optim_d.zero_grad()
        self.manual_backward(loss_d)
        optim_d.step()
        tell(inputs=[y, mel], activations=[y_hat, real, fake, loss_d])

        self.toggle_optimizer(optim_g)
        loss_mel = F.l1_loss(mel, self.mel(y_hat)) * 45
        real, fake = self.judged(y), self.judged(y_hat)
        loss_fm = loss_gen = 0
        for (_, fmap_r), (score, fmap_f) in zip(real, fake):
            loss_fm = loss_fm + 2 * sum((r.detach() - f).abs().mean() for r, f in zip(fmap_r, fmap_f))
            loss_gen = loss_gen + ((1 - score) ** 2).mean()
        loss_g = loss_gen + loss_fm + loss_mel
        tell(activations=[real, fake, loss_mel, loss_fm, loss_gen, loss_g])
        optim_g.zero_grad()
        self.manual_backward(loss_g)
        optim_g.step()
        self.untoggle_optimizer(optim_g)
        self.log_dict({"g": loss_g, "d": loss_d, "mel": loss_mel})

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()
        print({key: round(value.item(), 3) for key, value in self.trainer.callback_metrics.items()})

    def configure_optimizers(self):
        how = {"lr": 2e-4, "betas": (0.8, 0.99)}
        optim_g = torch.optim.AdamW(self.generator.parameters(), **how)
        optim_d = torch.optim.AdamW([*self.mpd.parameters(), *self.msd.parameters()], **how)
        exponential = torch.optim.lr_scheduler.ExponentialLR
        return [optim_g, optim_d], [exponential(optim_g, 0.999), exponential(optim_d, 0.999)]


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch)


if __name__ == "__main__":
    L.seed_everything(313, verbose=False)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=2,
        callbacks=[Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(HiFiGAN(), DataLoader(Segments(), batch_size=4, shuffle=True))
