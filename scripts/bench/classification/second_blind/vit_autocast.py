"""A ViT classifies images in half precision: autocast and a gradient scaler, mixup on the device."""

import torch
from programs import end_of_step
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(13)
device = torch.device("cuda")
config = ViTConfig(
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=1024,
    image_size=96,
    patch_size=8,
    num_labels=50,
)
model = ViTForImageClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


def mixup(images, labels, alpha=0.4):
    weight = torch.distributions.Beta(alpha, alpha).sample().item()
    order = torch.randperm(len(images), device=images.device)
    return weight * images + (1 - weight) * images[order], labels, labels[order], weight


for _ in range(5):
    images = torch.randn(16, 3, 96, 96).to(device, non_blocking=True)
    labels = torch.randint(0, 50, (16,)).to(device, non_blocking=True)
    mixed, first, second, weight = mixup(images, labels)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(pixel_values=mixed).logits
        loss = weight * criterion(logits, first) + (1 - weight) * criterion(logits, second)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(loss.item())
    end_of_step(inputs=[images, labels, mixed, first, second], activations=[logits, loss])
