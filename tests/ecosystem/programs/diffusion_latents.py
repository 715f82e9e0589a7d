"""diffusers: train a UNet to remove noise from latents that a frozen VAE encodes."""

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from own_count import print_count
from tqdm.auto import tqdm


def build():
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(32, 64),
        layers_per_block=1,
        latent_channels=4,
    )
    unet = UNet2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return vae, unet


def main(steps=5, batch_size=4):
    torch.manual_seed(0)
    weight_dtype = torch.float32
    vae, unet = build()
    vae.requires_grad_(False)
    vae.to("cuda", dtype=weight_dtype)
    unet.to("cuda")
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)

    unet.train()
    for _ in tqdm(range(steps), disable=True):
        images = torch.rand(batch_size, 3, 64, 64).to("cuda", dtype=weight_dtype)
        with torch.no_grad():
            latents = vae.encode(images).latent_dist.sample() * vae.config.scaling_factor
        noise = torch.randn_like(latents)
        timesteps = torch.randint(
            0, noise_scheduler.config.num_train_timesteps, (batch_size,), device=latents.device
        ).long()
        noisy = noise_scheduler.add_noise(latents, noise, timesteps)
        predicted = unet(noisy, timesteps, return_dict=False)[0]
        loss = F.mse_loss(predicted.float(), noise.float(), reduction="mean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        print_count([vae, unet], optimizer)
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
