"""A UNet of diffusers learns to remove noise; an average of its weights is kept by the library."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from programs import end_of_step
from torch.nn import functional

torch.manual_seed(20)
model = UNet2DModel(
    sample_size=32,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(64, 128, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
).to("cuda")
average = EMAModel(model.parameters(), decay=0.999)
average.to("cuda")
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 20)
for _ in range(5):
    images = torch.rand(8, 3, 32, 32).to("cuda") * 2 - 1
    noise = torch.randn_like(images)
    steps = torch.randint(0, 1000, (8,), device="cuda").long()
    noisy = noise_scheduler.add_noise(images, noise, steps)
    loss = functional.mse_loss(model(noisy, steps, return_dict=False)[0], noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    average.step(model.parameters())
    end_of_step(inputs=[images, noise, steps, noisy], activations=[loss], weights=average.shadow_params)
