"""Portraits are drawn by a StyleGAN2: weights that styles modulate, noise, a penalty of the critic's gradient now and then (R1), the length of paths in the space of styles, styles that are mixed, an average of the generator that draws."""

import copy
import math
import random

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CHANNELS = {4: 256, 8: 256, 16: 192, 32: 96, 64: 48}
STYLE_DIM, BATCH, MIXING = 256, 4, 0.9
R1, D_REG_EVERY, PATH_REGULARIZE, G_REG_EVERY, EMA = 10, 16, 2, 4, 0.5 ** (32 / (10 * 1000))


class EqualLinear(nn.Module):
    def __init__(self, in_dim, out_dim, bias_init=0.0, lr_mul=1.0, activation=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_dim, in_dim) / lr_mul)
        self.bias = nn.Parameter(torch.full((out_dim,), float(bias_init)))
        self.scale, self.lr_mul, self.activation = lr_mul / math.sqrt(in_dim), lr_mul, activation

    def forward(self, x):
        out = F.linear(x, self.weight * self.scale, self.bias * self.lr_mul)
        return F.leaky_relu(out, 0.2) * 2**0.5 if self.activation else out


class EqualConv2d(nn.Module):
    def __init__(self, in_channel, out_channel, kernel_size, downsample=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out_channel, in_channel, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.zeros(out_channel))
        self.scale, self.downsample = 1 / math.sqrt(in_channel * kernel_size**2), downsample

    def forward(self, x):
        x = F.avg_pool2d(x, 2) if self.downsample else x
        out = F.conv2d(x, self.weight * self.scale, self.bias, padding=self.weight.shape[-1] // 2)
        return F.leaky_relu(out, 0.2) * 2**0.5


class StyledConv(nn.Module):
    def __init__(self, in_channel, out_channel, style_dim, kernel_size=3, upsample=False, demodulate=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, out_channel, in_channel, kernel_size, kernel_size))
        self.scale = 1 / math.sqrt(in_channel * kernel_size**2)
        self.modulation = EqualLinear(style_dim, in_channel, bias_init=1)
        self.noise_weight, self.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(out_channel))
        self.upsample, self.demodulate = upsample, demodulate

    def forward(self, x, style):
        batch, in_channel, _, _ = x.shape
        weight = self.scale * self.weight * self.modulation(style).view(batch, 1, in_channel, 1, 1)
        if self.demodulate:
            weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        if self.upsample:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        weight = weight.flatten(0, 1)
        out = F.conv2d(x.reshape(1, -1, *x.shape[2:]), weight, padding=weight.shape[-1] // 2, groups=batch)
        out = out.view(batch, -1, *x.shape[2:]) + self.bias.view(1, -1, 1, 1)
        if not self.demodulate:
            return out
        noise = torch.randn(batch, 1, *x.shape[2:], device=x.device)
        return F.leaky_relu(out + self.noise_weight * noise, 0.2) * 2**0.5


class Generator(nn.Module):
    def __init__(self, style_dim=STYLE_DIM, n_mlp=6):
        super().__init__()
        mapping = [EqualLinear(style_dim, style_dim, lr_mul=0.01, activation=True) for _ in range(n_mlp)]
        self.style, self.input = nn.Sequential(*mapping), nn.Parameter(torch.randn(1, CHANNELS[4], 4, 4))
        self.convs, self.to_rgbs = nn.ModuleList(), nn.ModuleList()
        for size in CHANNELS:
            if size > 4:
                self.convs.append(StyledConv(CHANNELS[size // 2], CHANNELS[size], style_dim, upsample=True))
            self.convs.append(StyledConv(CHANNELS[size], CHANNELS[size], style_dim))
            self.to_rgbs.append(StyledConv(CHANNELS[size], 3, style_dim, kernel_size=1, demodulate=False))
        self.n_latent = len(self.convs) + 1

    def forward(self, styles, return_latents=False):
        styles = [self.style(s * torch.rsqrt(s.pow(2).mean(1, keepdim=True) + 1e-8)) for s in styles]
        inject = random.randint(1, self.n_latent - 1) if len(styles) > 1 else self.n_latent
        picked = [styles[0]] * inject + [styles[-1]] * (self.n_latent - inject)
        latent = torch.stack(picked, 1)
        out, skip = self.input.repeat(len(latent), 1, 1, 1), None
        for i, conv in enumerate(self.convs):
            out = conv(out, latent[:, i])
            if i % 2 == 0:
                rgb = self.to_rgbs[i // 2](out, latent[:, i + 1])
                skip = rgb if skip is None else rgb + F.interpolate(skip, scale_factor=2, mode="bilinear")
        return skip, latent if return_latents else None


class ResBlock(nn.Module):
    def __init__(self, in_channel, out_channel):
        super().__init__()
        self.conv1 = EqualConv2d(in_channel, in_channel, 3)
        self.conv2 = EqualConv2d(in_channel, out_channel, 3, downsample=True)
        self.skip = EqualConv2d(in_channel, out_channel, 1, downsample=True)

    def forward(self, x):
        return (self.conv2(self.conv1(x)) + self.skip(x)) / math.sqrt(2)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = sorted(CHANNELS, reverse=True)
        blocks = [ResBlock(CHANNELS[a], CHANNELS[b]) for a, b in zip(sizes, sizes[1:])]  # noqa: RUF007
        self.convs = nn.Sequential(EqualConv2d(3, CHANNELS[sizes[0]], 1), *blocks)
        self.final_conv = EqualConv2d(CHANNELS[4] + 1, CHANNELS[4], 3)
        hidden = EqualLinear(CHANNELS[4] * 16, CHANNELS[4], activation=True)
        self.final_linear = nn.Sequential(hidden, EqualLinear(CHANNELS[4], 1))

    def forward(self, x):
        out = self.convs(x)
        stddev = torch.sqrt(out.var(0, unbiased=False) + 1e-8).mean().expand(len(out), 1, *out.shape[2:])
        return self.final_linear(self.final_conv(torch.cat([out, stddev], 1)).flatten(1))


def g_path_regularize(fake_img, latents, mean_path_length, decay=0.01):
    noise = torch.randn_like(fake_img) / math.sqrt(fake_img.shape[2] * fake_img.shape[3])
    (grad,) = autograd.grad(outputs=(fake_img * noise).sum(), inputs=latents, create_graph=True)
    path_lengths = torch.sqrt(grad.pow(2).sum(2).mean(1))
    path_mean = mean_path_length + decay * (path_lengths.mean() - mean_path_length)
    return (path_lengths - path_mean).pow(2).mean(), path_mean.detach()


def mixing_noise(batch):
    return [torch.randn(batch, STYLE_DIM, device=device) for _ in range(2 if random.random() < MIXING else 1)]


torch.manual_seed(1108)
random.seed(1108)
generator, discriminator = Generator().to(device), Discriminator().to(device)
g_ema = copy.deepcopy(generator).eval().requires_grad_(False)
g_ratio, d_ratio = G_REG_EVERY / (G_REG_EVERY + 1), D_REG_EVERY / (D_REG_EVERY + 1)
g_optim = torch.optim.Adam(generator.parameters(), lr=2e-3 * g_ratio, betas=(0.0, 0.99**g_ratio))
d_optim = torch.optim.Adam(discriminator.parameters(), lr=2e-3 * d_ratio, betas=(0.0, 0.99**d_ratio))
loader = DataLoader(TensorDataset(torch.rand(48, 3, 64, 64) * 2 - 1), BATCH, shuffle=True, drop_last=True)
sample_z, mean_path_length = torch.randn(4, STYLE_DIM, device=device), torch.zeros((), device=device)
for i, (real_img,) in enumerate(loader):
    real_img = real_img.to(device)
    generator.requires_grad_(False), discriminator.requires_grad_(True)
    noise = mixing_noise(BATCH)
    fake_img, _ = generator(noise)
    d_loss = F.softplus(discriminator(fake_img)).mean() + F.softplus(-discriminator(real_img)).mean()
    discriminator.zero_grad()
    d_loss.backward()
    d_optim.step()
    if i % D_REG_EVERY == 0:
        real_img.requires_grad = True
        real_pred = discriminator(real_img)
        (grad_real,) = autograd.grad(outputs=real_pred.sum(), inputs=real_img, create_graph=True)
        r1_loss = grad_real.pow(2).flatten(1).sum(1).mean()
        discriminator.zero_grad()
        (R1 / 2 * r1_loss * D_REG_EVERY + 0 * real_pred[0]).backward()
        d_optim.step()
    tell(inputs=noise, activations=fake_img)

    generator.requires_grad_(True), discriminator.requires_grad_(False)
    noise = mixing_noise(BATCH)
    fake_img, _ = generator(noise)
    g_loss = F.softplus(-discriminator(fake_img)).mean()
    generator.zero_grad()
    g_loss.backward()
    g_optim.step()
    if i % G_REG_EVERY == 0:
        tell(inputs=noise, activations=fake_img)
        noise = mixing_noise(BATCH // 2)
        fake_img, latents = generator(noise, return_latents=True)
        path_loss, mean_path_length = g_path_regularize(fake_img, latents, mean_path_length)
        generator.zero_grad()
        (PATH_REGULARIZE * G_REG_EVERY * path_loss + 0 * fake_img[0, 0, 0, 0]).backward()
        g_optim.step()
    for slow, fast in zip(g_ema.parameters(), generator.parameters()):
        slow.data.mul_(EMA).add_(fast.data, alpha=1 - EMA)
    print(f"{i}: d {d_loss.item():.3f}, g {g_loss.item():.3f}, paths {mean_path_length.item():.4f}")
    end_of_step(
        inputs=[real_img, noise, sample_z],
        activations=[
            fake_img,
            d_loss,
            g_loss,
            real_pred,
            grad_real,
            r1_loss,
            latents,
            path_loss,
            mean_path_length,
        ],
        gradients=[] if real_img.grad is None else real_img.grad,
        weights=list(g_ema.parameters()),
    )
    if i % 2 == 1:
        with torch.no_grad():
            sample, _ = g_ema([sample_z])
            print(f"portraits from {sample.min().item():.2f} to {sample.max().item():.2f}")
