"""Images are drawn from noise with guidance: a conditional UNet of diffusers in bfloat16, and DDIM."""

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from programs import end_of_step

torch.manual_seed(21)
unet = UNet2DConditionModel(
    sample_size=32,
    layers_per_block=1,
    block_out_channels=(64, 128),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=128,
    attention_head_dim=8,
)
unet = unet.to("cuda", dtype=torch.bfloat16).eval()
scheduler = DDIMScheduler()


@torch.no_grad()
def draw(n, n_steps=4, guidance=5.0):
    text = torch.randn(n, 24, 128, dtype=torch.bfloat16).to("cuda")
    nothing = torch.zeros_like(text)
    embeddings = torch.cat([nothing, text])
    latents = torch.randn(n, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
    scheduler.set_timesteps(n_steps, device="cuda")
    for step in scheduler.timesteps:
        doubled = scheduler.scale_model_input(torch.cat([latents] * 2), step)
        noise = unet(doubled, step, encoder_hidden_states=embeddings).sample
        without, given = noise.chunk(2)
        latents = scheduler.step(without + guidance * (given - without), step, latents).prev_sample
    return latents, text, embeddings


for _ in range(4):
    drawn, text, embeddings = draw(6)
    print(drawn.float().abs().mean().item())
    end_of_step(inputs=[text, embeddings], activations=[drawn])
