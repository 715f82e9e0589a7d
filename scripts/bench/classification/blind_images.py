"""Entries that no rule was or will be changed for: images told apart without labels, and by careful steps.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

# --- told apart without labels


class SplitBatchNorm(nn.BatchNorm2d):
    """Normalizes parts of a batch by themselves, as if each were on a device of its own."""

    def __init__(self, num_features: int, num_splits: int = 4) -> None:
        super().__init__(num_features)
        self.num_splits = num_splits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize a batch."""
        if not self.training:
            return super().forward(x)
        n, c, h, w = x.shape
        mean, var = (part.repeat(self.num_splits) for part in (self.running_mean, self.running_var))
        weight, bias = self.weight.repeat(self.num_splits), self.bias.repeat(self.num_splits)
        folded = x.view(-1, c * self.num_splits, h, w)
        out = functional.batch_norm(folded, mean, var, weight, bias, True, self.momentum, self.eps)
        self.running_mean.copy_(mean.view(self.num_splits, c).mean(dim=0))
        self.running_var.copy_(var.view(self.num_splits, c).mean(dim=0))
        return out.view(n, c, h, w)


class BasicBlock(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = SplitBatchNorm(planes), SplitBatchNorm(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or inplanes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride, bias=False), SplitBatchNorm(planes)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform feature maps."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return functional.relu(out)


def _backbone(dim: int, width: int = 32) -> nn.Sequential:
    """A small residual network with two linear maps at its end."""
    stages: list[nn.Module] = []
    planes = [width, width, 2 * width, 4 * width, 8 * width]
    for number, (n_in, n_out) in enumerate(pairwise(planes)):
        stages += [BasicBlock(n_in, n_out, 1 if number == 0 else 2), BasicBlock(n_out, n_out, 1)]
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, width, 3, 1, 1, bias=False),
            norm=SplitBatchNorm(width),
            relu=nn.ReLU(inplace=True),
            stages=nn.Sequential(*stages),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            mlp=nn.Sequential(nn.Linear(8 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, dim)),
        )
    )


class MoCo(nn.Module):
    """A query network, a key network that follows it slowly, and a queue of keys."""

    def __init__(self, dim: int = 128, size: int = 8192, momentum: float = 0.99, heat: float = 0.1) -> None:
        super().__init__()
        self.size, self.momentum, self.heat = size, momentum, heat
        self.encoder_q, self.encoder_k = _backbone(dim), _backbone(dim)
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", functional.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _follow(self) -> None:
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data.mul_(self.momentum).add_(q.data, alpha=1.0 - self.momentum)

    @torch.no_grad()
    def _enqueue(self, keys: torch.Tensor) -> None:
        place = int(self.queue_ptr)
        self.queue[:, place : place + len(keys)] = keys.T
        self.queue_ptr[0] = (place + len(keys)) % self.size

    @torch.no_grad()
    def _keys(self, images: torch.Tensor) -> torch.Tensor:
        """Keys of images, which are shuffled before and unshuffled after the norms have seen them."""
        order = torch.randperm(len(images), device=images.device)
        keys = functional.normalize(self.encoder_k(images[order]).float(), dim=1)
        return keys[torch.argsort(order)]

    def forward(self, im_q: torch.Tensor, im_k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits, of which the first of each row is the right one, and the labels that say so."""
        q = functional.normalize(self.encoder_q(im_q).float(), dim=1)
        with torch.no_grad():
            self._follow()
            k = self._keys(im_k)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.heat
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self._enqueue(k)
        return logits, labels


class TwoCrops:
    """Gives two different views of every image, as a loader with workers does."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size

    def __iter__(self) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
        """Yield batches forever."""
        while True:
            images = torch.rand(self.n, 3, self.size + 8, self.size + 8)
            yield [self.view(images) for _ in range(2)], torch.zeros(self.n)

    def view(self, images: torch.Tensor) -> torch.Tensor:
        """Cut pieces of the same size, flipped or not."""
        y, x = torch.randint(0, 9, (2,)).tolist()
        piece = images[:, :, y : y + self.size, x : x + self.size]
        return (piece.flip(-1) if torch.rand(()) < 0.5 else piece).sub(0.5).contiguous()


@torch.no_grad()
def hits(output: torch.Tensor, target: torch.Tensor, topk: Sequence[int] = (1, 5)) -> list[torch.Tensor]:
    """How often the right answer is among the first ones, in percent."""
    pred = output.topk(max(topk), 1, True, True).indices.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / len(target)) for k in topk]


def momentum_contrast(_setup: Setup) -> Iterations:
    """Views of an image are to be alike, and unlike a queue of others; in half precision."""
    model = MoCo().cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.03, momentum=0.9, weight_decay=1e-4
    )
    model.train()
    for step, (views, _) in enumerate(TwoCrops(32, 32)):
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * 0.5 * (1.0 + math.cos(math.pi * step / 200))
        views = [view.cuda(non_blocking=True) for view in views]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output, target = model(im_q=views[0], im_k=views[1])
            loss = criterion(output, target)
        acc1, acc5 = hits(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield Known(
            inputs=(*views, target),
            activations=(output, loss, acc1, acc5),
        )


# --- images sorted


class SAM(torch.optim.Optimizer):
    """Climbs to where the loss is worst nearby, and goes down from there with another optimizer."""

    def __init__(
        self, params: Iterable[nn.Parameter], base: type[Any], rho: float = 0.05, **rest: Any
    ) -> None:
        super().__init__(params, {"rho": rho, **rest})
        self.base_optimizer: torch.optim.Optimizer = base(self.param_groups, **rest)

    @torch.no_grad()
    def first_step(self) -> None:
        """Climb, and remember how far."""
        norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                e_w = p.grad * scale
                p.add_(e_w)
                self.state[p]["e_w"] = e_w
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, then down."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(self.state[p]["e_w"])
        self.base_optimizer.step()
        self.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Do both; the closure is to run forward and backward."""
        if closure is None:
            raise ValueError("a second forward and backward is needed")
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()

    def _grad_norm(self) -> torch.Tensor:
        norms = [p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]
        return torch.norm(torch.stack(norms), p=2)


class WideBlock(nn.Module):
    """Norm, activation and convolution, twice, beside a way around them."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(n_in), nn.BatchNorm2d(n_out)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if n_in != n_out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform feature maps."""
        h = functional.relu(self.bn1(x))
        rest = x if self.skip is None else self.skip(h)
        h = self.conv1(h)
        return self.conv2(functional.relu(self.bn2(h))) + rest


class WideResNet(nn.Module):
    """Three stages of wide blocks."""

    def __init__(self, n_classes: int = 10, n_blocks: int = 2, widen: int = 2) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.stages = nn.Sequential(
            *(
                WideBlock(widths[stage] if block == 0 else widths[stage + 1], widths[stage + 1], stride)
                for stage in range(3)
                for block in range(n_blocks)
                for stride in (2 if stage and block == 0 else 1,)
            )
        )
        self.bn, self.fc = nn.BatchNorm2d(widths[-1]), nn.Linear(widths[-1], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = functional.relu(self.bn(self.stages(self.conv1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def keep_running_stats(model: nn.Module, *, is_kept: bool) -> None:
    """Let norms leave their statistics as they are, or no more."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            if is_kept:
                module.backup, module.momentum = module.momentum, 0.0
            else:
                module.momentum = getattr(module, "backup", module.momentum)


class DeviceLoader:
    """All images of a small data set, padded, as bytes on the device; batches are cut out there."""

    def __init__(self, n_images: int, batch_size: int, size: int = 32) -> None:
        images = torch.randint(0, 256, (n_images, size, size, 3), dtype=torch.uint8).cuda()
        self.images = functional.pad(images.permute(0, 3, 1, 2), (4, 4, 4, 4))
        self.labels = torch.randint(0, 10, (n_images,)).cuda()
        self.mean = torch.tensor([125.3, 123.0, 113.9], device="cuda").view(1, 3, 1, 1)
        self.std = torch.tensor([51.6, 50.8, 51.3], device="cuda").view(1, 3, 1, 1)
        self.batch_size, self.size = batch_size, size
        self.order = torch.empty(0, dtype=torch.long)

    def held(self) -> Sequence[torch.Tensor]:
        """What is there all the time."""
        return self.images, self.labels, self.mean, self.std, self.order

    def augmented(self, rows: torch.Tensor) -> torch.Tensor:
        """Pieces of the images, flipped or not, as normalized numbers."""
        y, x = torch.randint(0, 9, (2,)).tolist()
        piece = self.images[rows, :, y : y + self.size, x : x + self.size]
        flips = torch.rand(len(rows), 1, 1, 1, device="cuda") < 0.5
        piece = torch.where(flips, piece.flip(-1), piece)
        return piece.float().sub_(self.mean).div_(self.std)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the batches of one epoch after another."""
        while True:
            self.order = torch.randperm(len(self.images), device="cuda")
            for rows in self.order.split(self.batch_size):
                yield self.augmented(rows), self.labels[rows]


def sharpness(_setup: Setup) -> Iterations:
    """Every step goes forward and back twice, from where it is and from the worst place nearby."""
    loader = DeviceLoader(3000, 24)
    model = WideResNet().cuda()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=5e-4)
    n_right, n_seen = torch.zeros((), device="cuda"), 0
    model.train()
    for inputs, targets in loader:
        keep_running_stats(model, is_kept=False)
        predictions = model(inputs)
        functional.cross_entropy(predictions, targets, label_smoothing=0.1).backward()
        optimizer.first_step()
        keep_running_stats(model, is_kept=True)
        functional.cross_entropy(model(inputs), targets, label_smoothing=0.1).backward()
        optimizer.second_step()
        n_right += (predictions.detach().argmax(1) == targets).sum()
        n_seen += len(targets)
        yield Known(
            inputs=(*loader.held(), inputs, targets),
            states=[state["e_w"] for state in optimizer.state.values()],
            activations=(predictions, n_right),
        )
