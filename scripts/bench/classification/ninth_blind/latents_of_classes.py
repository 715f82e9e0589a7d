"""A DiT draws what class it is told: latents that were computed before, checkpointed blocks, weights by SNR, an average by hand, samples with guidance between."""

import argparse
from collections import OrderedDict
from copy import deepcopy

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import DDPMScheduler, DiTTransformer2DModel, DPMSolverMultistepScheduler
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.optimization import get_scheduler
from diffusers.training_utils import compute_snr
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

SCALING_FACTOR = 0.18215


class CachedMoments(Dataset):
    """What the encoder said of every picture: mean and log variance."""

    def __init__(self, n, latent_size, num_classes):
        self.moments = torch.randn(n, 8, latent_size, latent_size, dtype=torch.float16)
        self.labels = torch.randint(num_classes, (n,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.moments[i].float(), self.labels[i]


@torch.no_grad()
def update_ema(ema_model, model, decay=0.9999):
    ema_params = OrderedDict(ema_model.named_parameters())
    model_params = OrderedDict(model.named_parameters())
    for name, param in model_params.items():
        ema_params[name].mul_(decay).add_(param.data, alpha=1 - decay)


def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag


@torch.no_grad()
def sample(model, noise_scheduler, labels, num_classes, latent_size, device, cfg_scale=4.0, steps=3):
    scheduler = DPMSolverMultistepScheduler.from_config(noise_scheduler.config)
    scheduler.set_timesteps(steps, device=device)
    z = torch.randn(len(labels), 4, latent_size, latent_size, device=device)
    y = torch.cat([labels, torch.full_like(labels, num_classes)])
    for t in scheduler.timesteps:
        eps = model(torch.cat([z, z]), t.expand(len(y)), class_labels=y).sample
        cond, uncond = eps.chunk(2)
        z = scheduler.step(uncond + cfg_scale * (cond - uncond), t, z).prev_sample
    return z / SCALING_FACTOR


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latent-size", type=int, default=16)
    parser.add_argument("--num-classes", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--global-seed", type=int, default=902)
    parser.add_argument("--class-dropout-prob", type=float, default=0.1)
    parser.add_argument("--snr-gamma", type=float, default=5.0)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--sample-every", type=int, default=2)
    return parser.parse_args()


def main(args):
    accelerator = Accelerator(mixed_precision="bf16")
    device = accelerator.device
    set_seed(args.global_seed)

    model = DiTTransformer2DModel(
        num_attention_heads=8,
        attention_head_dim=32,
        in_channels=4,
        out_channels=4,
        num_layers=6,
        sample_size=args.latent_size,
        patch_size=2,
        # The last row stands for no class.
        num_embeds_ada_norm=args.num_classes,
    ).to(device)
    ema = deepcopy(model).to(device)
    requires_grad(ema, False)
    model.enable_gradient_checkpointing()
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000, beta_schedule="linear")
    accelerator.print(f"DiT parameters: {sum(p.numel() for p in model.parameters()):,}")

    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    loader = DataLoader(
        CachedMoments(32, args.latent_size, args.num_classes),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    lr_scheduler = get_scheduler("constant_with_warmup", opt, num_warmup_steps=2)
    update_ema(ema, model, decay=0)
    model.train()
    ema.eval()
    model, opt, loader, lr_scheduler = accelerator.prepare(model, opt, loader, lr_scheduler)

    train_steps = 0
    for epoch in range(args.epochs):
        accelerator.print(f"beginning epoch {epoch}")
        for moments, y in loader:
            x = DiagonalGaussianDistribution(moments).sample().mul_(SCALING_FACTOR)
            drop = torch.rand(y.shape[0], device=device) < args.class_dropout_prob
            labels = torch.where(drop, args.num_classes, y)
            t = torch.randint(0, 1000, (x.shape[0],), device=device)
            noise = torch.randn_like(x)
            x_t = noise_scheduler.add_noise(x, noise, t)

            model_output = model(x_t, t, class_labels=labels).sample
            snr = compute_snr(noise_scheduler, t)
            mse_loss_weights = torch.stack([snr, args.snr_gamma * torch.ones_like(t)], dim=1).min(dim=1)[0]
            mse_loss_weights = mse_loss_weights / snr
            loss = F.mse_loss(model_output.float(), noise.float(), reduction="none")
            loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * mse_loss_weights).mean()
            opt.zero_grad()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            lr_scheduler.step()
            update_ema(ema, accelerator.unwrap_model(model))

            train_steps += 1
            if train_steps % args.log_every == 0:
                avg_loss = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"(step={train_steps:07d}) train loss: {avg_loss:.4f}")
            end_of_step(
                inputs=[moments, y, x, drop, labels, t, noise, x_t, snr, mse_loss_weights],
                activations=[model_output, loss],
                weights=[*ema.parameters(), *ema.buffers()],
            )
            if train_steps % args.sample_every == 0:
                wanted = torch.arange(4, device=device)
                drawn = sample(ema, noise_scheduler, wanted, args.num_classes, args.latent_size, device)
                accelerator.print(f"drawn: {tuple(drawn.shape)}, {drawn.std().item():.3f}")
                del wanted, drawn
    accelerator.end_training()


if __name__ == "__main__":
    main(parse_args())
