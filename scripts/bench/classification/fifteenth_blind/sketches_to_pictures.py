"""A T2I adapter that lets sketches steer a frozen SDXL, trained with accelerate; its prompts are encoded before training."""

import gc
import zlib

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from diffusers import (
    AutoencoderKL,
    DDPMScheduler,
    EulerDiscreteScheduler,
    StableDiffusionXLAdapterPipeline,
    T2IAdapter,
    UNet2DConditionModel,
)
from diffusers.training_utils import EMAModel, compute_snr
from programs import end_of_step, tell
from schedulefree import AdamWScheduleFree
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

RESOLUTION, BATCH, ACCUMULATION, MAX_STEPS, VALIDATE_EVERY = 224, 2, 2, 40, 2
SUBJECTS = ("a lighthouse", "a red bicycle", "two foxes", "an old harbour", "a teapot", "a mountain hut")
STYLES = ("in watercolour", "as a photo", "in pastel", "at night")


def tokenize(captions: list[str], length: int = 77, vocabulary: int = 4000) -> torch.Tensor:
    rows = []
    for caption in captions:
        words = [1] + [2 + zlib.crc32(word.encode()) % (vocabulary - 3) for word in caption.split()]
        rows.append((words + [vocabulary - 1] * length)[:length])
    return torch.tensor(rows)


def build_models():
    """The parts of SDXL, each smaller than in the original."""
    text = dict(
        vocab_size=4000, num_attention_heads=4, max_position_embeddings=77, bos_token_id=1, eos_token_id=3999
    )
    encoder_one = CLIPTextModel(
        CLIPTextConfig(hidden_size=128, intermediate_size=512, num_hidden_layers=3, **text)
    )
    encoder_two = CLIPTextModelWithProjection(
        CLIPTextConfig(
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            projection_dim=256,
            hidden_act="gelu",
            **text,
        )
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 64, 64, 64),
        layers_per_block=1,
        latent_channels=4,
        sample_size=RESOLUTION,
        scaling_factor=0.13025,
    )
    unet = UNet2DConditionModel(
        sample_size=RESOLUTION // 8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(64, 128, 256),
        layers_per_block=1,
        transformer_layers_per_block=(1, 1, 2),
        attention_head_dim=(1, 2, 4),
        cross_attention_dim=384,
        addition_embed_type="text_time",
        addition_time_embed_dim=64,
        projection_class_embeddings_input_dim=256 + 6 * 64,
        use_linear_projection=True,
    )
    adapter = T2IAdapter(
        in_channels=3,
        channels=(64, 128, 256, 256),
        num_res_blocks=2,
        downscale_factor=16,
        adapter_type="full_adapter_xl",
    )
    return encoder_one, encoder_two, vae, unet, adapter


@torch.no_grad()
def encode_prompts(captions, encoders, device):
    ids = tokenize(captions).to(device)
    embeds = []
    for encoder in encoders:
        output = encoder(ids, output_hidden_states=True)
        pooled = output[0]
        embeds.append(output.hidden_states[-2])
    return torch.cat(embeds, dim=-1).cpu(), pooled.cpu()


class Sketches(Dataset):
    def __init__(self, captions, prompt_embeds, pooled) -> None:
        self.captions, self.prompt_embeds, self.pooled = captions, prompt_embeds, pooled

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        picture = np.full((RESOLUTION, RESOLUTION, 3), rng.integers(180, 255, 3), dtype=np.uint8)
        for _ in range(5):
            x, y, r = (int(v) for v in rng.integers(10, RESOLUTION - 10, 3))
            cv2.circle(picture, (x, y), r // 4 + 4, tuple(int(c) for c in rng.integers(0, 255, 3)), -1)
        sketch = cv2.Canny(cv2.GaussianBlur(picture, (5, 5), 0), 60, 140)
        return {
            "pixel_values": torch.from_numpy(picture).permute(2, 0, 1) / 127.5 - 1,
            "sketch": torch.from_numpy(sketch)[None].expand(3, -1, -1) / 255,
            "prompt_embeds": self.prompt_embeds[index],
            "text_embeds": self.pooled[index],
            "time_ids": torch.tensor(
                [RESOLUTION, RESOLUTION, 0, 0, RESOLUTION, RESOLUTION], dtype=torch.float32
            ),
        }


@torch.no_grad()
def validate(adapter, unet, vae, sample, accelerator, dtype) -> None:
    pipeline = StableDiffusionXLAdapterPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=unet,
        adapter=accelerator.unwrap_model(adapter),
        scheduler=EulerDiscreteScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012),
        force_zeros_for_empty_prompt=True,
    )
    pipeline.set_progress_bar_config(disable=True)
    prompt = sample["prompt_embeds"][None].to(accelerator.device, dtype)
    pooled = sample["text_embeds"][None].to(accelerator.device, dtype)
    with torch.autocast("cuda", dtype=dtype):
        images = pipeline(
            prompt_embeds=prompt,
            pooled_prompt_embeds=pooled,
            negative_prompt_embeds=torch.zeros_like(prompt),
            negative_pooled_prompt_embeds=torch.zeros_like(pooled),
            image=sample["sketch"][None],
            height=RESOLUTION,
            width=RESOLUTION,
            num_inference_steps=3,
            guidance_scale=6.0,
            adapter_conditioning_scale=0.9,
            generator=torch.Generator("cuda").manual_seed(0),
        ).images
    images[0].save("validation.png")
    tell(inputs=[prompt, pooled])
    del pipeline
    gc.collect()


def main() -> None:
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=ACCUMULATION,
        project_config=ProjectConfiguration(project_dir="adapter"),
    )
    set_seed(11)
    device, dtype = accelerator.device, torch.bfloat16
    encoder_one, encoder_two, vae, unet, adapter = build_models()
    for frozen in (encoder_one, encoder_two, vae, unet):
        frozen.requires_grad_(False)
    vae.to(device, dtype=torch.float32)
    unet.to(device, dtype=dtype)
    encoder_one.to(device, dtype=dtype), encoder_two.to(device, dtype=dtype)
    unet.train()
    unet.enable_gradient_checkpointing()
    adapter.train()

    captions = [f"{subject} {style}" for subject in SUBJECTS for style in STYLES]
    prompt_embeds, pooled = encode_prompts(captions, (encoder_one, encoder_two), device)
    del encoder_one, encoder_two
    gc.collect()
    torch.cuda.empty_cache()

    data = Sketches(captions, prompt_embeds, pooled)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)
    noise_scheduler = DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    optimizer = AdamWScheduleFree(adapter.parameters(), lr=1e-4, weight_decay=1e-2, warmup_steps=10)
    adapter, optimizer, loader = accelerator.prepare(adapter, optimizer, loader)
    ema = EMAModel(accelerator.unwrap_model(adapter).parameters(), decay=0.999, use_ema_warmup=True)
    ema.to(device)

    step = 0
    optimizer.train()
    while step < MAX_STEPS:
        for batch in loader:
            with accelerator.accumulate(adapter):
                with torch.no_grad():
                    latents = (
                        vae.encode(batch["pixel_values"]).latent_dist.sample() * vae.config.scaling_factor
                    )
                latents = latents.to(dtype)
                noise = torch.randn_like(latents)
                chance = torch.rand(len(latents), device=device)
                timesteps = (
                    ((1 - chance**3) * noise_scheduler.config.num_train_timesteps).long().clamp(0, 999)
                )
                noisy = noise_scheduler.add_noise(latents, noise, timesteps)

                residuals = adapter(batch["sketch"].to(dtype))
                prediction = unet(
                    noisy,
                    timesteps,
                    encoder_hidden_states=batch["prompt_embeds"].to(dtype),
                    added_cond_kwargs={"text_embeds": batch["text_embeds"], "time_ids": batch["time_ids"]},
                    down_intrablock_additional_residuals=[residual.to(dtype) for residual in residuals],
                    return_dict=False,
                )[0]
                snr = compute_snr(noise_scheduler, timesteps)
                weight = torch.clamp(snr, max=5.0) / snr
                loss = F.mse_loss(prediction.float(), noise.float(), reduction="none").mean(dim=(1, 2, 3))
                loss = (loss * weight).mean()

                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(adapter.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

            if accelerator.sync_gradients:
                ema.step(accelerator.unwrap_model(adapter).parameters())
                step += 1
                if step % VALIDATE_EVERY == 0:
                    optimizer.eval()
                    ema.store(accelerator.unwrap_model(adapter).parameters())
                    ema.copy_to(accelerator.unwrap_model(adapter).parameters())
                    validate(adapter, unet, vae, data[0], accelerator, dtype)
                    ema.restore(accelerator.unwrap_model(adapter).parameters())
                    optimizer.train()
                    print(f"step {step} loss {loss.item():.4f}")
                end_of_step(
                    inputs=[batch, noise, timesteps, noisy],
                    activations=[residuals, prediction, loss],
                    weights=[ema.shadow_params],
                )
                if step >= MAX_STEPS:
                    break
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(adapter).save_pretrained("adapter")


if __name__ == "__main__":
    main()
