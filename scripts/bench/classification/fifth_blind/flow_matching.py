"""A diffusion transformer in the shape of SD3 learns rectified flow: bfloat16, checkpoints, an EMA, latents computed before."""

import copy

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.training_utils import (
    EMAModel,
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset


class Cached(Dataset):
    """What a VAE and two text encoders made of pictures and captions."""

    def __init__(self, n, longest=40):
        self.latents = torch.randn(n, 16, 16, 16)
        self.prompts = torch.randn(n, longest, 256)
        self.pooled = torch.randn(n, 128)

    def __len__(self):
        return len(self.latents)

    def __getitem__(self, index):
        return {"latents": self.latents[index], "prompt": self.prompts[index], "pooled": self.pooled[index]}


def get_sigmas(scheduler, timesteps, n_dim, device):
    sigmas = scheduler.sigmas.to(device=device, dtype=torch.float32)
    schedule_timesteps = scheduler.timesteps.to(device)
    step_indices = [(schedule_timesteps == t).nonzero().item() for t in timesteps]
    sigma = sigmas[step_indices].flatten()
    while len(sigma.shape) < n_dim:
        sigma = sigma.unsqueeze(-1)
    return sigma


def main(n_steps=6, batch_size=8, accumulate=2, device="cuda"):
    torch.manual_seed(108)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler_copy = copy.deepcopy(scheduler)
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=6,
        attention_head_dim=32,
        num_attention_heads=6,
        joint_attention_dim=256,
        caption_projection_dim=192,
        pooled_projection_dim=128,
        pos_embed_max_size=24,
        qk_norm="rms_norm",
    )
    transformer.to(device)
    transformer.enable_gradient_checkpointing()
    transformer.train()
    ema = EMAModel(
        transformer.parameters(),
        decay=0.9999,
        model_cls=SD3Transformer2DModel,
        model_config=transformer.config,
    )
    ema.to(device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-4)
    loader = DataLoader(Cached(160), batch_size=batch_size, shuffle=True, drop_last=True)
    done = 0
    while done < n_steps:
        for number, batch in enumerate(loader):
            latents = batch["latents"].to(device)
            prompt, pooled = batch["prompt"].to(device), batch["pooled"].to(device)
            noise = torch.randn_like(latents)
            u = compute_density_for_timestep_sampling("logit_normal", len(latents), 0.0, 1.0, 1.29)
            timesteps = scheduler_copy.timesteps[(u * 1000).long()].to(device)
            sigmas = get_sigmas(scheduler_copy, timesteps, latents.ndim, device)
            noisy = (1.0 - sigmas) * latents + sigmas * noise
            with torch.autocast("cuda", dtype=torch.bfloat16):
                velocity = transformer(
                    hidden_states=noisy,
                    timestep=timesteps,
                    encoder_hidden_states=prompt,
                    pooled_projections=pooled,
                    return_dict=False,
                )[0]
            weighting = compute_loss_weighting_for_sd3("logit_normal", sigmas)
            target = noise - latents
            loss = (
                (weighting.float() * (velocity.float() - target.float()) ** 2)
                .reshape(len(target), -1)
                .mean(1)
            )
            loss = loss.mean()
            (loss / accumulate).backward()
            if (number + 1) % accumulate:
                continue
            torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            ema.step(transformer.parameters())
            done += 1
            print(f"step {done}: {loss.item():.4f}")
            end_of_step(
                inputs=[latents, prompt, pooled, noise, noisy, sigmas, timesteps, target],
                activations=[velocity, loss],
                weights=ema.shadow_params,
            )
            if done == n_steps:
                break


if __name__ == "__main__":
    main()
