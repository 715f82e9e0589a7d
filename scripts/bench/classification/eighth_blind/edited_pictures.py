"""A UNet learns to edit pictures as it is told (InstructPix2Pix): a wider first convolution, two conditions that are dropped at times, an EMA of diffusers, half precision."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from programs import end_of_step
from torch import nn
from torch.utils.data import Dataset
from transformers import CLIPTextConfig, CLIPTextModel

RESOLUTION, N_WORDS, N_TOKENS = 64, 32, 4000


class Edits(Dataset):
    """A picture, what is to be done with it, and the picture after that."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        original, edited = torch.rand(2, 3, RESOLUTION, RESOLUTION).mul(2).sub(1)
        words = torch.randint(3, N_TOKENS, (N_WORDS,))
        words[0], words[6 + index % 20 :] = 1, 2
        return {"original_pixel_values": original, "edited_pixel_values": edited, "input_ids": words}


def collate_fn(examples):
    batch = {key: torch.stack([example[key] for example in examples]) for key in examples[0]}
    return {
        key: value.to(memory_format=torch.contiguous_format) if value.is_floating_point() else value
        for key, value in batch.items()
    }


def build_models():
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=N_TOKENS,
            hidden_size=192,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=6,
            max_position_embeddings=N_WORDS,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
        latent_channels=4,
    )
    unet = UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        block_out_channels=(96, 192),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=4,
        norm_num_groups=16,
        cross_attention_dim=192,
    )
    return text_encoder, vae, unet


def main(max_train_steps=4, batch_size=2, conditioning_dropout_prob=0.05):
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="fp16")
    set_seed(404)
    generator = torch.Generator(device=accelerator.device).manual_seed(404)
    noise_scheduler = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    text_encoder, vae, unet = build_models()

    # The first convolution sees the noisy picture and the original one.
    unet.register_to_config(in_channels=8)
    with torch.no_grad():
        conv_in = unet.conv_in
        new_conv_in = nn.Conv2d(8, conv_in.out_channels, conv_in.kernel_size, conv_in.stride, conv_in.padding)
        new_conv_in.weight.zero_()
        new_conv_in.weight[:, :4, :, :].copy_(conv_in.weight)
        unet.conv_in = new_conv_in
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    ema_unet = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
    unet.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(
        unet.parameters(), lr=5e-5, betas=(0.9, 0.999), weight_decay=1e-2, eps=1e-08
    )
    train_dataloader = torch.utils.data.DataLoader(
        Edits(), shuffle=True, collate_fn=collate_fn, batch_size=batch_size
    )
    lr_scheduler = get_scheduler("constant", optimizer=optimizer, num_warmup_steps=0)
    unet, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        unet, optimizer, train_dataloader, lr_scheduler
    )
    ema_unet.to(accelerator.device)
    weight_dtype = torch.float16
    text_encoder.to(accelerator.device, dtype=weight_dtype)
    vae.to(accelerator.device, dtype=weight_dtype)

    null_ids = torch.full((1, N_WORDS), 2)
    null_ids[0, 0] = 1
    global_step, train_loss = 0, 0.0
    unet.train()
    for batch in train_dataloader:
        with accelerator.accumulate(unet):
            latents = vae.encode(batch["edited_pixel_values"].to(weight_dtype)).latent_dist.sample()
            latents = latents * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            bsz = latents.shape[0]
            timesteps = torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=latents.device
            ).long()
            noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
            encoder_hidden_states = text_encoder(batch["input_ids"])[0]
            original_image_embeds = vae.encode(
                batch["original_pixel_values"].to(weight_dtype)
            ).latent_dist.mode()

            random_p = torch.rand(bsz, device=latents.device, generator=generator)
            prompt_mask = (random_p < 2 * conditioning_dropout_prob).reshape(bsz, 1, 1)
            null_conditioning = text_encoder(null_ids.to(accelerator.device))[0]
            encoder_hidden_states = torch.where(prompt_mask, null_conditioning, encoder_hidden_states)
            image_mask_dtype = original_image_embeds.dtype
            image_mask = 1 - (
                (random_p >= conditioning_dropout_prob).to(image_mask_dtype)
                * (random_p < 3 * conditioning_dropout_prob).to(image_mask_dtype)
            )
            image_mask = image_mask.reshape(bsz, 1, 1, 1)
            original_image_embeds = image_mask * original_image_embeds

            concatenated_noisy_latents = torch.cat([noisy_latents, original_image_embeds], dim=1)
            model_pred = unet(
                concatenated_noisy_latents, timesteps, encoder_hidden_states, return_dict=False
            )[0]
            loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
            avg_loss = accelerator.gather(loss.repeat(batch_size)).mean()
            train_loss += avg_loss.item() / 2
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema_unet.step(unet.parameters())
            global_step += 1
            print(f"step {global_step}: loss {train_loss:.4f}, rate {lr_scheduler.get_last_lr()[0]:.1e}")
            train_loss = 0.0
            end_of_step(
                inputs=[batch, latents, noise, timesteps, noisy_latents, encoder_hidden_states]
                + [original_image_embeds, concatenated_noisy_latents, random_p, prompt_mask, image_mask]
                + [null_conditioning],
                activations=[model_pred, loss, avg_loss],
                weights=ema_unet.shadow_params,
            )
        if global_step >= max_train_steps:
            break


if __name__ == "__main__":
    main()
