"""Entries that look at images: CNN, U-Net, VAE, vision transformer, GAN."""

import torch
from language import Block
from setups import Iterations, Known, Setup, Tensors, make_optimizer, states_of, train
from torch import nn
from torch.nn import functional


def _images(n: int, n_channels: int, size: int) -> Tensors:
    images = torch.randn(n, n_channels, size, size).cuda()
    return images, torch.randint(0, 10, (n,)).cuda()


def _classify(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(images), labels)


def cnn(setup: Setup) -> Iterations:
    """Convolutions with batch norm, as in every tutorial."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 256),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(256, 10),
    ).cuda()
    criterion = nn.CrossEntropyLoss()
    return train(
        model,
        lambda: _images(8, 3, 32),
        lambda net, images, labels: criterion(net(images), labels),
        setup,
    )


class UNet(nn.Module):
    """Two levels down and up, matches by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self._two(1, 16), self._two(16, 32)
        self.bottom = self._two(32, 64)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1 = self._two(64, 32), self._two(32, 16)
        self.head = nn.Conv2d(16, 1, 1)

    @staticmethod
    def _two(n_in: int, n_out: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(n_in, n_out, 3, padding=1), nn.GroupNorm(4, n_out), nn.SiLU()),
            *(nn.Conv2d(n_out, n_out, 3, padding=1), nn.GroupNorm(4, n_out), nn.SiLU()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one logit per pixel."""
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        bottom = self.bottom(functional.max_pool2d(second, 2))
        second = self.join2(torch.cat((self.up2(bottom), second), 1))
        return self.head(self.join1(torch.cat((self.up1(second), first), 1)))


def unet(setup: Setup) -> Iterations:
    """Segmentation with a dice loss written by hand."""

    def loss(model: nn.Module, images: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        logits = model(images)
        chance = torch.sigmoid(logits)
        dice = 1 - (2 * (chance * masks).sum() + 1) / (chance.sum() + masks.sum() + 1)
        return functional.binary_cross_entropy_with_logits(logits, masks) + dice

    def batch() -> Tensors:
        masks = (torch.rand(2, 1, 48, 48) > 0.5).float()
        return torch.randn(2, 1, 48, 48, device="cuda"), masks.cuda()

    return train(UNet().cuda(), batch, loss, setup)


class Vae(nn.Module):
    """An encoder to a mean and a variance, noise, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(256, 64), nn.Linear(256, 64)
        self.decoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the reconstruction and the two statistics."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


def vae(setup: Setup) -> Iterations:
    """A variational autoencoder, whose loss is arithmetic outside of any module."""

    def loss(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
        output, mean, log_variance = model(images)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1)
        return (functional.mse_loss(output, images, reduction="none").sum(1) + divergence).mean()

    return train(Vae().cuda(), lambda: (torch.rand(512, 784, device="cuda"),), loss, setup)


class Vit(nn.Module):
    """Patches by a convolution, a class token, learned positions."""

    def __init__(self, width: int = 128, n_patches: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, n_patches + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 4, is_causal=False) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of the classes."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit(setup: Setup) -> Iterations:
    """A vision transformer, built on the device."""
    with torch.device("cuda"):
        model = Vit()
    return train(model, lambda: _images(8, 3, 32), _classify, setup)


def gan(setup: Setup) -> Iterations:
    """Two networks with an optimizer each, trained in turns."""
    generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh()).cuda()
    critic = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1)).cuda()
    of_generator = make_optimizer(setup, generator.parameters())
    of_critic = make_optimizer(setup, critic.parameters())
    criterion = nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(256, 1, device="cuda"), torch.zeros(256, 1, device="cuda")
    while True:
        images = torch.randn(256, 784).cuda()
        noise = torch.randn(256, 64, device="cuda")
        of_critic.zero_grad(set_to_none=setup.set_to_none)
        fake = generator(noise)
        loss = criterion(critic(images), real_label) + criterion(critic(fake.detach()), fake_label)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad(set_to_none=setup.set_to_none)
        criterion(critic(fake), real_label).backward()
        of_generator.step()
        yield Known(
            inputs=(images, noise, real_label, fake_label),
            states=(*states_of(of_generator), *states_of(of_critic)),
        )
