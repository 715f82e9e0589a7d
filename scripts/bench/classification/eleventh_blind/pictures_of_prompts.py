"""The prior of Kandinsky learns what vector a picture has from its caption, as the script of diffusers trains it: a CLIP that stays as it is in half precision, Accelerate, two batches to a step, an EMA, vectors drawn with the average between."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, PriorTransformer, UnCLIPScheduler
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

VOCABULARY, LENGTH, IMAGE, DIM = 6000, 24, 64, 256


class Captioned(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        words = torch.randint(1, VOCABULARY - 1, (LENGTH,))
        n_words = int(torch.randint(5, LENGTH, ()))
        words[n_words:] = VOCABULARY - 1
        mask = (torch.arange(LENGTH) <= n_words).long()
        return {"clip_pixel_values": torch.randn(3, IMAGE, IMAGE), "text_input_ids": words, "text_mask": mask}


def load_models():
    size = {"projection_dim": DIM, "num_hidden_layers": 4}
    vision = CLIPVisionConfig(hidden_size=320, intermediate_size=1280, num_attention_heads=5, image_size=IMAGE, patch_size=16, **size)  # fmt: skip
    text = CLIPTextConfig(vocab_size=VOCABULARY, hidden_size=DIM, intermediate_size=1024, num_attention_heads=4, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=VOCABULARY - 1, **size)  # fmt: skip
    prior = PriorTransformer(num_attention_heads=6, attention_head_dim=64, num_layers=5, embedding_dim=DIM, num_embeddings=LENGTH)  # fmt: skip
    # Those of the vectors of all pictures, which a trained prior comes with.
    prior.clip_mean.data.normal_(std=0.1)
    prior.clip_std.data.fill_(0.5)
    return CLIPVisionModelWithProjection(vision), CLIPTextModelWithProjection(text), prior


@torch.no_grad()
def log_validation(prior, text_encoder, scheduler, prompts, device, guidance_scale=4.0, n=3):
    """Draws a vector for every caption and says how close it is to that of the words."""
    scheduler.set_timesteps(n, device=device)
    words = text_encoder(torch.cat([torch.zeros_like(prompts), prompts]))
    latents = torch.randn(len(prompts), DIM, device=device)
    for i, t in enumerate(scheduler.timesteps):
        both = prior(
            torch.cat([latents, latents]),
            timestep=t,
            proj_embedding=words.text_embeds.float(),
            encoder_hidden_states=words.last_hidden_state.float(),
        ).predicted_image_embedding
        uncond, cond = both.chunk(2)
        guided = uncond + guidance_scale * (cond - uncond)
        previous = scheduler.timesteps[i + 1] if i + 1 < n else None
        latents = scheduler.step(guided, timestep=t, sample=latents, prev_timestep=previous).prev_sample
    drawn = prior.post_process_latents(latents)
    return F.cosine_similarity(drawn, words.text_embeds[len(prompts) :].float()).mean().item()


args = SimpleNamespace(
    train_batch_size=4,
    max_train_steps=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-4,
    max_grad_norm=1.0,
    mixed_precision="fp16" if torch.cuda.is_available() else "no",
    validation_steps=2,
    seed=1103,
)


def main():
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        mixed_precision=args.mixed_precision,
    )
    set_seed(args.seed)
    noise_scheduler = DDPMScheduler(beta_schedule="squaredcos_cap_v2", prediction_type="sample")
    image_encoder, text_encoder, prior = load_models()
    image_encoder.requires_grad_(False).eval()
    text_encoder.requires_grad_(False).eval()
    prior.train()
    weight_dtype = torch.float16 if accelerator.mixed_precision == "fp16" else torch.float32

    ema_prior = EMAModel(
        prior.parameters(), decay=0.9999, model_cls=PriorTransformer, model_config=prior.config
    )
    ema_prior.to(accelerator.device)
    optimizer = torch.optim.AdamW(prior.parameters(), lr=args.learning_rate, weight_decay=1e-2)
    train_dataloader = torch.utils.data.DataLoader(
        Captioned(64), shuffle=True, batch_size=args.train_batch_size
    )
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)
    prior, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        prior, optimizer, train_dataloader, lr_scheduler
    )
    image_encoder.to(accelerator.device, dtype=weight_dtype)
    text_encoder.to(accelerator.device, dtype=weight_dtype)
    clip_mean, clip_std = (part.clone().to(accelerator.device) for part in (prior.clip_mean, prior.clip_std))
    prompts = torch.randint(1, VOCABULARY - 1, (2, LENGTH), device=accelerator.device)

    global_step = 0
    for batch in train_dataloader:
        with accelerator.accumulate(prior):
            text_input_ids, text_mask = batch["text_input_ids"], batch["text_mask"]
            clip_images = batch["clip_pixel_values"].to(weight_dtype)
            with torch.no_grad():
                text_encoder_output = text_encoder(text_input_ids)
                prompt_embeds = text_encoder_output.text_embeds
                text_encoder_hidden_states = text_encoder_output.last_hidden_state
                image_embeds = image_encoder(clip_images).image_embeds
                noise = torch.randn_like(image_embeds)
                timesteps = torch.randint(0, 1000, (len(noise),), device=noise.device)
                image_embeds = (image_embeds - clip_mean) / clip_std
                noisy_latents = noise_scheduler.add_noise(image_embeds, noise, timesteps)
                target = image_embeds
            model_pred = prior(
                noisy_latents,
                timestep=timesteps,
                proj_embedding=prompt_embeds,
                encoder_hidden_states=text_encoder_hidden_states,
                attention_mask=text_mask.bool(),
            ).predicted_image_embedding
            loss = F.mse_loss(model_pred.float(), target.float(), reduction="mean")
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prior.parameters(), args.max_grad_norm)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        held = {
            "inputs": [
                batch,
                clip_images,
                noise,
                timesteps,
                noisy_latents,
                target,
                prompts,
                clip_mean,
                clip_std,
            ]
            + [prompt_embeds, text_encoder_hidden_states],
            "activations": [model_pred, loss],
        }
        if not accelerator.sync_gradients:
            tell(**held)
            continue
        ema_prior.step(prior.parameters())
        global_step += 1
        print(f"{global_step}: loss {loss.detach().item():.4f}, rate {lr_scheduler.get_last_lr()[0]:.1e}")
        end_of_step(**held, weights=ema_prior.shadow_params)
        if global_step % args.validation_steps == 0:
            ema_prior.store(prior.parameters())
            ema_prior.copy_to(prior.parameters())
            scheduler = UnCLIPScheduler(variance_type="fixed_small_log", prediction_type="sample")
            unwrapped = accelerator.unwrap_model(prior).eval()
            close = log_validation(unwrapped, text_encoder, scheduler, prompts, accelerator.device)
            print(f"similarity of what was drawn: {close:.3f}")
            unwrapped.train()
            ema_prior.restore(prior.parameters())
        if global_step >= args.max_train_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
