"""A Depth Anything learns how far away things are: a slow backbone, a fast head, a fused AdamW, cleared gradients."""

import torch
from programs import end_of_step
from torch import nn
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config


class SiLogLoss(nn.Module):
    def __init__(self, lambd=0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, pred, target, valid_mask):
        difference = torch.log(target[valid_mask]) - torch.log(pred[valid_mask].clamp(min=1e-3))
        return torch.sqrt(difference.pow(2).mean() - self.lambd * difference.mean().pow(2))


def build_model():
    backbone = Dinov2Config(
        image_size=112,
        patch_size=14,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        out_indices=[2, 3, 5, 6],
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=14,
        reassemble_hidden_size=192,
        neck_hidden_sizes=[24, 48, 96, 192],
        fusion_hidden_size=48,
        depth_estimation_type="metric",
        max_depth=20,
    )
    return DepthAnythingForDepthEstimation(config)


def make_batch(n=6):
    depth = torch.rand(n, 112, 112) * 20
    return {"image": torch.randn(n, 3, 112, 112), "depth": depth, "valid_mask": depth > 0.5}


torch.manual_seed(85)
model = build_model().cuda()
criterion = SiLogLoss().cuda()
lr, total_iters = 5e-6, 100
optimizer = torch.optim.AdamW(
    [
        {"params": [p for name, p in model.named_parameters() if "backbone" in name], "lr": lr},
        {"params": [p for name, p in model.named_parameters() if "backbone" not in name], "lr": lr * 10},
    ],
    betas=(0.9, 0.999),
    weight_decay=0.01,
    fused=True,
)
model.train()
for i in range(6):
    optimizer.zero_grad(set_to_none=False)
    sample = make_batch()
    img, depth, valid_mask = sample["image"].cuda(), sample["depth"].cuda(), sample["valid_mask"].cuda()
    if torch.rand(()) < 0.5:
        img, depth, valid_mask = img.flip(-1), depth.flip(-1), valid_mask.flip(-1)
    pred = model(img).predicted_depth
    loss = criterion(pred, depth, valid_mask & (depth <= 20))
    loss.backward()
    optimizer.step()
    for group, times in zip(optimizer.param_groups, (1, 10)):
        group["lr"] = lr * (1 - (i + 1) / total_iters) ** 0.9 * times
    print(f"iter {i}, lr {optimizer.param_groups[0]['lr']:.2e}, loss {loss.item():.3f}")
    end_of_step(inputs=[img, depth, valid_mask], activations=[pred, loss])
