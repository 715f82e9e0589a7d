"""An autoencoder for pictures learns as in diffusers: a perceptual loss, a discriminator, an adaptive weight, an EMA."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL
from diffusers.training_utils import EMAModel
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, n, size=64):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, self.size, self.size, generator=generator).clamp(-1, 1)


class NLayerDiscriminator(nn.Sequential):
    def __init__(self, ndf=48, n_layers=3):
        layers = [nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2, True)]
        width = ndf
        for n in range(1, n_layers + 1):
            wider = ndf * min(2**n, 8)
            stride = 2 if n < n_layers else 1
            layers += [
                nn.Conv2d(width, wider, 4, stride, 1, bias=False),
                nn.BatchNorm2d(wider),
                nn.LeakyReLU(0.2, True),
            ]
            width = wider
        super().__init__(*layers, nn.Conv2d(width, 1, 4, 1, 1))


class Perceptual(nn.Module):
    """The distance of features of a fixed network."""

    def __init__(self, widths=(32, 64, 96)):
        super().__init__()
        self.stages = nn.ModuleList()
        before = 3
        for width in widths:
            self.stages.append(
                nn.Sequential(
                    nn.Conv2d(before, width, 3, padding=1),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(width, width, 3, padding=1),
                    nn.ReLU(inplace=True),
                )
            )
            before = width
        self.lins = nn.ModuleList(nn.Conv2d(width, 1, 1, bias=False) for width in widths)
        self.requires_grad_(False)

    def forward(self, x, y):
        total = 0
        for number, (stage, lin) in enumerate(zip(self.stages, self.lins)):
            if number:
                x, y = F.max_pool2d(x, 2), F.max_pool2d(y, 2)
            x, y = stage(x), stage(y)
            difference = (F.normalize(x, dim=1) - F.normalize(y, dim=1)) ** 2
            total = total + lin(difference).mean((2, 3), keepdim=True)
        return total


def adaptive_weight(nll_loss, g_loss, last_layer):
    nll_grads = torch.autograd.grad(nll_loss, last_layer, retain_graph=True)[0]
    g_grads = torch.autograd.grad(g_loss, last_layer, retain_graph=True)[0]
    weight = torch.norm(nll_grads) / (torch.norm(g_grads) + 1e-4)
    return torch.clamp(weight, 0.0, 1e4).detach() * 0.5


def main(n_steps=5, kl_scale=1e-6, set_grads_to_none=False):
    torch.manual_seed(113)
    accelerator = Accelerator()
    vae = AutoencoderKL(
        block_out_channels=(32, 64, 128),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        norm_num_groups=16,
        sample_size=64,
    )
    discriminator = NLayerDiscriminator()
    perceptual = Perceptual().to(accelerator.device).eval()
    ema = EMAModel(vae.parameters(), model_cls=AutoencoderKL, model_config=vae.config)
    params = [*vae.encoder.parameters(), *vae.decoder.parameters(), *vae.quant_conv.parameters()]
    params += vae.post_quant_conv.parameters()
    optimizer = torch.optim.AdamW(params, lr=4.5e-6, betas=(0.9, 0.999), weight_decay=1e-2)
    disc_optimizer = torch.optim.AdamW(discriminator.parameters(), lr=4.5e-6, weight_decay=1e-2)
    loader = DataLoader(Pictures(48), batch_size=4, shuffle=True)
    vae, discriminator, optimizer, disc_optimizer, loader = accelerator.prepare(
        vae, discriminator, optimizer, disc_optimizer, loader
    )
    ema.to(accelerator.device)
    vae.train()
    discriminator.train()
    for step, targets in enumerate(loader):
        posterior = vae.encode(targets).latent_dist
        reconstructions = vae.decode(posterior.sample()).sample

        rec_loss = F.mse_loss(reconstructions.float(), targets.float(), reduction="none")
        rec_loss = rec_loss + 0.5 * perceptual(reconstructions, targets)
        nll_loss = torch.sum(rec_loss) / rec_loss.shape[0]
        kl_loss = torch.sum(posterior.kl()) / rec_loss.shape[0]
        g_loss = -torch.mean(discriminator(reconstructions))
        d_weight = adaptive_weight(nll_loss, g_loss, vae.decoder.conv_out.weight)
        loss = nll_loss + kl_scale * kl_loss + d_weight * g_loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_grads_to_none)

        logits_real = discriminator(targets.detach())
        logits_fake = discriminator(reconstructions.detach())
        d_loss = 0.5 * (F.relu(1.0 - logits_real).mean() + F.relu(1.0 + logits_fake).mean())
        disc_optimizer.zero_grad(set_to_none=set_grads_to_none)
        accelerator.backward(d_loss)
        disc_optimizer.step()

        ema.step(vae.parameters())
        print(
            f"step {step}: {loss.item():.1f}, discriminator {d_loss.item():.3f}, weight {d_weight.item():.3f}"
        )
        end_of_step(
            inputs=[targets],
            activations=[reconstructions, rec_loss, loss, d_loss, logits_real, logits_fake],
            weights=ema.shadow_params,
        )
        if step + 1 == n_steps:
            break


if __name__ == "__main__":
    main()
