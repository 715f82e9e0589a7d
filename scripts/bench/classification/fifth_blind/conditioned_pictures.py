"""A ControlNet learns to follow outlines, as the script of diffusers trains it: all else frozen in half precision."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, ControlNetModel, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

RESOLUTION, VOCABULARY = 128, 6000


class Outlines(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, RESOLUTION, RESOLUTION, generator=generator).clamp(-1, 1)
        return {
            "pixel_values": image,
            "conditioning_pixel_values": (image > 0.6).float(),
            "input_ids": torch.randint(VOCABULARY, (32,), generator=generator),
        }


def build_models():
    vae = AutoencoderKL(
        block_out_channels=(16, 32, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
        sample_size=RESOLUTION,
    )
    unet = UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(64, 96, 128),
        layers_per_block=1,
        cross_attention_dim=160,
        attention_head_dim=8,
        norm_num_groups=16,
    )
    text = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=160,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=5,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=1,
    )
    return vae, unet, CLIPTextModel(text)


def main(set_grads_to_none=False, max_train_steps=5, max_grad_norm=1.0):
    accelerator = Accelerator(mixed_precision="fp16")
    set_seed(107)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    vae, unet, text_encoder = build_models()
    controlnet = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(16, 24, 48, 96))
    vae.requires_grad_(False)
    unet.requires_grad_(False)
    text_encoder.requires_grad_(False)
    controlnet.train()

    optimizer = torch.optim.AdamW(
        controlnet.parameters(), lr=5e-6, betas=(0.9, 0.999), weight_decay=1e-2, eps=1e-8
    )
    train_dataloader = DataLoader(Outlines(40), batch_size=4, shuffle=True)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer=optimizer, num_warmup_steps=2)
    controlnet, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        controlnet, optimizer, train_dataloader, lr_scheduler
    )
    weight_dtype = torch.float16
    vae.to(accelerator.device, dtype=weight_dtype)
    unet.to(accelerator.device, dtype=weight_dtype)
    text_encoder.to(accelerator.device, dtype=weight_dtype)

    for step, batch in enumerate(train_dataloader):
        with accelerator.accumulate(controlnet):
            latents = vae.encode(batch["pixel_values"].to(dtype=weight_dtype)).latent_dist.sample()
            latents = latents * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            bsz = latents.shape[0]
            timesteps = torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=latents.device
            ).long()
            noisy_latents = noise_scheduler.add_noise(latents.float(), noise.float(), timesteps).to(
                dtype=weight_dtype
            )
            encoder_hidden_states = text_encoder(batch["input_ids"], return_dict=False)[0]
            controlnet_image = batch["conditioning_pixel_values"].to(dtype=weight_dtype)
            down_block_res_samples, mid_block_res_sample = controlnet(
                noisy_latents,
                timesteps,
                encoder_hidden_states=encoder_hidden_states,
                controlnet_cond=controlnet_image,
                return_dict=False,
            )
            model_pred = unet(
                noisy_latents,
                timesteps,
                encoder_hidden_states=encoder_hidden_states,
                down_block_additional_residuals=[s.to(dtype=weight_dtype) for s in down_block_res_samples],
                mid_block_additional_residual=mid_block_res_sample.to(dtype=weight_dtype),
                return_dict=False,
            )[0]
            loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(controlnet.parameters(), max_grad_norm)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad(set_to_none=set_grads_to_none)
        print(f"step {step}: loss {loss.detach().item():.4f}, lr {lr_scheduler.get_last_lr()[0]:.1e}")
        end_of_step(inputs=batch)
        if step + 1 == max_train_steps:
            break


if __name__ == "__main__":
    main()
