"""A ControlNet of diffusers learns to follow edges: a copy of half of a frozen UNet, in mixed precision."""

import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, DDPMScheduler, UNet2DConditionModel
from programs import end_of_step

torch.manual_seed(76)
device, weight_dtype = torch.device("cuda"), torch.bfloat16

unet = UNet2DConditionModel(
    sample_size=16,
    layers_per_block=1,
    block_out_channels=(64, 128),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=96,
    attention_head_dim=8,
)
controlnet = ControlNetModel.from_unet(unet, conditioning_channels=3)
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)

unet.requires_grad_(False)
controlnet.train()
unet.to(device, dtype=weight_dtype)
controlnet.to(device)
optimizer = torch.optim.AdamW(controlnet.parameters(), lr=5e-6, weight_decay=1e-2)


def batches(n):
    for _ in range(n):
        yield {
            "latents": torch.randn(4, 4, 16, 16),
            "edges": torch.rand(4, 3, 128, 128),
            "text": torch.randn(4, 20, 96),
        }


for batch in batches(4):
    latents = batch["latents"].to(device, dtype=weight_dtype)
    edges = batch["edges"].to(device, dtype=weight_dtype)
    text = batch["text"].to(device, dtype=weight_dtype)
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(latents),), device=device)
    noisy = noise_scheduler.add_noise(latents, noise, timesteps)
    with torch.autocast("cuda", dtype=weight_dtype):
        down, mid = controlnet(
            noisy, timesteps, encoder_hidden_states=text, controlnet_cond=edges, return_dict=False
        )
        predicted = unet(
            noisy,
            timesteps,
            encoder_hidden_states=text,
            down_block_additional_residuals=down,
            mid_block_additional_residual=mid,
            return_dict=False,
        )[0]
        loss = F.mse_loss(predicted.float(), noise.float(), reduction="mean")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(controlnet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(loss.detach().item())
    end_of_step(
        inputs=[latents, edges, text, noise, timesteps, noisy],
        activations=[down, mid, predicted, loss],
        weights=[*unet.parameters(), *unet.buffers()],
    )
