"""Entries that were written without a look at any rule: diffusion, and weights kept in full precision.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from collections.abc import Sequence

import torch
from heldout_language import DEVICE
from setups import Iterations, Known, Setup, make_optimizer, states_of
from torch import nn
from torch.nn import functional

# --- diffusion


class TimedResidual(nn.Module):
    """Two convolutions, between which time and class scale and shift the feature maps."""

    def __init__(self, n_in: int, n_out: int, n_time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, n_in), nn.SiLU(), nn.Conv2d(n_in, n_out, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(n_time, 2 * n_out))
        self.norm = nn.GroupNorm(8, n_out)
        self.second = nn.Sequential(
            nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(n_out, n_out, 3, padding=1)
        )
        self.skip = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Transform the feature maps."""
        h = self.first(x)
        scale, shift = self.time(time)[:, :, None, None].chunk(2, dim=1)
        h = self.norm(h) * (1 + scale) + shift
        return self.second(h) + self.skip(x)


class PixelAttention(nn.Module):
    """Every pixel attends to all others."""

    def __init__(self, width: int, n_heads: int = 4) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix the pixels of a feature map."""
        n, width, height, breadth = x.shape
        qkv = self.qkv(self.norm(x).view(n, width, -1))
        q, k, v = (
            qkv.view(n, 3, self.n_heads, width // self.n_heads, -1).transpose(-1, -2).unbind(1)
        )
        weight = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        mixed = (weight @ v).transpose(-1, -2).reshape(n, width, -1)
        return x + self.out(mixed).view(n, width, height, breadth)


class Denoiser(nn.Module):
    """A U-Net that is told the time and the class."""

    def __init__(self, width: int = 32, n_classes: int = 10) -> None:
        super().__init__()
        n_time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, n_time), nn.SiLU(), nn.Linear(n_time, n_time))
        self.classes = nn.Embedding(n_classes + 1, n_time)
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(TimedResidual(width, width, n_time) for _ in range(2))
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = nn.ModuleList(TimedResidual(n, 2 * width, n_time) for n in (width, 2 * width))
        self.middle = TimedResidual(2 * width, 2 * width, n_time)
        self.attention = PixelAttention(2 * width)
        self.up2 = nn.ModuleList(TimedResidual(4 * width, 2 * width, n_time) for _ in range(2))
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = nn.ModuleList(TimedResidual(2 * width, width, n_time) for _ in range(2))
        self.head = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, x: torch.Tensor, step: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Predict the noise in ``x``."""
        half = self.width // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half, device=x.device) / half)
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1)) + self.classes(label)
        h = self.stem(x)
        kept = []
        for block in self.down:
            h = block(h, time)
            kept.append(h)
        h = self.shrink(h)
        for block in self.down2:
            h = block(h, time)
            kept.append(h)
        h = self.attention(self.middle(h, time))
        for block in self.up2:
            h = block(torch.cat((h, kept.pop()), dim=1), time)
        h = self.grow(functional.interpolate(h, scale_factor=2, mode="nearest"))
        for block in self.up:
            h = block(torch.cat((h, kept.pop()), dim=1), time)
        return self.head(h)


def diffusion(setup: Setup) -> Iterations:
    """Noise is added by hand and predicted; an average of the weights follows in a dict of tensors."""
    model = Denoiser().to(DEVICE)
    average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(setup, model.parameters())
    betas = torch.linspace(1e-4, 0.02, 1000, device=DEVICE)
    signal = torch.cumprod(1 - betas, dim=0)
    while True:
        images = torch.rand(4, 3, 20, 20).to(DEVICE) * 2 - 1
        labels = torch.randint(0, 10, (4,)).to(DEVICE)
        labels = torch.where(
            torch.rand(4, device=DEVICE) < 0.1, torch.full_like(labels, 10), labels
        )
        step = torch.randint(0, 1000, (4,), device=DEVICE)
        noise = torch.randn_like(images)
        share = signal[step].view(-1, 1, 1, 1)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        predicted = model(noisy, step, labels)
        ratio = (share / (1 - share)).flatten()
        weight = ratio.clamp(max=5) / ratio
        loss = (
            functional.mse_loss(predicted, noise, reduction="none").mean(dim=(1, 2, 3)) * weight
        ).mean()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                average[name].lerp_(parameter, 0.001)
        yield Known(
            inputs=(images, labels, step, noise, share, noisy, betas, signal),
            weights=tuple(average.values()),
            states=states_of(optimizer),
        )


# --- images in half precision


class MasterAdam:
    """Adam for weights in half precision: it keeps each of them in full precision for itself."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float = 1e-3) -> None:
        self.parameters, self.rate, self.n_steps = parameters, rate, 0
        self.masters = [parameter.detach().clone().float() for parameter in parameters]
        self.means = [torch.zeros_like(master) for master in self.masters]
        self.squares = [torch.zeros_like(master) for master in self.masters]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the weights in full precision, and copy them into the model."""
        self.n_steps += 1
        gradients = [parameter.grad.float() for parameter in self.parameters]
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        rate = self.rate * math.sqrt(1 - 0.99**self.n_steps) / (1 - 0.9**self.n_steps)
        rows = zip(self.parameters, self.masters, gradients, self.means, self.squares, strict=True)
        for parameter, master, gradient, mean, square in rows:
            gradient.mul_(scale)
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            master.mul_(1 - 0.05 * self.rate).addcdiv_(mean, square.sqrt().add_(1e-8), value=-rate)
            parameter.copy_(master)


class ConvolutionBlock(nn.Module):
    """A depthwise convolution, then two maps of the channels, scaled before they are added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform the feature maps."""
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.down(functional.gelu(self.up(h)))
        return x + h.permute(0, 3, 1, 2)


class ConvolutionNet(nn.Module):
    """Patches, two stages of blocks with a step down between, and the mean of the rest."""

    def __init__(self, n_classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 4, 4)
        self.first = nn.Sequential(*(ConvolutionBlock(48) for _ in range(2)))
        self.shrink = nn.Conv2d(48, 96, 2, 2)
        self.second = nn.Sequential(*(ConvolutionBlock(96) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = self.second(self.shrink(self.first(self.stem(x))))
        return self.head(self.norm(x.mean(dim=(-2, -1))))


def _mixed(
    images: torch.Tensor, labels: torch.Tensor, n_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flip and brighten some images, mix pairs of them, and smooth and mix their labels alike."""
    flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    images = torch.where(flipped, images.flip(-1), images)
    images = images * (0.8 + 0.4 * torch.rand(len(images), 1, 1, 1, device=images.device))
    share = float(torch.distributions.Beta(0.8, 0.8).sample())
    other = torch.randperm(len(images), device=images.device)
    images = share * images + (1 - share) * images[other]
    wanted = torch.full((len(labels), n_classes), 0.1 / n_classes, device=labels.device)
    wanted.scatter_(1, labels[:, None], 0.9 + 0.1 / n_classes)
    return images, share * wanted + (1 - share) * wanted[other]


def master_weights(_setup: Setup) -> Iterations:
    """A network in bfloat16 on mixed images, with an optimizer by hand that has weights of its own."""
    model = ConvolutionNet().to(DEVICE, dtype=torch.bfloat16, memory_format=torch.channels_last)
    optimizer = MasterAdam(list(model.parameters()))
    while True:
        images = torch.randn(12, 3, 64, 64).to(DEVICE, memory_format=torch.channels_last)
        labels = torch.randint(0, 100, (12,)).to(DEVICE)
        images, wanted = _mixed(images, labels, 100)
        logits = model(images.to(torch.bfloat16))
        loss = -(wanted * logits.float().log_softmax(dim=-1)).sum(dim=-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield Known(
            inputs=(images, labels, wanted),
            states=(*optimizer.masters, *optimizer.means, *optimizer.squares),
            activations=(logits,),
        )
