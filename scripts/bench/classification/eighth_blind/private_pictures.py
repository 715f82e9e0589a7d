"""Scans are learned without learning about any patient: a gradient for each by torch.func, clipped and noised (DP-SGD), group norms, batches of unequal size, an EMA."""

import math
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

N_CLASSES, SIZE, N_TRAIN = 9, 28, 2000
MAX_GRAD_NORM, NOISE_MULTIPLIER, EXPECTED_BATCH, N_AUGMENTED = 1.0, 1.1, 24, 2


class WSConv2d(nn.Conv2d):
    """A convolution whose weights are standardized."""

    def forward(self, x):
        weight = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        weight = weight / (weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        scale = 1 / math.sqrt(self.weight[0].numel())
        return F.conv2d(x, weight * scale, self.bias, self.stride, self.padding)


class WideBlock(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, n_in), nn.GroupNorm(16, n_out)
        self.conv1 = WSConv2d(n_in, n_out, 3, stride, 1)
        self.conv2 = WSConv2d(n_out, n_out, 3, 1, 1)
        self.shortcut = WSConv2d(n_in, n_out, 1, stride) if stride != 1 or n_in != n_out else None

    def forward(self, x):
        out = self.norm1(F.relu(x))
        kept = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        return self.conv2(self.norm2(F.relu(out))) + kept


class WideResNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 192)):
        super().__init__()
        self.stem = WSConv2d(3, widths[0], 3, 1, 1)
        self.blocks = nn.Sequential(
            *(WideBlock(before, after, 1 + (i > 0)) for i, (before, after) in enumerate(pairwise(widths)))
        )
        self.norm = nn.GroupNorm(16, widths[-1])
        self.head = nn.Linear(widths[-1], N_CLASSES)

    def forward(self, x):
        x = self.norm(F.relu(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def augmented(images):
    """Each picture several times, shifted and mirrored."""
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    found = []
    for _ in range(N_AUGMENTED):
        i, j = torch.randint(0, 5, (2,)).tolist()
        crop = padded[:, :, i : i + SIZE, j : j + SIZE]
        found.append(crop.flip(-1) if torch.rand(()) < 0.5 else crop)
    return torch.stack(found, dim=1)


def poisson_batches(images, labels, n_steps):
    """Every picture is in a batch by chance, so that nobody knows how large it is."""
    for _ in range(n_steps):
        chosen = torch.rand(len(images)) < EXPECTED_BATCH / len(images)
        yield images[chosen], labels[chosen]


def epsilon(steps, delta=1e-5):
    """A rough bound of what is given away, by the Gaussian mechanism's Rényi divergence."""
    q, orders = EXPECTED_BATCH / N_TRAIN, range(2, 64)
    return min(steps * 2 * q**2 * a / NOISE_MULTIPLIER**2 + math.log(1 / delta) / (a - 1) for a in orders)


@torch.no_grad()
def update_ema(averaged, model, step, decay=0.999):
    decay = min(decay, (1 + step) / (10 + step))
    for kept, p in zip(averaged.parameters(), model.parameters()):
        kept.lerp_(p, 1 - decay)


@torch.no_grad()
def accuracy(model, images, labels, device):
    right = 0
    for x, y in zip(images.split(64), labels.split(64)):
        right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    return right / len(labels)


def main(n_steps=5):
    torch.manual_seed(409)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = torch.randn(N_TRAIN, 3, SIZE, SIZE), torch.randint(N_CLASSES, (N_TRAIN,))
    test_images, test_labels = torch.randn(128, 3, SIZE, SIZE), torch.randint(N_CLASSES, (128,))
    model = WideResNet().to(device)
    averaged = deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def compute_loss(params, views, label):
        logits = functional_call(model, params, (views,))
        return F.cross_entropy(logits, label.expand(len(views)))

    per_sample = vmap(grad_and_value(compute_loss), in_dims=(None, 0, 0), chunk_size=16)
    for step, (batch, targets) in enumerate(poisson_batches(images, labels, n_steps)):
        batch, targets = batch.to(device), targets.to(device)
        views = augmented(batch)
        params = {name: p.detach() for name, p in model.named_parameters()}
        per_sample_grads, losses = per_sample(params, views, targets)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in per_sample_grads.values()], dim=1).norm(dim=1)
        clip_factor = (MAX_GRAD_NORM / (norms + 1e-6)).clamp(max=1.0)
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            summed = torch.einsum("i,i...->...", clip_factor, per_sample_grads[name])
            noise = torch.randn_like(p) * (NOISE_MULTIPLIER * MAX_GRAD_NORM)
            p.grad = (summed + noise) / EXPECTED_BATCH
        optimizer.step()
        update_ema(averaged, model, step)
        print(
            f"step {step}: {len(targets)} scans, loss {losses.mean().item():.3f}, clipped "
            f"{(clip_factor < 1).float().mean().item():.2f}, epsilon {epsilon(step + 1):.2f}"
        )
        end_of_step(
            inputs=[batch, targets, views],
            gradients=per_sample_grads,
            activations=[losses],
            weights=averaged.parameters(),
        )
        if step % 2 == 1:
            print(f"accuracy {accuracy(averaged, test_images, test_labels, device):.3f}")


if __name__ == "__main__":
    main()
