"""An entry that was written without a look at any rule: careful steps.

They bring optimizers of their own, and take no other, whatever a setup says.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

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
        norms = [
            p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None
        ]
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
                WideBlock(
                    widths[stage] if block == 0 else widths[stage + 1], widths[stage + 1], stride
                )
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
