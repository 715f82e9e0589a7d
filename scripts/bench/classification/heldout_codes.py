"""An entry written without a look at any rule: images put into few codes, with two optimizers in turn.

It brings optimizers of its own, and takes no other, whatever a setup says.
"""

import torch
from setups import Iterations, Known, Setup
from torch import nn
from torch.nn import functional

DEVICE = "cuda"


class ResnetBlock(nn.Module):
    """Two convolutions beside a way around them."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, n_in), nn.Conv2d(n_in, n_out, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(8, n_out), nn.Conv2d(n_out, n_out, 3, 1, 1)
        self.nin_shortcut = nn.Conv2d(n_in, n_out, 1) if n_in != n_out else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform feature maps."""
        h = self.conv1(_swish(self.norm1(x)))
        h = self.conv2(_swish(self.norm2(h)))
        return self.nin_shortcut(x) + h


def _swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Upsample(nn.Module):
    """Twice as many pixels each way."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(n, n, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform feature maps."""
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class VectorQuantizer(nn.Module):
    """Every place takes the code that is nearest."""

    def __init__(self, n_codes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_codes, width)
        self.embedding.weight.data.uniform_(-1.0 / n_codes, 1.0 / n_codes)

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes, with gradients as if nothing had been done, and what they cost."""
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        weight = self.embedding.weight
        distance = flat.pow(2).sum(1, keepdim=True) + weight.pow(2).sum(1) - 2 * flat @ weight.t()
        z_q = self.embedding(distance.argmin(1)).view(z.shape)
        loss = ((z_q.detach() - z) ** 2).mean() + 0.25 * ((z_q - z.detach()) ** 2).mean()
        z_q = z + (z_q - z).detach()
        return z_q.permute(0, 3, 1, 2).contiguous(), loss


class VQModel(nn.Module):
    """Encoder, codes, decoder."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, width, 3, 1, 1), ResnetBlock(width, width), nn.Conv2d(width, width, 3, 2, 1)),
            *(ResnetBlock(width, 2 * width), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)),
            *(ResnetBlock(2 * width, 4 * width), nn.GroupNorm(8, 4 * width), nn.SiLU()),
            nn.Conv2d(4 * width, 32, 3, 1, 1),
        )
        self.quantize = VectorQuantizer(512, 32)
        self.decoder = nn.Sequential(
            *(nn.Conv2d(32, 4 * width, 3, 1, 1), ResnetBlock(4 * width, 2 * width), Upsample(2 * width)),
            *(ResnetBlock(2 * width, width), Upsample(width), ResnetBlock(width, width)),
            *(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, 1, 1)),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images again, and what their codes cost."""
        codes, loss = self.quantize(self.encoder(x))
        return self.decoder(codes), loss


class Perceptual(nn.Module):
    """How much two images differ to a frozen network, at three depths."""

    def __init__(self) -> None:
        super().__init__()
        self.slices, self.lins, n_in = nn.ModuleList(), nn.ModuleList(), 3
        for n in (16, 32, 64):
            convolutions = (nn.Conv2d(n_in, n, 3, 1, 1), nn.ReLU(), nn.Conv2d(n, n, 3, 1, 1), nn.ReLU())
            pool = () if n == 16 else (nn.MaxPool2d(2),)
            self.slices.append(nn.Sequential(*pool, *convolutions))
            self.lins.append(nn.Conv2d(n, 1, 1, bias=False))
            n_in = n
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188])[None, :, None, None])
        for parameter in self.parameters():
            parameter.requires_grad = False

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return one number per pair."""
        x, y, total = x - self.shift, y - self.shift, 0.0
        for part, lin in zip(self.slices, self.lins, strict=True):
            x, y = part(x), part(y)
            difference = (functional.normalize(x, dim=1) - functional.normalize(y, dim=1)) ** 2
            total = total + lin(difference).mean([2, 3], keepdim=True)
        return total


def _discriminator(width: int = 32) -> nn.Sequential:
    """Says of every patch whether it is real."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]
    for n in (width, 2 * width):
        layers += [
            nn.Conv2d(n, 2 * n, 4, 2, 1, bias=False),
            *(nn.BatchNorm2d(2 * n), nn.LeakyReLU(0.2, inplace=True)),
        ]
    return nn.Sequential(*layers, nn.Conv2d(4 * width, 1, 4, 1, 1))


def perceptual(_setup: Setup) -> Iterations:
    """Few codes from which a decoder makes images again; a frozen network and a critic judge them."""
    model, critic = VQModel().to(DEVICE), _discriminator().to(DEVICE)
    judge = Perceptual().to(DEVICE).eval()
    opt_ae = torch.optim.Adam(model.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    opt_disc = torch.optim.Adam(critic.parameters(), lr=4.5e-6, betas=(0.5, 0.9))
    while True:
        images = (torch.rand(3, 3, 64, 64) * 2 - 1).to(DEVICE)
        # First the autoencoder, with a critic that stays as it is.
        critic.requires_grad_(requires_grad=False)
        again, code_loss = model(images)
        rec_loss = torch.abs(images - again) + 1.0 * judge(images, again)
        nll_loss = rec_loss.mean()
        g_loss = -torch.mean(critic(again))
        last = model.decoder[-1].weight
        (nll_grads,) = torch.autograd.grad(nll_loss, last, retain_graph=True)
        (g_grads,) = torch.autograd.grad(g_loss, last, retain_graph=True)
        d_weight = torch.clamp(nll_grads.norm() / (g_grads.norm() + 1e-4), 0.0, 1e4).detach()
        loss = nll_loss + 0.8 * d_weight * g_loss + code_loss
        opt_ae.zero_grad()
        loss.backward()
        opt_ae.step()
        # Then the critic, with images that stay as they are.
        critic.requires_grad_(requires_grad=True)
        logits_real, logits_fake = critic(images.detach()), critic(again.detach())
        d_loss = 0.5 * (functional.relu(1.0 - logits_real).mean() + functional.relu(1.0 + logits_fake).mean())
        opt_disc.zero_grad()
        d_loss.backward()
        opt_disc.step()
        yield Known(inputs=(images,), activations=(again, rec_loss, logits_real, logits_fake))
