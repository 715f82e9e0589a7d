"""A VQ-VAE of images: distances to a codebook, a straight-through gradient, and a commitment loss."""

import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional

torch.manual_seed(30)


class Quantizer(nn.Module):
    def __init__(self, n_codes=1024, width=64):
        super().__init__()
        self.codes = nn.Embedding(n_codes, width)
        self.codes.weight.data.uniform_(-1 / n_codes, 1 / n_codes)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, z.shape[-1])
        nearest = torch.cdist(flat, self.codes.weight).argmin(dim=1)
        found = self.codes(nearest).view_as(z)
        loss = functional.mse_loss(found, z.detach()) + 0.25 * functional.mse_loss(found.detach(), z)
        return (z + (found - z).detach()).permute(0, 3, 1, 2), loss


class Coder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(128, width, 1),
        )
        self.quantizer = Quantizer(width=width)
        self.decoder = nn.Sequential(
            nn.Conv2d(width, 128, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 3, 4, 2, 1),
        )

    def forward(self, images):
        codes, loss = self.quantizer(self.encoder(images))
        return self.decoder(codes), loss


model = Coder().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, amsgrad=True)
for _ in range(5):
    images = torch.rand(8, 3, 64, 64).to("cuda")
    again, of_codes = model(images)
    loss = functional.mse_loss(again, images) + of_codes
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[images], activations=[again, of_codes, loss])
