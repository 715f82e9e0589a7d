"""A scan is made of few projections by diffusion posterior sampling: a frozen UNet knows what scans look like, a gradient through it pulls the picture to what was measured."""

import argparse
import math

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.utils.torch_utils import randn_tensor
from programs import end_of_step


class ParallelBeam:
    """Sums along lines at some angles: the picture is turned, then summed."""

    def __init__(self, n_angles, size, device):
        angles = torch.linspace(0, math.pi, n_angles + 1, device=device)[:-1]
        zero = torch.zeros_like(angles)
        rows = torch.stack((angles.cos(), -angles.sin(), zero, angles.sin(), angles.cos(), zero), dim=1)
        self.grids = F.affine_grid(rows.view(-1, 2, 3), (n_angles, 1, size, size), align_corners=False)
        self.n_angles, self.size = n_angles, size
        ramp = torch.fft.rfftfreq(2 * size, device=device) * 2
        self.ramp = ramp * torch.hann_window(2 * len(ramp), periodic=False, device=device)[len(ramp) :]

    def __call__(self, x):
        n = len(x)
        turned = F.grid_sample(
            x.repeat_interleave(self.n_angles, dim=0), self.grids.repeat(n, 1, 1, 1), align_corners=False
        )
        return turned.sum(dim=2).view(n, self.n_angles, self.size) / self.size

    def filtered_back_projection(self, sinogram):
        """What one would do without a network, to compare with."""
        spectrum = torch.fft.rfft(sinogram, n=2 * self.size) * self.ramp
        filtered = torch.fft.irfft(spectrum, n=2 * self.size)[..., : self.size]
        smeared = filtered.flatten(0, 1)[:, None, None].expand(-1, 1, self.size, -1)
        back = torch.cat((self.grids[:1], self.grids[1:].flip(0)))
        turned = F.grid_sample(smeared, back.repeat(len(sinogram), 1, 1, 1), align_corners=False)
        return turned.view(len(sinogram), self.n_angles, self.size, self.size).mean(1, keepdim=True)


def phantoms(n, size, device):
    """Bodies of ellipses, between -1 and 1."""
    y, x = torch.meshgrid(*(torch.linspace(-1, 1, size, device=device),) * 2, indexing="ij")
    images = torch.full((n, 1, size, size), -1.0, device=device)
    for image in images:
        image[0][(x / 0.7) ** 2 + (y / 0.9) ** 2 < 1] = 0.0
        for _ in range(5):
            cx, cy, a, b, value = (torch.rand(5) * torch.tensor([1.0, 1.2, 0.2, 0.3, 0.8])).tolist()
            inside = ((x - cx + 0.5) / (a + 0.05)) ** 2 + ((y - cy + 0.6) / (b + 0.05)) ** 2 < 1
            image[0][inside] += value - 0.3
    return images.clamp(-1, 1)


def load_prior(size):
    model = UNet2DModel(
        sample_size=size,
        in_channels=1,
        out_channels=1,
        block_out_channels=(64, 128, 192, 256),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        attention_head_dim=32,
    )
    return model.eval().requires_grad_(False)


class DPSSampler:
    def __init__(self, unet, scheduler, operator, scale=1.0):
        self.unet, self.scheduler, self.operator, self.scale = unet, scheduler, operator, scale

    def conditioning(self, x_prev, x_t, x_0_hat, measurement):
        difference = measurement - self.operator(x_0_hat)
        norm = torch.linalg.norm(difference)
        norm_grad = torch.autograd.grad(outputs=norm, inputs=x_prev)[0]
        return x_t - self.scale * norm_grad, norm

    def sample(self, measurement, shape, generator):
        device = measurement.device
        img = randn_tensor(shape, generator=generator, device=device)
        for i, t in enumerate(self.scheduler.timesteps):
            img = img.requires_grad_()
            noise_pred = self.unet(img, t).sample
            out = self.scheduler.step(noise_pred, t, img, generator=generator)
            x_0_hat = out.pred_original_sample
            moved, distance = self.conditioning(img, out.prev_sample, x_0_hat, measurement)
            x_0_hat = x_0_hat.detach()
            img = moved.detach()
            yield i, t, img, x_0_hat, noise_pred, out, distance


def psnr(x, y):
    return (10 * torch.log10(4 / F.mse_loss(x, y))).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--n_scans", type=int, default=2)
    parser.add_argument("--n_angles", type=int, default=12)
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--num_inference_steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=908)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device=device).manual_seed(args.seed)
    unet = load_prior(args.size).to(device)
    scheduler = DDPMScheduler(num_train_timesteps=1000, variance_type="fixed_small")
    scheduler.set_timesteps(args.num_inference_steps, device=device)
    operator = ParallelBeam(args.n_angles, args.size, device)

    truth = phantoms(args.n_scans, args.size, device)
    measurement = operator(truth)
    measurement = measurement + args.noise * torch.randn_like(measurement)
    plain = operator.filtered_back_projection(measurement)
    print(f"{args.n_angles} angles, filtered back projection: {psnr(plain, truth):.2f} dB")

    sampler = DPSSampler(unet, scheduler, operator, scale=1.0)
    for i, t, img, x_0_hat, noise_pred, out, distance in sampler.sample(measurement, truth.shape, generator):
        print(f"{i} (t={int(t)}): distance {distance.item():.4f}, {psnr(x_0_hat, truth):.2f} dB")
        end_of_step(
            inputs=[truth, measurement, plain, img, operator.grids, operator.ramp, scheduler.timesteps],
            activations=[x_0_hat, noise_pred, out.prev_sample, out.pred_original_sample, distance],
        )
    print(f"posterior sampling: {psnr(img, truth):.2f} dB")


if __name__ == "__main__":
    main()
