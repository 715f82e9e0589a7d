"""A Segformer segments scenes; the next batch is copied to the device while this one runs backward."""

import torch
from programs import end_of_step
from transformers import SegformerConfig, SegformerForSemanticSegmentation

torch.manual_seed(34)
config = SegformerConfig(
    num_encoder_blocks=3,
    depths=[2, 2, 2],
    sr_ratios=[4, 2, 1],
    hidden_sizes=[32, 64, 128],
    patch_sizes=[7, 3, 3],
    strides=[4, 2, 2],
    num_attention_heads=[1, 2, 4],
    mlp_ratios=[4, 4, 4],
    decoder_hidden_size=128,
    num_labels=12,
)
model = SegformerForSemanticSegmentation(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)


def load():
    images = torch.randn(6, 3, 128, 128).pin_memory()
    labels = torch.randint(0, 12, (6, 128, 128)).pin_memory()
    return images.cuda(non_blocking=True), labels.cuda(non_blocking=True)


batch = load()
for _ in range(5):
    images, labels = batch
    outputs = model(pixel_values=images, labels=labels)
    batch = load()
    optimizer.zero_grad()
    outputs.loss.backward()
    optimizer.step()
    end_of_step(inputs=[images, labels, batch], activations=[outputs.loss, outputs.logits])
