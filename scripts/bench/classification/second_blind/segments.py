"""Segmentation by a SegFormer of transformers: AdamW with amsgrad, and a rate that falls by a polynomial."""

import torch
from programs import end_of_step
from transformers import SegformerConfig, SegformerForSemanticSegmentation

torch.manual_seed(53)
config = SegformerConfig(
    hidden_sizes=[32, 64, 128, 160],
    depths=[2, 2, 2, 2],
    decoder_hidden_size=128,
    num_labels=12,
)
model = SegformerForSemanticSegmentation(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01, amsgrad=True)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=100, power=1.0)
for _ in range(4):
    images = torch.randn(4, 3, 128, 128).to("cuda")
    masks = torch.randint(0, 12, (4, 128, 128)).to("cuda")
    optimizer.zero_grad()
    loss = model(pixel_values=images, labels=masks).loss
    loss.backward()
    optimizer.step()
    schedule.step()
    end_of_step(inputs=[images, masks], activations=[loss])
