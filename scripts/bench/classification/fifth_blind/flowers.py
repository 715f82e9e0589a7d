"""An EfficientNet classifies flowers as timm trains it: RMSprop, mixed precision with a scaler, mixup, an average of weights."""

from copy import deepcopy

import numpy as np
import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import EfficientNetConfig, EfficientNetForImageClassification

N_CLASSES = 102


class Mixup:
    def __init__(self, alpha=0.2, smoothing=0.1, seed=103):
        self.alpha, self.smoothing = alpha, smoothing
        self.random = np.random.default_rng(seed)

    def one_hot(self, target):
        off = self.smoothing / N_CLASSES
        found = torch.full((len(target), N_CLASSES), off, device=target.device)
        return found.scatter_(1, target.view(-1, 1), 1 - self.smoothing + off)

    def __call__(self, images, target):
        lam = float(self.random.beta(self.alpha, self.alpha))
        flipped = images.flip(0).mul_(1 - lam)
        images.mul_(lam).add_(flipped)
        return images, self.one_hot(target) * lam + self.one_hot(target.flip(0)) * (1 - lam)


class SoftTargetCrossEntropy(nn.Module):
    def forward(self, x, target):
        return torch.sum(-target * torch.log_softmax(x, dim=-1), dim=-1).mean()


class ModelEma(nn.Module):
    """A second model whose weights follow those of the first."""

    def __init__(self, model, decay=0.9999):
        super().__init__()
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.state_dict().values(), model.state_dict().values()):
            ours.copy_(self.decay * ours + (1.0 - self.decay) * theirs)


class Wrapped(nn.Module):
    """Logits only, as a model of timm returns them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(pixel_values=x).logits


def create_model():
    config = EfficientNetConfig(
        image_size=96,
        width_coefficient=0.75,
        depth_coefficient=1.0,
        hidden_dim=960,
        dropout_rate=0.2,
        num_labels=N_CLASSES,
    )
    return Wrapped(EfficientNetForImageClassification(config))


def add_weight_decay(model, weight_decay):
    decay, no_decay = [], []
    for param in model.parameters():
        (no_decay if param.ndim <= 1 else decay).append(param)
    return [{"params": no_decay, "weight_decay": 0.0}, {"params": decay, "weight_decay": weight_decay}]


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct = n = 0
    for images, target in loader:
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(images)
        correct += (output.argmax(1) == target).sum().item()
        n += len(target)
    return correct / n


def main():
    torch.manual_seed(103)
    images, labels = torch.randn(144, 3, 96, 96), torch.randint(N_CLASSES, (144,))
    loader_train = DataLoader(TensorDataset(images[:128], labels[:128]), 16, shuffle=True, drop_last=True)
    loader_eval = DataLoader(TensorDataset(images[128:], labels[128:]), 16)
    model = create_model().cuda()
    optimizer = torch.optim.RMSprop(
        add_weight_decay(model, 1e-5), lr=0.016, alpha=0.9, eps=1e-3, momentum=0.9
    )
    model_ema = ModelEma(model)
    loss_scaler = torch.amp.GradScaler("cuda")
    mixup_fn, train_loss_fn = Mixup(), SoftTargetCrossEntropy().cuda()
    updates = 0
    for epoch in range(4):
        model.train()
        for batch_idx, (input, target) in enumerate(loader_train):
            input, target = input.cuda(), target.cuda()
            input, target = mixup_fn(input, target)
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(input)
                loss = train_loss_fn(output, target)
            optimizer.zero_grad()
            loss_scaler.scale(loss).backward()
            loss_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            loss_scaler.step(optimizer)
            loss_scaler.update()
            model_ema.update(model)
            updates += 1
            end_of_step(
                inputs=[input, target], activations=[output, loss], weights=model_ema.module.state_dict()
            )
            if updates % 2 == 0:
                break
        print(f"epoch {epoch}: loss {loss.item():.3f}, eval {validate(model, loader_eval):.3f}")
        print(f"    of the average {validate(model_ema.module, loader_eval):.3f}")


if __name__ == "__main__":
    main()
