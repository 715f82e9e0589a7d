"""Full fine-tuning of a Sana text-to-image transformer on posters of one style: CAME, flow matching, accelerate in bf16, an EMA."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaTransformer2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import (
    EMAModel,
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from programs import end_of_step
from pytorch_optimizer import CAME
from torch.utils.data import DataLoader, Dataset

CAPTION_TOKENS, CAPTION_WIDTH = 120, 768


class Posters(Dataset):
    """Pictures in [-1, 1] with the text embeddings that were computed beforehand."""

    def __init__(self, n=64, size=256):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(3, self.size, self.size, generator=generator) * 2 - 1
        embeds = torch.randn(CAPTION_TOKENS, CAPTION_WIDTH, generator=generator)
        mask = (
            torch.arange(CAPTION_TOKENS) < int(torch.randint(12, CAPTION_TOKENS, (1,), generator=generator))
        ).long()
        if index % 10 == 0:  # dropped captions
            embeds = torch.zeros_like(embeds)
        return {"pixel_values": picture, "prompt_embeds": embeds, "prompt_mask": mask}


set_seed(5)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=1)
weight_dtype = torch.bfloat16

vae = AutoencoderDC(
    latent_channels=32,
    attention_head_dim=32,
    encoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    decoder_block_types=("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
    encoder_block_out_channels=(16, 32, 64, 128, 128, 256),
    decoder_block_out_channels=(16, 32, 64, 128, 128, 256),
    encoder_layers_per_block=(0, 1, 1, 1, 1, 1),
    decoder_layers_per_block=(1, 1, 1, 1, 1, 1),
    scaling_factor=0.41407,
)
transformer = SanaTransformer2DModel(
    in_channels=32,
    out_channels=32,
    num_attention_heads=8,
    attention_head_dim=32,
    num_layers=6,
    num_cross_attention_heads=4,
    cross_attention_head_dim=64,
    cross_attention_dim=256,
    caption_channels=CAPTION_WIDTH,
    sample_size=8,
)
scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)

vae.requires_grad_(False)
vae.to(accelerator.device, dtype=weight_dtype)
transformer.to(accelerator.device)
ema = EMAModel(
    transformer.parameters(), decay=0.999, model_cls=SanaTransformer2DModel, model_config=transformer.config
)
ema.to(accelerator.device)

optimizer = CAME(transformer.parameters(), lr=1e-4, betas=(0.9, 0.999, 0.9999), weight_decay=0.0)
loader = DataLoader(Posters(), batch_size=8, shuffle=True)
lr_scheduler = get_scheduler("constant_with_warmup", optimizer=optimizer, num_warmup_steps=2)
transformer, optimizer, loader, lr_scheduler = accelerator.prepare(
    transformer, optimizer, loader, lr_scheduler
)


def get_sigmas(timesteps, n_dim, dtype):
    sigmas = scheduler.sigmas.to(device=accelerator.device, dtype=dtype)
    schedule = scheduler.timesteps.to(accelerator.device)
    indices = [(schedule == t).nonzero().item() for t in timesteps]
    sigma = sigmas[indices].flatten()
    while len(sigma.shape) < n_dim:
        sigma = sigma.unsqueeze(-1)
    return sigma


step = 0
for epoch in range(1):
    transformer.train()
    for batch in loader:
        with accelerator.accumulate(transformer):
            with torch.no_grad():
                latents = vae.encode(batch["pixel_values"].to(weight_dtype)).latent
            latents = latents * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            u = compute_density_for_timestep_sampling(
                "logit_normal", len(latents), logit_mean=0.0, logit_std=1.0
            )
            timesteps = scheduler.timesteps[(u * scheduler.config.num_train_timesteps).long()].to(
                latents.device
            )
            sigmas = get_sigmas(timesteps, latents.ndim, latents.dtype)
            noisy = (1.0 - sigmas) * latents + sigmas * noise
            prediction = transformer(
                hidden_states=noisy,
                encoder_hidden_states=batch["prompt_embeds"].to(weight_dtype),
                encoder_attention_mask=batch["prompt_mask"],
                timestep=timesteps,
                return_dict=False,
            )[0]
            weighting = compute_loss_weighting_for_sd3("none", sigmas=sigmas)
            target = noise - latents
            loss = (
                (weighting.float() * (prediction.float() - target.float()) ** 2)
                .reshape(len(target), -1)
                .mean(1)
                .mean()
            )
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(transformer.parameters(), 0.1)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step(transformer.parameters())
        step += 1
        if step % 2 == 0:
            print(f"step {step} loss {loss.detach().item():.4f} lr {lr_scheduler.get_last_lr()[0]:.2e}")
        end_of_step(
            inputs=[batch, noise, noisy, timesteps, sigmas],
            activations=[prediction, target, loss, weighting],
            weights=ema.shadow_params,
        )
