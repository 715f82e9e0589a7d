"""A Stable Diffusion is tuned for prettier pictures by the gradient of an aesthetic score through the last denoising step (DRaFT): LoRA in the UNet, frozen VAE and CLIP, checkpointed UNet, bfloat16 autocast, AdamW, clipping."""

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from peft import LoraConfig
from programs import end_of_step
from torch import nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPVisionConfig, CLIPVisionModelWithProjection

torch.manual_seed(17)
device = torch.device("cuda")

text_encoder = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=2000,
        bos_token_id=1,
        eos_token_id=2,
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=6,
    )
)
vae = AutoencoderKL(
    block_out_channels=(32, 64, 64),
    down_block_types=("DownEncoderBlock2D",) * 3,
    up_block_types=("UpDecoderBlock2D",) * 3,
    layers_per_block=1,
    latent_channels=4,
    norm_num_groups=16,
)
unet = UNet2DConditionModel(
    sample_size=16,
    block_out_channels=(96, 192, 288),
    layers_per_block=1,
    down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=192,
    attention_head_dim=6,
    norm_num_groups=32,
)


class AestheticScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.clip = CLIPVisionModelWithProjection(
            CLIPVisionConfig(
                hidden_size=192,
                intermediate_size=768,
                num_hidden_layers=3,
                num_attention_heads=6,
                image_size=64,
                patch_size=16,
                projection_dim=256,
            )
        )
        self.head = nn.Sequential(
            nn.Linear(256, 256), nn.Dropout(0.2), nn.Linear(256, 64), nn.Dropout(0.1), nn.Linear(64, 1)
        )

    def forward(self, images):
        embeds = self.clip(pixel_values=images).image_embeds
        return self.head(F.normalize(embeds.float(), dim=-1)).squeeze(-1)


scorer = AestheticScorer()
for module in (text_encoder, vae, unet, scorer):
    module.requires_grad_(False).eval()
text_encoder.to(device, dtype=torch.bfloat16)
vae.to(device, dtype=torch.bfloat16)
scorer.to(device)
unet.to(device, dtype=torch.bfloat16)
unet.add_adapter(
    LoraConfig(
        r=8, lora_alpha=8, init_lora_weights="gaussian", target_modules=["to_q", "to_k", "to_v", "to_out.0"]
    )
)
lora = [p for p in unet.parameters() if p.requires_grad]
for p in lora:
    p.data = p.data.float()
unet.enable_gradient_checkpointing()
unet.train()

scheduler = DDIMScheduler(
    num_train_timesteps=1000, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
)
scheduler.set_timesteps(3, device=device)
optimizer = torch.optim.AdamW(lora, lr=2e-4, betas=(0.9, 0.99), weight_decay=0.0)
mean = torch.tensor([0.481, 0.458, 0.408], device=device).view(1, 3, 1, 1)
std = torch.tensor([0.269, 0.261, 0.276], device=device).view(1, 3, 1, 1)
batch_size, guidance, last_steps = 2, 5.0, 1

with torch.no_grad():
    empty = text_encoder(torch.zeros(1, 32, dtype=torch.long, device=device))[0]

for step in range(4):
    prompts = torch.randint(3, 1999, (batch_size, 32)).to(device)
    with torch.no_grad():
        prompt_embeds = text_encoder(prompts)[0]
    context = torch.cat([empty.expand(batch_size, -1, -1), prompt_embeds])
    latents = torch.randn(batch_size, 4, 16, 16, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for i, t in enumerate(scheduler.timesteps):
            with torch.set_grad_enabled(i >= len(scheduler.timesteps) - last_steps):
                noise = unet(torch.cat([latents] * 2), t, encoder_hidden_states=context).sample
                unconditional, conditional = noise.float().chunk(2)
                guided = unconditional + guidance * (conditional - unconditional)
                latents = scheduler.step(guided, t, latents).prev_sample
        images = vae.decode(latents / vae.config.scaling_factor).sample
        images = (images.float() / 2 + 0.5).clamp(0, 1)
        rewards = scorer((images - mean) / std)
    loss = (10.0 - rewards).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(lora, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step} reward {rewards.mean().item():.3f} norm {norm.item():.2e}")
    end_of_step(
        inputs=[prompts, mean, std, scheduler.timesteps],
        activations=[latents, images, rewards, loss, noise, guided, unconditional, conditional],
    )
