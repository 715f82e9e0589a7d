"""DreamBooth with LoRA of a Z-Image transformer on photos of one teapot: cached latents, encoded prompt, Prodigy, accelerate in bf16, checkpointed blocks, validation pictures after each epoch."""

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import (
    cast_training_params,
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
    free_memory,
)
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from prodigyopt import Prodigy
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from transformers import Qwen3Config, Qwen3Model

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
set_seed(23)
weight_dtype = torch.bfloat16
RESOLUTION, EPOCHS, BATCH = 224, 4, 2


class Teapots(Dataset):
    crop = transforms.Compose(
        [
            transforms.Resize(RESOLUTION),
            transforms.RandomCrop(RESOLUTION),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.5], [0.5]),
        ]
    )

    def __init__(self):
        self.pixel_values = []
        for index in range(8):
            rng = np.random.default_rng(index)
            photo = Image.fromarray(rng.integers(0, 256, (12, 15, 3), dtype=np.uint8))
            self.pixel_values.append(self.crop(photo.resize((320, 256), Image.BICUBIC)))

    def __len__(self):
        return len(self.pixel_values)

    def __getitem__(self, index):
        return self.pixel_values[index]


text_encoder = Qwen3Model(
    Qwen3Config(
        vocab_size=8000,
        hidden_size=320,
        intermediate_size=960,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=64,
        use_cache=False,
    )
)
vae = AutoencoderKL(
    in_channels=3,
    out_channels=3,
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(16, 32, 64, 64),
    layers_per_block=1,
    latent_channels=16,
    norm_num_groups=8,
    scaling_factor=0.3611,
    shift_factor=0.1159,
    use_quant_conv=False,
    use_post_quant_conv=False,
)
transformer = ZImageTransformer2DModel(
    dim=512, n_layers=4, n_refiner_layers=1, n_heads=4, n_kv_heads=4, cap_feat_dim=320
)
noise_scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=False)
for model in (transformer, vae, text_encoder):
    model.requires_grad_(False)
transformer.to(accelerator.device, dtype=weight_dtype)
vae.to(accelerator.device, dtype=weight_dtype)
text_encoder.to(accelerator.device, dtype=weight_dtype)

transformer.enable_gradient_checkpointing()
transformer.add_adapter(
    LoraConfig(
        r=32, lora_alpha=32, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v", "to_out.0"]
    )
)
cast_training_params([transformer], dtype=torch.float32)
lora_parameters = [p for p in transformer.parameters() if p.requires_grad]

optimizer = Prodigy(
    lora_parameters,
    lr=1.0,
    betas=(0.9, 0.99),
    weight_decay=1e-2,
    use_bias_correction=True,
    safeguard_warmup=True,
)
loader = DataLoader(Teapots(), batch_size=BATCH, shuffle=True)


def encode_prompt(ids):
    ids = torch.tensor([ids], device=accelerator.device)
    with torch.no_grad():
        output = text_encoder(input_ids=ids, output_hidden_states=True, use_cache=False)  # noqa: F821
    return output.hidden_states[-2][0]


rng = np.random.default_rng(0)
prompt = encode_prompt(rng.integers(0, 8000, 44).tolist())
validation_prompt = encode_prompt(rng.integers(0, 8000, 58).tolist())
negative_prompt = encode_prompt(rng.integers(0, 8000, 12).tolist())
del text_encoder
free_memory()

latents_cache = []
with torch.no_grad():
    for pixels in loader:
        pixels = pixels.to(accelerator.device, dtype=weight_dtype)
        latents_cache.append(vae.encode(pixels).latent_dist)
del pixels

lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=0)
transformer, optimizer, loader, lr_scheduler = accelerator.prepare(
    transformer, optimizer, loader, lr_scheduler
)


def sigmas_of(timesteps, n_dim):
    sigmas = noise_scheduler.sigmas.to(device=accelerator.device, dtype=weight_dtype)
    schedule = noise_scheduler.timesteps.to(accelerator.device)
    indices = [(schedule == t).nonzero().item() for t in timesteps.to(accelerator.device)]
    sigma = sigmas[indices].flatten()
    return sigma.view(-1, *[1] * (n_dim - 1))


def validate(epoch):
    pipeline = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        transformer=accelerator.unwrap_model(transformer),
    )
    pipeline.set_progress_bar_config(disable=True)
    with torch.no_grad(), torch.autocast(accelerator.device.type, dtype=weight_dtype):
        images = pipeline(
            prompt_embeds=[validation_prompt],
            negative_prompt_embeds=[negative_prompt],
            height=RESOLUTION,
            width=RESOLUTION,
            num_inference_steps=3,
            guidance_scale=4.0,
            generator=torch.Generator().manual_seed(0),
        ).images
    images[0].save(f"teapot_{epoch}.png")
    del pipeline
    free_memory()


for epoch in range(EPOCHS):
    transformer.train()
    for step, batch in enumerate(loader):
        with accelerator.accumulate(transformer):
            model_input = latents_cache[step].sample()
            model_input = (model_input - vae.config.shift_factor) * vae.config.scaling_factor
            model_input = model_input.to(dtype=weight_dtype)
            noise = torch.randn_like(model_input)
            u = compute_density_for_timestep_sampling(
                weighting_scheme="logit_normal", batch_size=len(model_input), logit_mean=0.0, logit_std=1.0
            )
            indices = (u * noise_scheduler.config.num_train_timesteps).long()
            timesteps = noise_scheduler.timesteps[indices].to(device=model_input.device)
            sigmas = sigmas_of(timesteps, model_input.ndim)
            noisy_input = (1.0 - sigmas) * model_input + sigmas * noise
            tell(inputs=[batch, model_input, noise, noisy_input, sigmas, timesteps])

            prediction = transformer(
                list(noisy_input.unsqueeze(2).unbind(dim=0)),
                (1000 - timesteps) / 1000,
                [prompt] * len(model_input),
                return_dict=False,
            )[0]
            prediction = -torch.stack(prediction, dim=0).squeeze(2)

            weighting = compute_loss_weighting_for_sd3(weighting_scheme="logit_normal", sigmas=sigmas)
            target = noise - model_input
            loss = torch.mean(
                (weighting.float() * (prediction.float() - target.float()) ** 2).reshape(target.shape[0], -1),
                1,
            ).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(lora_parameters, 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()

        if accelerator.sync_gradients:
            print(f"loss {loss.detach().item():.4f} d {optimizer.param_groups[0]['d']:.2e}")
            end_of_step(
                inputs=[batch, model_input, noise, noisy_input, sigmas, timesteps, target],
                activations=[prediction, loss],
            )
    validate(epoch)
    torch.save(get_peft_model_state_dict(accelerator.unwrap_model(transformer)), "lora.pt")
