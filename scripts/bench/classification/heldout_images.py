"""Entries that were written without a look at any rule, as people write programs of their kinds: images.

Some bring an optimizer of their own: these take no other, whatever a setup says.
"""

import math
from collections.abc import Sequence

import torch
from heldout_language import DEVICE, Batch, to_device
from setups import Iterations, Known, Setup, make_optimizer, states_of
from torch import nn
from torch.nn import functional

# --- diffusion


class TimedResidual(nn.Module):
    """Two convolutions, between which time and class scale and shift the feature maps."""

    def __init__(self, n_in: int, n_out: int, n_time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, n_in), nn.SiLU(), nn.Conv2d(n_in, n_out, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(n_time, 2 * n_out))
        self.norm = nn.GroupNorm(8, n_out)
        self.second = nn.Sequential(nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(n_out, n_out, 3, padding=1))
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
        q, k, v = qkv.view(n, 3, self.n_heads, width // self.n_heads, -1).transpose(-1, -2).unbind(1)
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
        self.head = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

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
        labels = torch.where(torch.rand(4, device=DEVICE) < 0.1, torch.full_like(labels, 10), labels)
        step = torch.randint(0, 1000, (4,), device=DEVICE)
        noise = torch.randn_like(images)
        share = signal[step].view(-1, 1, 1, 1)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        predicted = model(noisy, step, labels)
        ratio = (share / (1 - share)).flatten()
        weight = ratio.clamp(max=5) / ratio
        loss = (functional.mse_loss(predicted, noise, reduction="none").mean(dim=(1, 2, 3)) * weight).mean()
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


# --- detection


def _convolution(n_in: int, n_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True)
    )


class Detector(nn.Module):
    """A backbone, a pyramid of features, and heads for class, box and centre that all levels share."""

    def __init__(self, n_classes: int = 8, width: int = 48) -> None:
        super().__init__()
        sizes = (24, 48, 96)
        self.stem = _convolution(3, 24, 2)
        self.stages = nn.ModuleList(
            nn.Sequential(_convolution(n_in, n_out, 2), _convolution(n_out, n_out, 1))
            for n_in, n_out in zip((24, *sizes[:-1]), sizes, strict=True)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(size, width, 1) for size in sizes)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in sizes)
        self.of_class, self.of_box = self._tower(width), self._tower(width)
        self.classes = nn.Conv2d(width, n_classes, 3, padding=1)
        self.boxes, self.centres = nn.Conv2d(width, 4, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.scales = nn.ParameterList(nn.Parameter(torch.tensor(1.0)) for _ in sizes)

    @staticmethod
    def _tower(width: int) -> nn.Sequential:
        layers = [
            (nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()) for _ in range(2)
        ]
        return nn.Sequential(*(layer for three in layers for layer in three))

    def forward(self, images: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        """Return the heads' answers per level."""
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(x) for lateral, x in zip(self.lateral, maps, strict=True)]
        for i in reversed(range(len(levels) - 1)):
            levels[i] = levels[i] + functional.interpolate(levels[i + 1], size=levels[i].shape[-2:])
        answers: dict[str, list[torch.Tensor]] = {"classes": [], "boxes": [], "centres": []}
        for smooth, level, scale in zip(self.smooth, levels, self.scales, strict=True):
            level = smooth(level)
            by_box = self.of_box(level)
            answers["classes"].append(self.classes(self.of_class(level)).flatten(2).transpose(1, 2))
            answers["boxes"].append((self.boxes(by_box) * scale).exp().flatten(2).transpose(1, 2))
            answers["centres"].append(self.centres(by_box).flatten(2).squeeze(1))
        return answers


@torch.no_grad()
def _assigned(
    points: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every point the label of the smallest box around it, or -1, and how far its sides are."""
    sides = torch.cat((points[:, None] - boxes[None, :, :2], boxes[None, :, 2:] - points[:, None]), dim=-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(dim=-1)
    cost = torch.where(sides.min(dim=-1).values > 0, area[None], torch.full_like(area[None], 1e8))
    least, which = cost.min(dim=1)
    found = torch.where(least < 1e8, labels[which], torch.full_like(which, -1))
    return found, sides[torch.arange(len(points), device=points.device), which]


def _detection_losses(answers: dict[str, list[torch.Tensor]], truths: Sequence[Batch]) -> Batch:
    """Focal loss of the classes, overlap of the boxes, cross entropy of the centres."""
    points = torch.cat([_grid(level.shape[1], 64) for level in answers["centres"]])
    logits, boxes, centres = (torch.cat(answers[name], dim=1) for name in ("classes", "boxes", "centres"))
    pairs = [_assigned(points, truth["boxes"], truth["labels"]) for truth in truths]
    labels, sides = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    is_object = labels >= 0
    n_objects = is_object.sum().clamp(min=1)
    wanted = functional.one_hot(labels.clamp(min=0), logits.shape[-1]) * is_object[..., None]
    wanted = wanted.to(logits.dtype)
    chance = torch.sigmoid(logits)
    entropy = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    hit = chance * wanted + (1 - chance) * (1 - wanted)
    focal = (0.25 * wanted + 0.75 * (1 - wanted)) * entropy * (1 - hit) ** 2
    said, true = boxes[is_object], sides[is_object]
    shared = torch.minimum(said, true)
    overlap = (shared[:, 0] + shared[:, 2]) * (shared[:, 1] + shared[:, 3])
    areas = [(part[:, 0] + part[:, 2]) * (part[:, 1] + part[:, 3]) for part in (said, true)]
    ratio = overlap / (areas[0] + areas[1] - overlap + 1e-7)
    pair_x, pair_y = true[:, 0::2], true[:, 1::2]
    centred = torch.sqrt(
        (pair_x.amin(1) / pair_x.amax(1)).clamp(min=0) * (pair_y.amin(1) / pair_y.amax(1)).clamp(min=0)
    )
    return {
        "classes": focal.sum() / n_objects,
        "boxes": ((1 - ratio) * centred).sum() / centred.sum().clamp(min=1e-6),
        "centres": functional.binary_cross_entropy_with_logits(centres[is_object], centred),
    }


def _grid(n: int, size: int) -> torch.Tensor:
    """The centres of the cells of a level, in pixels."""
    n_side = math.isqrt(n)
    ticks = (torch.arange(n_side, device=DEVICE) + 0.5) * (size / n_side)
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    return torch.stack((x.flatten(), y.flatten()), dim=-1)


def _labelled_images(n: int) -> tuple[torch.Tensor, list[Batch]]:
    """Images as bytes, and boxes with labels, some more of them and some less."""
    truths = []
    for _ in range(n):
        n_boxes = int(torch.randint(2, 7, ()))
        corner = torch.rand(n_boxes, 2) * 40
        boxes = torch.cat((corner, corner + 6 + torch.rand(n_boxes, 2) * 16), dim=-1)
        truths.append({"boxes": boxes, "labels": torch.randint(0, 8, (n_boxes,))})
    return torch.randint(0, 256, (n, 3, 64, 64), dtype=torch.uint8), truths


def detector(setup: Setup) -> Iterations:
    """Boxes at three scales; what they are to be is worked out on the device."""
    model = Detector().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    mean = torch.tensor([123.7, 116.3, 103.5], device=DEVICE).view(3, 1, 1)
    deviation = torch.tensor([58.4, 57.1, 57.4], device=DEVICE).view(3, 1, 1)
    history = []
    while True:
        loaded, truths = _labelled_images(4)
        images = loaded.to(DEVICE, non_blocking=True)
        truths = [to_device(truth) for truth in truths]
        answers = model((images.float() - mean) / deviation)
        losses = _detection_losses(answers, truths)
        loss = losses["classes"] + 2.0 * losses["boxes"] + losses["centres"]
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        history.append({name: value.item() for name, value in losses.items()})
        yield Known(inputs=(images, mean, deviation, *(part for truth in truths for part in truth.values())))


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


def _mixed(images: torch.Tensor, labels: torch.Tensor, n_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
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
