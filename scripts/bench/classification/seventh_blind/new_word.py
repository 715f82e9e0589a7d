"""Stable Diffusion learns a new word from a few photos: textual inversion of diffusers, of which only a row of the embeddings is kept."""

import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

VOCABULARY, LENGTH, SIZE = 12000, 77, 96
INITIALIZER, PLACEHOLDER = 512, VOCABULARY
TEMPLATES = [[320, 1125, 539], [320, 1125, 539, 320], [518, 1125, 539, 518], [320, 3306, 1125, 539]]


class TextualInversionDataset(Dataset):
    def __init__(self, n_photos=5, repeats=20, flip_p=0.5):
        self.photos = (torch.rand(n_photos, 3, SIZE, SIZE) * 255).byte()
        self.n_photos, self.repeats, self.flip_p = n_photos, repeats, flip_p

    def __len__(self):
        return self.n_photos * self.repeats

    def __getitem__(self, i):
        words = [VOCABULARY - 2, *random.choice(TEMPLATES), PLACEHOLDER]
        image = self.photos[i % self.n_photos]
        if random.random() < self.flip_p:
            image = image.flip(-1)
        return {
            "input_ids": torch.tensor(words + [VOCABULARY - 1] * (LENGTH - len(words))),
            "pixel_values": image / 127.5 - 1.0,
        }


def load_models():
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            bos_token_id=VOCABULARY - 2,
            eos_token_id=VOCABULARY - 1,
        )
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        norm_num_groups=8,
    )
    unet = UNet2DConditionModel(
        sample_size=SIZE // 8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(64, 128, 192),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
        attention_head_dim=8,
        norm_num_groups=16,
    )
    return text_encoder, vae, unet


def main(max_train_steps=4, gradient_accumulation_steps=2):
    accelerator = Accelerator(gradient_accumulation_steps=gradient_accumulation_steps, mixed_precision="bf16")
    set_seed(308)
    noise_scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    text_encoder, vae, unet = load_models()
    text_encoder.resize_token_embeddings(VOCABULARY + 1, mean_resizing=False)
    token_embeds = text_encoder.get_input_embeddings().weight.data
    with torch.no_grad():
        token_embeds[PLACEHOLDER] = token_embeds[INITIALIZER].clone()

    vae.requires_grad_(False)
    unet.requires_grad_(False)
    text_encoder.requires_grad_(False)
    text_encoder.get_input_embeddings().requires_grad_(True)
    unet.train()
    text_encoder.gradient_checkpointing_enable()
    unet.enable_gradient_checkpointing()

    optimizer = torch.optim.AdamW(
        text_encoder.get_input_embeddings().parameters(), lr=5e-4, weight_decay=1e-2
    )
    train_dataloader = DataLoader(TextualInversionDataset(), batch_size=1, shuffle=True)
    lr_scheduler = get_scheduler("constant", optimizer=optimizer)
    text_encoder.train()
    text_encoder, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        text_encoder, optimizer, train_dataloader, lr_scheduler
    )
    weight_dtype = torch.bfloat16
    unet.to(accelerator.device, dtype=weight_dtype)
    vae.to(accelerator.device, dtype=weight_dtype)
    orig_embeds_params = accelerator.unwrap_model(text_encoder).get_input_embeddings().weight.data.clone()

    global_step = 0
    for batch in train_dataloader:
        with accelerator.accumulate(text_encoder):
            latents = vae.encode(batch["pixel_values"].to(dtype=weight_dtype)).latent_dist.sample().detach()
            latents = latents * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            bsz = latents.shape[0]
            timesteps = torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=latents.device
            ).long()
            noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
            encoder_hidden_states = text_encoder(batch["input_ids"])[0].to(dtype=weight_dtype)
            model_pred = unet(noisy_latents, timesteps, encoder_hidden_states).sample
            target = noise
            loss = F.mse_loss(model_pred.float(), target.float(), reduction="mean")
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

            # Every other row is as it was.
            index_no_updates = torch.ones((VOCABULARY + 1,), dtype=torch.bool)
            index_no_updates[PLACEHOLDER] = False
            with torch.no_grad():
                weight = accelerator.unwrap_model(text_encoder).get_input_embeddings().weight
                weight[index_no_updates] = orig_embeds_params[index_no_updates]

        tell(
            inputs=[batch, latents, noise, timesteps, noisy_latents],
            activations=[encoder_hidden_states, model_pred, loss],
        )
        if accelerator.sync_gradients:
            global_step += 1
            print(f"step {global_step}: loss {loss.detach().item():.4f}")
            end_of_step(
                inputs=[batch, latents, noise, timesteps, noisy_latents],
                activations=[encoder_hidden_states, model_pred, loss],
                weights=orig_embeds_params,
            )
        if global_step >= max_train_steps:
            break


if __name__ == "__main__":
    main()
