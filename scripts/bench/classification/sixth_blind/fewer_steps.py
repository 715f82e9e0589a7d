"""A UNet is distilled to draw in a few steps, as latent consistency models are: a frozen teacher, a slow target, Huber's loss."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

N_WORDS, WIDTH, N_DDIM = 24, 160, 50


class Latents(Dataset):
    """Latents and vectors of captions, computed before."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return torch.randn(4, 32, 32) * 0.9, torch.randn(N_WORDS, WIDTH)


def build_unet(time_cond_proj_dim=None):
    return UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128, 192),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        attention_head_dim=4,
        norm_num_groups=16,
        cross_attention_dim=WIDTH,
        time_cond_proj_dim=time_cond_proj_dim,
    )


class DDIMSolver:
    def __init__(self, alpha_cumprods, timesteps=1000, ddim_timesteps=N_DDIM):
        step_ratio = timesteps // ddim_timesteps
        self.ddim_timesteps = torch.arange(1, ddim_timesteps + 1) * step_ratio - 1
        self.alpha_cumprods = alpha_cumprods[self.ddim_timesteps]
        self.alpha_cumprods_prev = torch.cat((alpha_cumprods[:1], self.alpha_cumprods[:-1]))

    def to(self, device):
        self.ddim_timesteps = self.ddim_timesteps.to(device)
        self.alpha_cumprods = self.alpha_cumprods.to(device)
        self.alpha_cumprods_prev = self.alpha_cumprods_prev.to(device)
        return self

    def ddim_step(self, pred_x0, pred_noise, index):
        alpha = self.alpha_cumprods_prev[index].view(-1, 1, 1, 1)
        return alpha.sqrt() * pred_x0 + (1.0 - alpha).sqrt() * pred_noise


def scalings_for_boundary_conditions(timestep, sigma_data=0.5, timestep_scaling=10.0):
    scaled = timestep * timestep_scaling
    c_skip = sigma_data**2 / (scaled**2 + sigma_data**2)
    c_out = scaled / (scaled**2 + sigma_data**2) ** 0.5
    return c_skip.view(-1, 1, 1, 1), c_out.view(-1, 1, 1, 1)


def predicted(noise_pred, timesteps, sample, alphas, sigmas):
    """What a prediction of noise says of the picture."""
    alpha, sigma = alphas[timesteps].view(-1, 1, 1, 1), sigmas[timesteps].view(-1, 1, 1, 1)
    return (sample - sigma * noise_pred) / alpha


def guidance_scale_embedding(w, embedding_dim=128):
    half = embedding_dim // 2
    emb = torch.exp(torch.arange(half, device=w.device) * -(torch.log(torch.tensor(10000.0)) / (half - 1)))
    emb = (w * 1000.0)[:, None] * emb[None, :]
    return torch.cat((emb.sin(), emb.cos()), dim=1)


@torch.no_grad()
def update_ema(target_params, source_params, rate=0.95):
    for targ, src in zip(target_params, source_params):
        targ.detach().mul_(rate).add_(src, alpha=1 - rate)


def main(max_train_steps=4, huber_c=0.001):
    accelerator = Accelerator(mixed_precision="bf16")
    set_seed(211)
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="scaled_linear")
    alpha_schedule = torch.sqrt(noise_scheduler.alphas_cumprod)
    sigma_schedule = torch.sqrt(1.0 - noise_scheduler.alphas_cumprod)
    solver = DDIMSolver(noise_scheduler.alphas_cumprod)
    teacher_unet = build_unet()
    teacher_unet.requires_grad_(False)
    unet = build_unet(time_cond_proj_dim=128)
    unet.load_state_dict(teacher_unet.state_dict(), strict=False)
    unet.train()
    target_unet = build_unet(time_cond_proj_dim=128)
    target_unet.load_state_dict(unet.state_dict())
    target_unet.train()
    target_unet.requires_grad_(False)
    device = accelerator.device
    target_unet.to(device)
    teacher_unet.to(device, dtype=torch.bfloat16)
    alpha_schedule, sigma_schedule = alpha_schedule.to(device), sigma_schedule.to(device)
    solver = solver.to(device)

    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5, weight_decay=0.0)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer=optimizer, num_warmup_steps=2)
    loader = DataLoader(Latents(64), batch_size=6, shuffle=True)
    unet, optimizer, lr_scheduler, loader = accelerator.prepare(unet, optimizer, lr_scheduler, loader)
    uncond_prompt_embeds = torch.zeros(6, N_WORDS, WIDTH, device=device)
    for step, (latents, prompt_embeds) in enumerate(loader):
        bsz = latents.shape[0]
        noise = torch.randn_like(latents)
        index = torch.randint(0, N_DDIM, (bsz,), device=device).long()
        start_timesteps = solver.ddim_timesteps[index]
        timesteps = torch.clamp(start_timesteps - 1000 // N_DDIM, min=0)
        c_skip_start, c_out_start = scalings_for_boundary_conditions(start_timesteps)
        c_skip, c_out = scalings_for_boundary_conditions(timesteps)
        noisy = noise_scheduler.add_noise(latents, noise, start_timesteps)
        w = 5.0 + 10.0 * torch.rand(bsz, device=device)
        w_embedding = guidance_scale_embedding(w)
        w = w.view(-1, 1, 1, 1)

        noise_pred = unet(
            noisy, start_timesteps, timestep_cond=w_embedding, encoder_hidden_states=prompt_embeds
        ).sample
        pred_x0 = predicted(noise_pred, start_timesteps, noisy, alpha_schedule, sigma_schedule)
        model_pred = c_skip_start * noisy + c_out_start * pred_x0

        with torch.no_grad():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                cond = teacher_unet(noisy, start_timesteps, encoder_hidden_states=prompt_embeds).sample
                uncond = teacher_unet(
                    noisy, start_timesteps, encoder_hidden_states=uncond_prompt_embeds
                ).sample
            cond_x0 = predicted(cond.float(), start_timesteps, noisy, alpha_schedule, sigma_schedule)
            uncond_x0 = predicted(uncond.float(), start_timesteps, noisy, alpha_schedule, sigma_schedule)
            guided_x0 = cond_x0 + w * (cond_x0 - uncond_x0)
            guided_noise = cond.float() + w * (cond.float() - uncond.float())
            x_prev = solver.ddim_step(guided_x0, guided_noise, index)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                target_noise = target_unet(
                    x_prev, timesteps, timestep_cond=w_embedding, encoder_hidden_states=prompt_embeds
                ).sample
            target_x0 = predicted(target_noise.float(), timesteps, x_prev, alpha_schedule, sigma_schedule)
            target = c_skip * x_prev + c_out * target_x0

        loss = torch.mean(torch.sqrt((model_pred.float() - target.float()) ** 2 + huber_c**2) - huber_c)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        update_ema(target_unet.parameters(), unet.parameters())
        print(f"step {step}: loss {loss.detach().item():.4f}")
        end_of_step(
            inputs=[latents, prompt_embeds, uncond_prompt_embeds, noise, noisy, index, timesteps]
            + [start_timesteps, w, w_embedding, alpha_schedule, sigma_schedule],
            activations=[noise_pred, pred_x0, model_pred, cond, uncond, cond_x0, uncond_x0, guided_x0]
            + [guided_noise, x_prev, target_noise, target_x0, target, loss],
        )
        if step + 1 == max_train_steps:
            break


if __name__ == "__main__":
    main()
