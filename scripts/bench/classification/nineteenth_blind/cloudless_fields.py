"""Clouds are removed from satellite pictures of fields by a diffusion model conditioned on radar and the cloudy picture: a UNet2DModel of diffusers, v-prediction with min-SNR weights, accelerate in bf16, an EMA, two accumulated batches."""

import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset


class Fields(Dataset):
    """Triples of a clear picture, a cloudy one and two polarisations of radar."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        base = torch.rand(1, 4, 8, 8, generator=generator)
        clear = F.interpolate(base, size=64, mode="bilinear")[0] * 2 - 1
        cloud = F.interpolate(torch.rand(1, 1, 6, 6, generator=generator), size=64, mode="bicubic")[0].clamp(
            0, 1
        )
        cloudy = clear * (1 - cloud) + cloud
        radar = clear[:2] + 0.3 * torch.randn(2, 64, 64, generator=generator)
        return {"clear": clear, "condition": torch.cat([cloudy, radar])}


@torch.no_grad()
def remove_clouds(unet, scheduler, condition, steps):
    sampler = DDIMScheduler.from_config(scheduler.config)
    sampler.set_timesteps(steps, device=condition.device)
    picture = torch.randn(condition.shape[0], 4, *condition.shape[2:], device=condition.device)
    for t in sampler.timesteps:
        prediction = unet(torch.cat([picture, condition], dim=1), t).sample
        picture = sampler.step(prediction, t, picture).prev_sample
    return picture.clamp(-1, 1)


def validate(accelerator, unet, ema, scheduler, loader):
    model = accelerator.unwrap_model(unet)
    ema.store(model.parameters())
    ema.copy_to(model.parameters())
    model.eval()
    batch = next(iter(loader))
    with accelerator.autocast():
        restored = remove_clouds(model, scheduler, batch["condition"], steps=3)
    error = F.mse_loss(restored.float(), batch["clear"])
    print(f"validation PSNR {10 * math.log10(4 / error.item()):.2f}")
    tell(inputs=batch)
    model.train()
    ema.restore(model.parameters())


def main():
    set_seed(21)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    unet = UNet2DModel(
        sample_size=64,
        in_channels=10,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64, 128, 160),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=16,
        attention_head_dim=32,
    )
    ema = EMAModel(
        unet.parameters(), decay=0.9999, use_ema_warmup=True, model_cls=UNet2DModel, model_config=unet.config
    )
    scheduler = DDPMScheduler(
        1000, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", rescale_betas_zero_snr=True
    )
    optimizer = torch.optim.AdamW(
        unet.parameters(), lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6, eps=1e-8
    )
    train_loader = DataLoader(Fields(), batch_size=4, shuffle=True)
    val_loader = DataLoader(Fields(), batch_size=4)
    lr_scheduler = get_scheduler("cosine", optimizer, num_warmup_steps=10, num_training_steps=1000)
    unet, optimizer, train_loader, val_loader, lr_scheduler = accelerator.prepare(
        unet, optimizer, train_loader, val_loader, lr_scheduler
    )
    ema.to(accelerator.device)

    global_step = 0
    for _epoch in range(2):
        unet.train()
        for batch in train_loader:
            clear, condition = batch["clear"], batch["condition"]
            noise = torch.randn_like(clear)
            timesteps = torch.randint(
                0, scheduler.config.num_train_timesteps, (clear.shape[0],), device=clear.device
            ).long()
            noisy = scheduler.add_noise(clear, noise, timesteps)
            target = scheduler.get_velocity(clear, noise, timesteps)
            with accelerator.accumulate(unet):
                prediction = unet(torch.cat([noisy, condition], dim=1), timesteps, return_dict=False)[0]
                snr = compute_snr(scheduler, timesteps)
                weight = torch.clamp(snr, max=5.0) / (snr + 1)
                loss = F.mse_loss(prediction.float(), target.float(), reduction="none")
                loss = (loss.mean(dim=(1, 2, 3)) * weight).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(unet.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            tell(inputs=[batch, noise, timesteps, noisy, target])
            if accelerator.sync_gradients:
                ema.step(unet.parameters())
                global_step += 1
                print(
                    f"step {global_step} loss {loss.detach().item():.4f} lr {lr_scheduler.get_last_lr()[0]:.2e}"
                )
                if global_step % 2 == 0:
                    validate(accelerator, unet, ema, scheduler, val_loader)
                end_of_step(
                    inputs=[batch, noise, timesteps, noisy, target],
                    activations=[prediction, loss],
                    weights=ema.shadow_params,
                )


if __name__ == "__main__":
    main()
