"""Entries written without a look at any rule: images, sorted, made from noise, and put into few codes.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import copy
import math
from collections.abc import Iterator

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda"
Pair = tuple[torch.Tensor, torch.Tensor]


# --- sorted


class Bottleneck(nn.Module):
    """Three convolutions, of which the middle one is the thin one, beside a way around them."""

    expansion = 4

    def __init__(self, n_in: int, n_planes: int, stride: int = 1) -> None:
        super().__init__()
        n_out = n_planes * self.expansion
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_planes, 1, bias=False), nn.BatchNorm2d(n_planes)
        self.conv2 = nn.Conv2d(n_planes, n_planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_planes)
        self.conv3, self.bn3 = nn.Conv2d(n_planes, n_out, 1, bias=False), nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform feature maps."""
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Four stages of bottlenecks."""

    def __init__(self, n_classes: int = 100, width: int = 16) -> None:
        super().__init__()
        self.n_in = width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = self.stage(width, 2, 1), self.stage(2 * width, 3, 2)
        self.layer3, self.layer4 = self.stage(4 * width, 3, 2), self.stage(8 * width, 2, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(self.n_in, n_classes)

    def stage(self, n_planes: int, n_blocks: int, stride: int) -> nn.Sequential:
        """Blocks of one size, of which the first steps down."""
        blocks = []
        for number in range(n_blocks):
            blocks.append(Bottleneck(self.n_in, n_planes, stride if number == 0 else 1))
            self.n_in = n_planes * Bottleneck.expansion
        return nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Prefetcher:
    """Has the next batch on the device while this one is trained on; images come as bytes."""

    def __init__(self, loader: Iterator[Pair]) -> None:
        self.loader = loader
        self.mean = torch.tensor([123.675, 116.28, 103.53]).to(DEVICE).view(1, 3, 1, 1)
        self.std = torch.tensor([58.395, 57.12, 57.375]).to(DEVICE).view(1, 3, 1, 1)
        self.preload()

    def preload(self) -> None:
        """Fetch a batch and normalize it."""
        images, target = next(self.loader)
        self.images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last).float()
        self.images = self.images.sub_(self.mean).div_(self.std)
        self.target = target.to(DEVICE, non_blocking=True)

    def next(self) -> Pair:
        """The batch that was fetched; another one is fetched for it."""
        images, target = self.images, self.target
        self.preload()
        return images, target


class AverageMeter:
    """Keeps values, on the device, until their mean is asked for."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def update(self, value: torch.Tensor) -> None:
        """Keep one more value."""
        self.values.append(value.detach())

    def average(self) -> float:
        """The mean of all."""
        return torch.stack(self.values).mean().item()


@torch.no_grad()
def accuracy(
    output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...] = (1, 5)
) -> list[torch.Tensor]:
    """How often the target is among the likeliest."""
    _, found = output.topk(max(topk), 1, True, True)
    correct = found.t().eq(target.view(1, -1).expand(max(topk), -1))
    return [correct[:k].reshape(-1).float().sum() * (100.0 / len(target)) for k in topk]


def _images(n: int, size: int) -> Iterator[Pair]:
    while True:
        images = torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8)
        yield images, torch.randint(0, 100, (n,))


def imagenet(_setup: Setup) -> Iterations:
    """A residual network in mixed precision, with momentum, as the reference scripts train it."""
    model = ResNet().to(DEVICE, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1).to(DEVICE)
    plain = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 5e-5}, {"params": plain, "weight_decay": 0.0}],
        *(0.1, 0.9),
        nesterov=True,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    losses, top1, top5 = AverageMeter(), AverageMeter(), AverageMeter()
    prefetcher = Prefetcher(_images(16, 96))
    model.train()
    while True:
        images, target = prefetcher.next()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(images)
            loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for meter, value in ((losses, loss), (top1, acc1), (top5, acc5)):
            meter.update(value)
        losses.average()
        yield Known(
            inputs=(images, target, prefetcher.images, prefetcher.target, prefetcher.mean, prefetcher.std),
            activations=(output,),
        )


# --- made from noise


class VaeEncoder(nn.Module):
    """Images to the means and log variances of their latents."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.ModuleList()
        for number in range(2):
            n = width * 2**number
            self.down.append(
                nn.Sequential(
                    *(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, n, 3, 1, 1)),
                    *(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, 2 * n, 3, 2, 1)),
                )
            )
        self.norm_out, self.conv_out = nn.GroupNorm(8, 4 * width), nn.Conv2d(4 * width, 8, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return both, one after the other."""
        x = self.conv_in(x)
        for block in self.down:
            x = block(x)
        return self.conv_out(functional.silu(self.norm_out(x)))


class Vae(nn.Module):
    """The half of an autoencoder that is needed for training on its latents."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.quant_conv = VaeEncoder(), nn.Conv2d(8, 8, 1)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Draw latents."""
        mean, logvar = self.quant_conv(self.encoder(x)).chunk(2, dim=1)
        return mean + torch.exp(0.5 * logvar.clamp(-30.0, 20.0)) * torch.randn_like(mean)


class TextEncoder(nn.Module):
    """Captions to one state per word."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(1000, width), nn.Embedding(20, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the states of the last layer."""
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(place)
        return self.final_layer_norm(self.encoder(x))


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale and shift what every patch has."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    """Attention to patches and to words, and two maps, told the time by their norms."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(width, n_heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, time: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Transform the patches of a batch."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(time).chunk(6, dim=1)
        h = modulate(self.norm1(x), shift1, scale1)
        x = x + gate1.unsqueeze(1) * self.attn(h, h, h, need_weights=False)[0]
        x = x + self.cross_attn(x, words, words, need_weights=False)[0]
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """A transformer of patches that predicts the noise in latents."""

    def __init__(self, width: int = 128, depth: int = 4, size: int = 16) -> None:
        super().__init__()
        self.x_embedder = nn.Conv2d(4, width, 2, 2)
        self.pos_embed = nn.Parameter(torch.randn(1, (size // 2) ** 2, width) * 0.02, requires_grad=False)
        self.t_embedder = nn.Sequential(nn.Linear(128, width), nn.SiLU(), nn.Linear(width, width))
        self.y_proj = nn.Linear(128, width)
        self.blocks = nn.ModuleList(DiTBlock(width, 4) for _ in range(depth))
        self.norm_final, self.linear = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: torch.Tensor, t: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Return the noise."""
        n, n_channels, size, _ = x.shape
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        rates = torch.exp(-math.log(10_000) * torch.arange(64, device=t.device) / 64)
        angles = t[:, None].float() * rates[None]
        time = self.t_embedder(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))
        words = self.y_proj(words)
        for block in self.blocks:
            x = block(x, time, words)
        x = self.linear(self.norm_final(x)).view(n, size // 2, size // 2, 2, 2, n_channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(n, n_channels, size, size)


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float = 0.9999) -> None:
    """Let the average follow the model."""
    parameters = dict(model.named_parameters())
    for name, parameter in ema.named_parameters():
        parameter.mul_(decay).add_(parameters[name].data, alpha=1 - decay)


def latents(_setup: Setup) -> Iterations:
    """Latents of a frozen encoder are denoised, told by a frozen text encoder; an average follows."""
    vae, text_encoder = Vae().to(DEVICE, dtype=torch.bfloat16), TextEncoder().to(DEVICE, dtype=torch.bfloat16)
    vae.requires_grad_(requires_grad=False).eval()
    text_encoder.requires_grad_(requires_grad=False).eval()
    model = DiT().to(DEVICE)
    ema = copy.deepcopy(model).to(DEVICE).requires_grad_(requires_grad=False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0).to(DEVICE)
    while True:
        pixels = torch.rand(8, 3, 64, 64).mul(2).sub(1).to(DEVICE, dtype=torch.bfloat16)
        ids = torch.randint(0, 1000, (8, 20)).to(DEVICE)
        with torch.no_grad():
            clean = vae.encode(pixels) * 0.18215
            words = text_encoder(ids)
        clean = clean.float()
        noise = torch.randn_like(clean)
        t = torch.randint(0, 1000, (len(clean),), device=DEVICE).long()
        part = kept[t].view(-1, 1, 1, 1)
        noisy = part.sqrt() * clean + (1 - part).sqrt() * noise
        with torch.autocast("cuda", dtype=torch.bfloat16):
            predicted = model(noisy, t, words)
        loss = functional.mse_loss(predicted.float(), noise.float(), reduction="mean")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        update_ema(ema, model)
        yield Known(
            inputs=(pixels, ids, kept, clean, noise, t, noisy),
            weights=(*ema.parameters(),),
            activations=(predicted, words),
        )
