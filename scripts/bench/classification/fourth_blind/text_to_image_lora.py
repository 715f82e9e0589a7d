"""Adapters of Stable Diffusion's UNet learn a style: images are encoded by a frozen VAE, captions by a frozen CLIP."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import cast_training_params
from peft import LoraConfig
from programs import end_of_step
from torch.utils.data import DataLoader
from transformers import CLIPTextConfig, CLIPTextModel

set_seed(88)
accelerator = Accelerator(mixed_precision="bf16")
weight_dtype = torch.bfloat16

noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
text_encoder = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=4000,
        hidden_size=160,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=77,
    )
)
vae = AutoencoderKL(
    down_block_types=("DownEncoderBlock2D",) * 3,
    up_block_types=("UpDecoderBlock2D",) * 3,
    block_out_channels=(32, 64, 64),
    latent_channels=4,
)
unet = UNet2DConditionModel(
    sample_size=24,
    layers_per_block=1,
    block_out_channels=(64, 128, 192),
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=160,
    attention_head_dim=8,
)
for model in (unet, vae, text_encoder):
    model.requires_grad_(False)
    model.to(accelerator.device, dtype=weight_dtype)
unet.add_adapter(
    LoraConfig(
        r=8, lora_alpha=8, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v", "to_out.0"]
    )
)
cast_training_params(unet, dtype=torch.float32)
lora_layers = [p for p in unet.parameters() if p.requires_grad]

pictures = [
    {"pixel_values": torch.rand(3, 96, 96) * 2 - 1, "input_ids": torch.randint(0, 4000, (77,))}
    for _ in range(24)
]
loader = DataLoader(pictures, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(lora_layers, lr=1e-4, weight_decay=1e-2)
lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)
unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)

unet.train()
for batch in loader:
    with accelerator.accumulate(unet):
        latents = vae.encode(batch["pixel_values"].to(dtype=weight_dtype)).latent_dist.sample()
        latents = latents * vae.config.scaling_factor
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device).long()
        noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
        hidden_states = text_encoder(batch["input_ids"], return_dict=False)[0]
        predicted = unet(noisy_latents, timesteps, hidden_states, return_dict=False)[0]
        loss = F.mse_loss(predicted.float(), noise.float(), reduction="mean")
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(lora_layers, 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    print(loss.detach().item(), lr_scheduler.get_last_lr()[0])
    end_of_step(
        inputs=[batch, latents, noise, timesteps, noisy_latents], activations=[hidden_states, predicted, loss]
    )
