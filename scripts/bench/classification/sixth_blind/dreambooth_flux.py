"""A Flux learns one thing from a few photos, as DreamBooth by LoRA: latents and prompt computed before, bfloat16, checkpoints."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import (
    cast_training_params,
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from peft import LoraConfig
from programs import end_of_step

SIZE, N_PHOTOS, N_WORDS = 192, 8, 64


def build_models():
    transformer = FluxTransformer2DModel(
        in_channels=32,
        num_layers=3,
        num_single_layers=6,
        attention_head_dim=32,
        num_attention_heads=8,
        joint_attention_dim=320,
        pooled_projection_dim=128,
        guidance_embeds=True,
        axes_dims_rope=(8, 12, 12),
    )
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 48, 48),
        latent_channels=8,
        norm_num_groups=8,
        scaling_factor=0.3611,
        shift_factor=0.1159,
    )
    return transformer, vae


def pack_latents(latents):
    """Two by two places of the latents are a token."""
    b, c, h, w = latents.shape
    latents = latents.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return latents.reshape(b, (h // 2) * (w // 2), c * 4)


def unpack_latents(tokens, h, w):
    b, _, c = tokens.shape
    tokens = tokens.view(b, h // 2, w // 2, c // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return tokens.reshape(b, c // 4, h, w)


def image_ids(h, w, device, dtype):
    ids = torch.zeros(h, w, 3)
    ids[..., 1] += torch.arange(h)[:, None]
    ids[..., 2] += torch.arange(w)[None, :]
    return ids.reshape(h * w, 3).to(device=device, dtype=dtype)


def get_sigmas(scheduler, timesteps, n_dim, device, dtype):
    sigmas = scheduler.sigmas.to(device=device, dtype=dtype)
    schedule_timesteps = scheduler.timesteps.to(device)
    steps = [(schedule_timesteps == t).nonzero().item() for t in timesteps.to(device)]
    return sigmas[steps].flatten().view(-1, *[1] * (n_dim - 1))


def main(max_train_steps=4, batch_size=2, guidance_scale=3.5):
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    set_seed(210)
    weight_dtype, device = torch.bfloat16, accelerator.device
    scheduler = FlowMatchEulerDiscreteScheduler()
    transformer, vae = build_models()
    transformer.requires_grad_(False)
    vae.requires_grad_(False)
    vae.to(device, dtype=weight_dtype)
    transformer.to(device, dtype=weight_dtype)
    transformer.enable_gradient_checkpointing()
    transformer.add_adapter(
        LoraConfig(
            r=16,
            lora_alpha=16,
            init_lora_weights="gaussian",
            target_modules=["to_k", "to_q", "to_v", "to_out.0"],
        )
    )
    cast_training_params([transformer], dtype=torch.float32)
    params_to_optimize = [p for p in transformer.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params_to_optimize, lr=1e-4, weight_decay=1e-4)
    lr_scheduler = get_scheduler("constant", optimizer=optimizer)

    prompt_embeds = torch.randn(1, N_WORDS, 320).to(device, dtype=weight_dtype)
    pooled_prompt_embeds = torch.randn(1, 128).to(device, dtype=weight_dtype)
    text_ids = torch.zeros(N_WORDS, 3, device=device, dtype=weight_dtype)
    latents_cache = []
    with torch.no_grad():
        for photos in torch.rand(N_PHOTOS, 3, SIZE, SIZE).mul(2).sub(1).split(batch_size):
            latents_cache.append(vae.encode(photos.to(device, dtype=weight_dtype)).latent_dist)
    shift, scale = vae.config.shift_factor, vae.config.scaling_factor
    del vae
    torch.cuda.empty_cache()

    transformer, optimizer, lr_scheduler = accelerator.prepare(transformer, optimizer, lr_scheduler)
    transformer.train()
    global_step = micro_step = 0
    while global_step < max_train_steps:
        with accelerator.accumulate(transformer):
            model_input = latents_cache[micro_step % len(latents_cache)].sample()
            model_input = ((model_input - shift) * scale).to(dtype=weight_dtype)
            bsz, _, h, w = model_input.shape
            latent_image_ids = image_ids(h // 2, w // 2, device, weight_dtype)
            noise = torch.randn_like(model_input)
            u = compute_density_for_timestep_sampling(
                weighting_scheme="none", batch_size=bsz, logit_mean=0.0, logit_std=1.0, mode_scale=1.29
            )
            indices = (u * scheduler.config.num_train_timesteps).long()
            timesteps = scheduler.timesteps[indices].to(device=device)
            sigmas = get_sigmas(scheduler, timesteps, model_input.ndim, device, model_input.dtype)
            noisy = (1.0 - sigmas) * model_input + sigmas * noise
            guidance = torch.tensor([guidance_scale], device=device).expand(bsz)
            model_pred = transformer(
                hidden_states=pack_latents(noisy),
                timestep=timesteps / 1000,
                guidance=guidance,
                pooled_projections=pooled_prompt_embeds.repeat(bsz, 1),
                encoder_hidden_states=prompt_embeds.repeat(bsz, 1, 1),
                txt_ids=text_ids,
                img_ids=latent_image_ids,
                return_dict=False,
            )[0]
            model_pred = unpack_latents(model_pred, h, w)
            weighting = compute_loss_weighting_for_sd3(weighting_scheme="none", sigmas=sigmas)
            target = noise - model_input
            loss = torch.mean(
                (weighting.float() * (model_pred.float() - target.float()) ** 2).reshape(bsz, -1), 1
            ).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(transformer.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        micro_step += 1
        if accelerator.sync_gradients:
            global_step += 1
            print(f"step {global_step}: loss {loss.detach().item():.4f}")
            end_of_step(
                inputs=[[vars(cached) for cached in latents_cache], prompt_embeds, pooled_prompt_embeds]
                + [text_ids, latent_image_ids, model_input, noise, noisy, timesteps, sigmas, guidance],
                activations=[model_pred, weighting, target, loss],
            )


if __name__ == "__main__":
    main()
