"""A CycleGAN makes zebras of horses and horses of zebras: two generators, two critics, a pool of earlier fakes."""

import itertools
import random

import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 64


class UnalignedDataset(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"A": torch.rand(3, SIZE, SIZE) * 2 - 1, "B": torch.rand(3, SIZE, SIZE) * 2 - 1}


class ResidualBlock(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.block = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(features, features, 3),
            nn.InstanceNorm2d(features),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(features, features, 3),
            nn.InstanceNorm2d(features),
        )

    def forward(self, x):
        return x + self.block(x)


class GeneratorResNet(nn.Module):
    def __init__(self, channels=3, out_features=32, num_residual_blocks=4):
        super().__init__()
        model = [
            nn.ReflectionPad2d(channels),
            nn.Conv2d(channels, out_features, 7),
            nn.InstanceNorm2d(out_features),
            nn.ReLU(inplace=True),
        ]
        for _ in range(2):
            model += [
                nn.Conv2d(out_features, out_features * 2, 3, stride=2, padding=1),
                nn.InstanceNorm2d(out_features * 2),
                nn.ReLU(inplace=True),
            ]
            out_features *= 2
        model += [ResidualBlock(out_features) for _ in range(num_residual_blocks)]
        for _ in range(2):
            model += [
                nn.Upsample(scale_factor=2),
                nn.Conv2d(out_features, out_features // 2, 3, stride=1, padding=1),
                nn.InstanceNorm2d(out_features // 2),
                nn.ReLU(inplace=True),
            ]
            out_features //= 2
        model += [nn.ReflectionPad2d(channels), nn.Conv2d(out_features, channels, 7), nn.Tanh()]
        self.model = nn.Sequential(*model)

    def forward(self, x):
        return self.model(x)


class Discriminator(nn.Module):
    def __init__(self, channels=3, width=48):
        super().__init__()
        self.output_shape = (1, SIZE // 16, SIZE // 16)

        def discriminator_block(in_filters, out_filters, normalize=True):
            layers = [nn.Conv2d(in_filters, out_filters, 4, stride=2, padding=1)]
            if normalize:
                layers.append(nn.InstanceNorm2d(out_filters))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *discriminator_block(channels, width, normalize=False),
            *discriminator_block(width, width * 2),
            *discriminator_block(width * 2, width * 4),
            *discriminator_block(width * 4, width * 8),
            nn.ZeroPad2d((1, 0, 1, 0)),
            nn.Conv2d(width * 8, 1, 4, padding=1),
        )

    def forward(self, img):
        return self.model(img)


class ReplayBuffer:
    def __init__(self, max_size=6):
        self.max_size, self.data = max_size, []

    def push_and_pop(self, data):
        to_return = []
        for element in data:
            element = torch.unsqueeze(element, 0)
            if len(self.data) < self.max_size:
                self.data.append(element)
                to_return.append(element)
            elif random.uniform(0, 1) > 0.5:
                i = random.randint(0, self.max_size - 1)
                to_return.append(self.data[i].clone())
                self.data[i] = element
            else:
                to_return.append(element)
        return torch.cat(to_return)


def weights_init_normal(m):
    if m.__class__.__name__.find("Conv") != -1 and hasattr(m, "weight"):
        torch.nn.init.normal_(m.weight.data, 0.0, 0.02)


cuda = torch.cuda.is_available()
random.seed(403)
torch.manual_seed(403)
criterion_GAN, criterion_cycle, criterion_identity = nn.MSELoss(), nn.L1Loss(), nn.L1Loss()
G_AB, G_BA, D_A, D_B = GeneratorResNet(), GeneratorResNet(), Discriminator(), Discriminator()
if cuda:
    G_AB, G_BA, D_A, D_B = G_AB.cuda(), G_BA.cuda(), D_A.cuda(), D_B.cuda()
for net in (G_AB, G_BA, D_A, D_B):
    net.apply(weights_init_normal)
optimizer_G = torch.optim.Adam(
    itertools.chain(G_AB.parameters(), G_BA.parameters()), lr=0.0002, betas=(0.5, 0.999)
)
optimizer_D_A = torch.optim.Adam(D_A.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_D_B = torch.optim.Adam(D_B.parameters(), lr=0.0002, betas=(0.5, 0.999))
fake_A_buffer, fake_B_buffer = ReplayBuffer(), ReplayBuffer()
dataloader = DataLoader(UnalignedDataset(), batch_size=2, shuffle=True)

for i, batch in enumerate(dataloader):
    real_A, real_B = batch["A"].to("cuda" if cuda else "cpu"), batch["B"].to("cuda" if cuda else "cpu")
    valid = torch.ones((real_A.size(0), *D_A.output_shape), device=real_A.device)
    fake = torch.zeros((real_A.size(0), *D_A.output_shape), device=real_A.device)

    G_AB.train()
    G_BA.train()
    optimizer_G.zero_grad()
    loss_identity = (criterion_identity(G_BA(real_A), real_A) + criterion_identity(G_AB(real_B), real_B)) / 2
    fake_B = G_AB(real_A)
    loss_GAN_AB = criterion_GAN(D_B(fake_B), valid)
    fake_A = G_BA(real_B)
    loss_GAN_BA = criterion_GAN(D_A(fake_A), valid)
    loss_GAN = (loss_GAN_AB + loss_GAN_BA) / 2
    recov_A = G_BA(fake_B)
    recov_B = G_AB(fake_A)
    loss_cycle = (criterion_cycle(recov_A, real_A) + criterion_cycle(recov_B, real_B)) / 2
    loss_G = loss_GAN + 10.0 * loss_cycle + 5.0 * loss_identity
    loss_G.backward()
    optimizer_G.step()

    losses_D = []
    for D, optimizer, buffer, real, faked in (
        (D_A, optimizer_D_A, fake_A_buffer, real_A, fake_A),
        (D_B, optimizer_D_B, fake_B_buffer, real_B, fake_B),
    ):
        optimizer.zero_grad()
        earlier = buffer.push_and_pop(faked.detach())
        loss_D = (criterion_GAN(D(real), valid) + criterion_GAN(D(earlier), fake)) / 2
        loss_D.backward()
        optimizer.step()
        losses_D.append(loss_D)

    print(
        f"batch {i}: D {sum(losses_D).item() / 2:.3f}, G {loss_G.item():.3f}, cycle {loss_cycle.item():.3f}"
    )
    end_of_step(
        inputs=[real_A, real_B, valid, fake, earlier],
        activations=[fake_A, fake_B, recov_A, recov_B, loss_identity, loss_GAN_AB, loss_GAN_BA, loss_GAN]
        + [loss_cycle, loss_G, losses_D, fake_A_buffer.data, fake_B_buffer.data],
    )
