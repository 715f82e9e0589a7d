"""Lightning with two optimizers that are stepped by hand: a generator and a discriminator."""

import lightning.pytorch as pl
import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional

torch.manual_seed(22)


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(64, 256, 4, 1, 0, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(True),
            nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(True),
            nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(True),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(64, 128, 4, 2, 1, bias=False),
            nn.BatchNorm2d(128),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(128, 256, 4, 2, 1, bias=False),
            nn.BatchNorm2d(256),
            nn.LeakyReLU(0.2, True),
            nn.Conv2d(256, 1, 4, 1, 0),
        )

    def training_step(self, batch, _):
        (real,) = batch
        for_generator, for_discriminator = self.optimizers()
        noise = torch.randn(len(real), 64, 1, 1, device=self.device)
        fake = self.generator(noise)
        ones = torch.ones(len(real), device=self.device)
        loss = functional.binary_cross_entropy_with_logits(self.discriminator(fake).view(-1), ones)
        for_generator.zero_grad()
        self.manual_backward(loss)
        for_generator.step()
        of_real = self.discriminator(real).view(-1)
        of_fake = self.discriminator(fake.detach()).view(-1)
        loss = functional.binary_cross_entropy_with_logits(of_real, ones)
        loss = loss + functional.binary_cross_entropy_with_logits(of_fake, torch.zeros_like(of_fake))
        for_discriminator.zero_grad()
        self.manual_backward(loss)
        for_discriminator.step()

    def configure_optimizers(self):
        options = {"lr": 2e-4, "betas": (0.5, 0.999)}
        return [
            torch.optim.Adam(self.generator.parameters(), **options),
            torch.optim.Adam(self.discriminator.parameters(), **options),
        ]


class StepEnds(pl.Callback):
    def on_train_batch_end(self, *_):
        end_of_step()


data = torch.utils.data.TensorDataset(torch.rand(96, 3, 32, 32) * 2 - 1)
trainer = pl.Trainer(
    accelerator="cuda",
    devices=[0],
    max_epochs=1,
    callbacks=[StepEnds()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Gan(), torch.utils.data.DataLoader(data, batch_size=16))
