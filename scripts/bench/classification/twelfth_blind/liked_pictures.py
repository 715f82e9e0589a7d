"""Stable Diffusion learns which of two pictures people liked better, as the script for Diffusion-DPO does it: LoRA on a frozen UNet, which without it is the reference, both pictures share noise and time, Accelerate in bfloat16, two batches to a step."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import cast_training_params
from peft import LoraConfig
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

VOCABULARY, WORDS = 4000, 24


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--train_batch_size", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=8)
    parser.add_argument("--vae_encode_batch_size", type=int, default=2)
    parser.add_argument("--beta_dpo", type=float, default=2500)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1204)
    return parser.parse_args([])


class Preferences(Dataset):
    """Two pictures of a caption, of which the first channels were liked."""

    def __init__(self, n, resolution):
        g = torch.Generator().manual_seed(1204)
        rough = torch.rand(n, 6, 12, 12, generator=g) * 2 - 1
        self.pairs = F.interpolate(rough, resolution, mode="bilinear").unflatten(1, (2, 3))
        self.captions = torch.randint(VOCABULARY - 2, (n, WORDS), generator=g)
        self.captions[:, -1] = VOCABULARY - 1

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return {"pixel_values": self.pairs[i].flatten(0, 1), "input_ids": self.captions[i]}


def build_models(resolution):
    text = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=WORDS,
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        sample_size=resolution,
    )
    unet = UNet2DConditionModel(
        sample_size=resolution // 4,
        block_out_channels=(96, 192),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=192,
        attention_head_dim=6,
    )
    return CLIPTextModel(text), vae, unet


def main():
    args = parse_args()
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision="bf16" if torch.cuda.is_available() else "no",
    )
    set_seed(args.seed)
    noise_scheduler = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    text_encoder, vae, unet = build_models(args.resolution)
    weight_dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    for frozen in (vae, text_encoder, unet):
        frozen.requires_grad_(False)
        frozen.to(accelerator.device, dtype=weight_dtype)

    targets = ["to_k", "to_q", "to_v", "to_out.0"]
    unet.add_adapter(
        LoraConfig(r=args.rank, lora_alpha=args.rank, init_lora_weights="gaussian", target_modules=targets)
    )
    cast_training_params(unet, dtype=torch.float32)
    lora_layers = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(lora_layers, lr=args.learning_rate, weight_decay=1e-2)
    dataset = Preferences(64, args.resolution)
    dataloader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True)
    lr_scheduler = get_scheduler("constant", optimizer)
    unet, optimizer, dataloader, lr_scheduler = accelerator.prepare(unet, optimizer, dataloader, lr_scheduler)

    global_step, implicit_acc_accumulated = 0, 0.0
    unet.train()
    for batch in dataloader:
        with accelerator.accumulate(unet):
            # both pictures of a pair go one after the other: first all that were liked
            pixel_values = batch["pixel_values"].to(dtype=weight_dtype)
            feed_pixel_values = torch.cat(pixel_values.chunk(2, dim=1))
            latents = []
            with torch.no_grad():
                for i in range(0, feed_pixel_values.shape[0], args.vae_encode_batch_size):
                    part = feed_pixel_values[i : i + args.vae_encode_batch_size]
                    latents.append(vae.encode(part).latent_dist.sample())
                latents = torch.cat(latents, dim=0) * vae.config.scaling_factor
            noise = torch.randn_like(latents).chunk(2)[0].repeat(2, 1, 1, 1)
            bsz = latents.shape[0] // 2
            timesteps = torch.randint(0, 1000, (bsz,), device=latents.device).repeat(2)
            noisy_model_input = noise_scheduler.add_noise(latents, noise, timesteps)
            with torch.no_grad():
                encoder_hidden_states = text_encoder(batch["input_ids"])[0].repeat(2, 1, 1)

            model_pred = unet(noisy_model_input, timesteps, encoder_hidden_states).sample
            model_losses = F.mse_loss(model_pred.float(), noise.float(), reduction="none")
            model_losses = model_losses.mean(dim=list(range(1, model_losses.ndim)))
            model_losses_w, model_losses_l = model_losses.chunk(2)
            model_diff = model_losses_w - model_losses_l

            accelerator.unwrap_model(unet).disable_adapters()
            with torch.no_grad():
                ref_preds = unet(noisy_model_input, timesteps, encoder_hidden_states).sample
                ref_loss = F.mse_loss(ref_preds.float(), noise.float(), reduction="none")
                ref_loss = ref_loss.mean(dim=list(range(1, ref_loss.ndim)))
                ref_losses_w, ref_losses_l = ref_loss.chunk(2)
                ref_diff = ref_losses_w - ref_losses_l
            accelerator.unwrap_model(unet).enable_adapters()

            inside_term = -0.5 * args.beta_dpo * (model_diff - ref_diff)
            loss = -F.logsigmoid(inside_term).mean()
            implicit_acc_accumulated += (inside_term > 0).float().mean().item()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(lora_layers, args.max_grad_norm)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        given = [batch, pixel_values, feed_pixel_values, latents, noise, timesteps, noisy_model_input]
        held = {
            "inputs": [*given, encoder_hidden_states],
            "activations": [model_pred, model_losses, model_diff, ref_preds, ref_loss, ref_diff, loss],
        }
        if not accelerator.sync_gradients:
            tell(**held)
            continue
        end_of_step(**held)
        global_step += 1
        accuracy = implicit_acc_accumulated / args.gradient_accumulation_steps
        print(f"step {global_step}: loss {loss.item():.4f}, implicit accuracy {accuracy:.2f}")
        implicit_acc_accumulated = 0.0
        if global_step >= args.max_train_steps:
            break


if __name__ == "__main__":
    main()
