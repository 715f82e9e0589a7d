"""A CLIP brings images and texts together: two towers, a learned temperature, gradients that stay and are cleared."""

import torch
from programs import end_of_step
from transformers import CLIPConfig, CLIPModel

torch.manual_seed(36)
config = CLIPConfig(
    text_config={
        "vocab_size": 3000,
        "hidden_size": 192,
        "intermediate_size": 768,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "eos_token_id": 2999,
        "pad_token_id": 0,
        "bos_token_id": 1,
    },
    vision_config={
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": 64,
        "patch_size": 8,
    },
    projection_dim=128,
)
model = CLIPModel(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, foreach=False)
for _ in range(5):
    images = torch.randn(24, 3, 64, 64).to("cuda")
    texts = torch.randint(2, 2999, (24, 40)).to("cuda")
    outputs = model(input_ids=texts, pixel_values=images, return_loss=True)
    optimizer.zero_grad()
    outputs.loss.backward()
    optimizer.step()
    end_of_step(inputs=[images, texts], activations=[outputs.loss])
    del outputs
