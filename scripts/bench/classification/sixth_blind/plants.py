"""A pyramid vision transformer classifies plants: a plain loop, channels last, bfloat16 by autocast, smoothed labels, an average."""

import math

import torch
from programs import end_of_step
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from transformers import PvtV2Config, PvtV2ForImageClassification

N_CLASSES, SIZE = 300, 128


class Plants(Dataset):
    def __init__(self, n, is_train):
        self.n, self.is_train = n, is_train

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        image = torch.randint(0, 256, (3, SIZE, SIZE), dtype=torch.uint8).float().div_(255)
        if self.is_train and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return (image - 0.45) / 0.225, index % N_CLASSES


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        config = PvtV2Config(
            image_size=SIZE,
            depths=[2, 2, 4, 2],
            hidden_sizes=[32, 64, 160, 256],
            num_attention_heads=[1, 2, 5, 8],
            mlp_ratios=[8, 8, 4, 4],
            drop_path_rate=0.1,
            num_labels=N_CLASSES,
        )
        self.net = PvtV2ForImageClassification(config)

    def forward(self, image):
        return self.net(pixel_values=image).logits


def parameter_groups(model, weight_decay):
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def train_one_epoch(model, ema, criterion, optimizer, scheduler, loader, epoch):
    model.train()
    for i, (image, target) in enumerate(loader):
        image = image.to("cuda", non_blocking=True, memory_format=torch.channels_last)
        target = target.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
        correct = output.argmax(1).eq(target).sum()
        print(f"epoch {epoch} [{i}/{len(loader)}] loss {loss.item():.3f}, {correct.item()} right")
        end_of_step(
            inputs=[image, target],
            activations=[output, loss, correct],
            weights=[*ema.parameters(), *ema.buffers()],
        )


@torch.inference_mode()
def evaluate(model, criterion, loader, name):
    model.eval()
    loss, right, n = 0.0, 0, 0
    for image, target in loader:
        image = image.to("cuda", non_blocking=True, memory_format=torch.channels_last)
        target = target.to("cuda", non_blocking=True)
        output = model(image)
        loss += criterion(output, target).item() * len(target)
        right += output.topk(5).indices.eq(target[:, None]).any(1).sum().item()
        n += len(target)
    print(f"{name}: loss {loss / n:.3f}, top five {right / n:.3f}")


def main(epochs=3, lr=1e-3):
    torch.manual_seed(207)
    model = Classifier().to("cuda", memory_format=torch.channels_last)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=lr)
    train_loader = DataLoader(Plants(24, True), batch_size=12, shuffle=True, drop_last=True)
    val_loader = DataLoader(Plants(8, False), batch_size=8)
    total = epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / total))
    )
    for epoch in range(epochs):
        train_one_epoch(model, ema, criterion, optimizer, scheduler, train_loader, epoch)
        evaluate(model, criterion, val_loader, "model")
        evaluate(ema, criterion, val_loader, "average")


if __name__ == "__main__":
    main()
