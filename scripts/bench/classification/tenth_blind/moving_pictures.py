"""Modules of motion are put into a frozen Stable Diffusion, as AnimateDiff does it: clips are encoded on the device, Accelerate in half precision, checkpoints, a clip drawn between."""

import argparse
import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMScheduler,
    MotionAdapter,
    UNet2DConditionModel,
    UNetMotionModel,
)
from diffusers.optimization import get_scheduler
from diffusers.training_utils import cast_training_params
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel

VOCABULARY, WORDS = 2000, 24


class Clips(Dataset):
    """Short videos with a caption each; a caption is left out now and then."""

    def __init__(self, n, n_frames, size, drop=0.1):
        self.n, self.n_frames, self.size, self.drop = n, n_frames, size, drop

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        start = torch.rand(3, self.size, self.size)
        shift = random.randint(1, 3)
        frames = torch.stack([start.roll(shift * f, dims=-1) for f in range(self.n_frames)])
        if random.random() < self.drop:
            ids = torch.full((WORDS,), VOCABULARY - 1)
        else:
            ids = torch.randint(VOCABULARY - 1, (WORDS,))
        return {"pixel_values": frames * 2 - 1, "input_ids": ids}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n_frames", type=int, default=4)
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--train_batch_size", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=6)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--validation_steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1003)
    return parser.parse_args()


def build_models(args):
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=WORDS,
        )
    )
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=4,
        sample_size=args.resolution,
    )
    widths = (96, 192)
    unet = UNet2DConditionModel(
        sample_size=args.resolution // 4,
        block_out_channels=widths,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=128,
        attention_head_dim=6,
    )
    adapter = MotionAdapter(
        block_out_channels=widths,
        motion_layers_per_block=1,
        motion_num_attention_heads=4,
        motion_max_seq_length=16,
    )
    return text_encoder, vae, UNetMotionModel.from_unet2d(unet, adapter)


@torch.no_grad()
def log_validation(unet, vae, text_encoder, noise_scheduler, args, accelerator, steps=2, guidance=7.5):
    scheduler = DDIMScheduler.from_config(noise_scheduler.config)
    scheduler.set_timesteps(steps, device=accelerator.device)
    ids = torch.randint(VOCABULARY - 1, (1, WORDS), device=accelerator.device)
    ids = torch.cat([torch.full_like(ids, VOCABULARY - 1), ids])
    prompt = text_encoder(ids).last_hidden_state.repeat_interleave(args.n_frames, dim=0)
    latents = torch.randn(
        1, 4, args.n_frames, args.resolution // 4, args.resolution // 4, device=accelerator.device
    )
    with accelerator.autocast():
        for t in scheduler.timesteps:
            noise_pred = unet(torch.cat([latents] * 2), t, encoder_hidden_states=prompt).sample
            uncond, cond = noise_pred.float().chunk(2)
            latents = scheduler.step(uncond + guidance * (cond - uncond), t, latents).prev_sample
    frames = latents.permute(0, 2, 1, 3, 4).flatten(0, 1).to(vae.dtype) / vae.config.scaling_factor
    video = vae.decode(frames).sample.float().clamp(-1, 1)
    accelerator.print(f"drawn: {tuple(video.shape)}, {video.std().item():.3f}")


def main():
    args = parse_args()
    accelerator = Accelerator(mixed_precision="fp16" if torch.cuda.is_available() else "no")
    set_seed(args.seed)
    weight_dtype = torch.float16 if accelerator.mixed_precision == "fp16" else torch.float32

    text_encoder, vae, unet = build_models(args)
    noise_scheduler = DDPMScheduler(beta_schedule="linear", steps_offset=1, clip_sample=False)
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    unet.requires_grad_(False)
    for name, parameter in unet.named_parameters():
        if "motion_modules" in name:
            parameter.requires_grad_(True)
    for frozen in (vae, text_encoder, unet):
        frozen.to(accelerator.device, dtype=weight_dtype)
    cast_training_params(unet, dtype=torch.float32)
    unet.enable_gradient_checkpointing()

    trainable = [p for p in unet.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.learning_rate, weight_decay=1e-2)
    dataset = Clips(32, args.n_frames, args.resolution)
    dataloader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)
    unet, optimizer, dataloader, lr_scheduler = accelerator.prepare(unet, optimizer, dataloader, lr_scheduler)

    global_step = 0
    unet.train()
    for batch in dataloader:
        with accelerator.accumulate(unet):
            pixel_values = batch["pixel_values"].to(weight_dtype)
            with torch.no_grad():
                latents = (
                    vae.encode(pixel_values.flatten(0, 1)).latent_dist.sample() * vae.config.scaling_factor
                )
                latents = latents.unflatten(0, pixel_values.shape[:2]).transpose(1, 2)
                encoder_hidden_states = text_encoder(batch["input_ids"]).last_hidden_state
                encoder_hidden_states = encoder_hidden_states.repeat_interleave(args.n_frames, dim=0)
            noise = torch.randn_like(latents)
            timesteps = torch.randint(0, 1000, (len(latents),), device=latents.device)
            noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
            model_pred = unet(noisy_latents, timesteps, encoder_hidden_states=encoder_hidden_states).sample
            loss = F.mse_loss(model_pred.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(trainable, args.max_grad_norm)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        end_of_step(
            inputs=[batch, pixel_values, latents, encoder_hidden_states, noise, timesteps, noisy_latents],
            activations=[model_pred, loss],
        )
        if accelerator.sync_gradients:
            global_step += 1
            accelerator.print(f"step {global_step}: {loss.item():.4f}")
            if global_step % args.validation_steps == 0:
                log_validation(unet, vae, text_encoder, noise_scheduler, args, accelerator)
            if global_step == args.max_train_steps:
                break


if __name__ == "__main__":
    main()
