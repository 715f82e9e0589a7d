"""Recognition of what cows do before calving in clips of barn cameras: a MViT v2 trained as torchvision's video reference does, SGD, warm-up and cosine, label smoothing, bf16 autocast."""

import time

import torch
import torch.nn as nn
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from torchvision.models.video.mvit import MSBlockConfig, MViT
from torchvision.transforms import v2

torch.manual_seed(3)
BEHAVIOURS = [
    "standing",
    "lying",
    "tail_raised",
    "licking",
    "contraction",
    "restless",
    "eating",
    "calf_visible",
]


class BarnClips(Dataset):
    def __init__(self, length, train):
        self.length = length
        size = (112, 112)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=(0.5, 1.0), antialias=True)
                if train
                else v2.CenterCrop(size),
                v2.RandomHorizontalFlip() if train else v2.Identity(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(mean=[0.45, 0.45, 0.45], std=[0.225, 0.225, 0.225]),
            ]
        )

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        frames = torch.randint(0, 256, (16, 3, 128, 170), dtype=torch.uint8, generator=generator)
        clip = self.transform(frames).permute(1, 0, 2, 3)
        return clip, index % len(BEHAVIOURS)


def mvit_tiny(num_classes):
    """The layout of mvit_v2_s with fewer channels and blocks."""
    depths = (1, 2, 5, 2)
    widths = (48, 96, 192, 384)
    heads = (1, 2, 4, 8)
    blocks = []
    for stage, depth in enumerate(depths):
        for block in range(depth):
            first = block == 0 and stage > 0
            kv = 8 // 2**stage
            blocks.append(
                MSBlockConfig(
                    num_heads=heads[stage],
                    input_channels=widths[stage - 1] if first else widths[stage],
                    output_channels=widths[stage],
                    kernel_q=[3, 3, 3],
                    kernel_kv=[3, 3, 3],
                    stride_q=[1, 2, 2] if first else [1, 1, 1],
                    stride_kv=[1, kv, kv],
                )
            )
    return MViT(
        spatial_size=(112, 112),
        temporal_size=16,
        block_setting=blocks,
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        dropout=0.5,
        stochastic_depth_prob=0.1,
        num_classes=num_classes,
    )


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item() * 100


def train_one_epoch(model, criterion, optimizer, lr_scheduler, loader, device, epoch):
    model.train()
    for step, (video, target) in enumerate(loader):
        start = time.time()
        video, target = video.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(video)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        print(
            f"epoch {epoch} step {step} loss {loss.item():.3f} acc {accuracy(output, target):.1f} "
            f"lr {optimizer.param_groups[0]['lr']:.4f} clips/s {video.shape[0] / (time.time() - start):.1f}"
        )
        end_of_step(inputs=[video, target], activations=[output, loss])


def evaluate(model, criterion, loader, device):
    model.eval()
    correct = seen = 0
    with torch.inference_mode():
        for video, target in loader:
            video, target = video.to(device, non_blocking=True), target.to(device, non_blocking=True)
            output = model(video)
            criterion(output, target)
            correct += (output.argmax(1) == target).sum().item()
            seen += target.numel()
    print(f"validation accuracy {100 * correct / seen:.1f}")


def main():
    device = torch.device("cuda")
    train_loader = DataLoader(BarnClips(4, train=True), batch_size=2, shuffle=True, drop_last=True)
    val_loader = DataLoader(BarnClips(2, train=False), batch_size=2)
    model = mvit_tiny(len(BEHAVIOURS)).to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": 1e-4}, {"params": no_decay, "weight_decay": 0.0}],
        lr=0.02,
        momentum=0.9,
    )
    iterations = len(train_loader)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=iterations)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=iterations * 9)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[iterations])

    for epoch in range(10):
        train_one_epoch(model, criterion, optimizer, lr_scheduler, train_loader, device, epoch)
        evaluate(model, criterion, val_loader, device)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            "checkpoint.pth",
        )


if __name__ == "__main__":
    main()
