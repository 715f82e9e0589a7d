"""A GAN for 64x64 pictures of monsters with few examples in an Ignite engine: differentiable augmentation, lazy R1, an EMA of the generator."""

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.handlers import EMAHandler, ModelCheckpoint, TerminateOnNan
from ignite.metrics import RunningAverage
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2
from torchvision.utils import save_image

LATENT = 128
BATCH = 12
R1_GAMMA = 10.0
D_REG_EVERY = 16

torch.manual_seed(3)
device = "cuda"


class UpBlock(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(before, after * 2, 3, padding=1, bias=False),
            nn.BatchNorm2d(after * 2),
            nn.GLU(dim=1),
        )

    def forward(self, x):
        return self.body(x)


class Excitation(nn.Module):
    """Gates a fine map by the channels of a coarse one."""

    def __init__(self, before, after):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(4),
            nn.Conv2d(before, after, 4),
            nn.SiLU(),
            nn.Conv2d(after, after, 1),
            nn.Sigmoid(),
        )

    def forward(self, coarse, fine):
        return fine * self.gate(coarse)


class Generator(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.start = nn.Sequential(
            nn.ConvTranspose2d(LATENT, width * 16, 4), nn.BatchNorm2d(width * 16), nn.GLU(dim=1)
        )
        self.to_8 = UpBlock(width * 8, width * 4)
        self.to_16 = UpBlock(width * 4, width * 2)
        self.to_32 = UpBlock(width * 2, width)
        self.to_64 = UpBlock(width, width)
        self.skip_32 = Excitation(width * 8, width)
        self.skip_64 = Excitation(width * 4, width)
        self.to_rgb = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z):
        at_4 = self.start(z[:, :, None, None])
        at_8 = self.to_8(at_4)
        at_32 = self.skip_32(at_4, self.to_32(self.to_16(at_8)))
        at_64 = self.skip_64(at_8, self.to_64(at_32))
        return torch.tanh(self.to_rgb(at_64))


class DownBlock(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(after, after, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.AvgPool2d(2),
        )
        self.skip = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(before, after, 1, bias=False))

    def forward(self, x):
        return (self.body(x) + self.skip(x)) * 0.5**0.5


class Discriminator(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.LeakyReLU(0.2))
        self.blocks = nn.Sequential(
            DownBlock(width, width * 2),
            DownBlock(width * 2, width * 4),
            DownBlock(width * 4, width * 8),
            DownBlock(width * 8, width * 8),
        )
        self.head = nn.Sequential(
            nn.Conv2d(width * 8 + 1, width * 8, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(width * 8 * 16, width * 8),
            nn.LeakyReLU(0.2),
            nn.Linear(width * 8, 1),
        )

    def forward(self, x):
        x = self.blocks(self.stem(x))
        deviation = x.std(0, unbiased=False).mean().expand(len(x), 1, *x.shape[2:])
        return self.head(torch.cat([x, deviation], 1)).squeeze(1)


def rand_brightness(x):
    return x + (torch.rand(len(x), 1, 1, 1, device=x.device) - 0.5)


def rand_contrast(x):
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - mean) * (torch.rand(len(x), 1, 1, 1, device=x.device) + 0.5) + mean


def rand_translation(x, ratio=0.125):
    shift = (torch.rand(len(x), 2, device=x.device) * 2 - 1) * ratio * 2
    theta = torch.eye(2, 3, device=x.device).repeat(len(x), 1, 1)
    theta[:, :, 2] = shift
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="zeros", align_corners=False)


def rand_cutout(x, ratio=0.4):
    size = int(x.shape[-1] * ratio)
    corner = torch.randint(0, x.shape[-1] - size + 1, (len(x), 2), device=x.device)
    place = torch.arange(x.shape[-1], device=x.device)
    rows = (place >= corner[:, :1]) & (place < corner[:, :1] + size)
    columns = (place >= corner[:, 1:]) & (place < corner[:, 1:] + size)
    return x * ~(rows[:, None, :, None] & columns[:, None, None, :])


def augment(x):
    for function in (rand_brightness, rand_contrast, rand_translation, rand_cutout):
        x = function(x)
    return x


transform = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
)
pictures = F.interpolate(torch.rand(160, 3, 8, 8), size=64, mode="bilinear").mul(255).byte()
loader = DataLoader(
    TensorDataset(pictures),
    batch_size=BATCH,
    shuffle=True,
    drop_last=True,
    pin_memory=True,
    collate_fn=lambda items: torch.stack([transform(picture) for (picture,) in items]),
)

generator = Generator().to(device)
discriminator = Discriminator().to(device)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.0, 0.99))
d_ratio = D_REG_EVERY / (D_REG_EVERY + 1)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4 * d_ratio, betas=(0.0, 0.99**d_ratio))
fixed_noise = torch.randn(64, LATENT, device=device)


def step(engine, batch):
    real = batch.to(device, non_blocking=True)

    discriminator.requires_grad_(True)
    with torch.no_grad():
        fake = generator(torch.randn(len(real), LATENT, device=device))
    score_real, score_fake = discriminator(augment(real)), discriminator(augment(fake))
    loss_d = F.softplus(-score_real).mean() + F.softplus(score_fake).mean()
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()

    if (engine.state.iteration - 1) % D_REG_EVERY == 0:
        leaf = real.detach().requires_grad_(True)
        score = discriminator(augment(leaf))
        (slope,) = torch.autograd.grad(score.sum(), leaf, create_graph=True)
        penalty = slope.square().sum(dim=(1, 2, 3)).mean()
        optimizer_d.zero_grad()
        (R1_GAMMA / 2 * penalty * D_REG_EVERY).backward()
        optimizer_d.step()

    discriminator.requires_grad_(False)
    made = generator(torch.randn(len(real), LATENT, device=device))
    loss_g = F.softplus(-discriminator(augment(made))).mean()
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    return {"loss_d": loss_d.item(), "loss_g": loss_g.item(), "real": real, "made": made.detach()}


trainer = Engine(step)
RunningAverage(output_transform=lambda output: output["loss_d"]).attach(trainer, "loss_d")
RunningAverage(output_transform=lambda output: output["loss_g"]).attach(trainer, "loss_g")
trainer.add_event_handler(
    Events.ITERATION_COMPLETED,
    TerminateOnNan(output_transform=lambda output: (output["loss_d"], output["loss_g"])),
)
ema = EMAHandler(generator, momentum=0.005, momentum_warmup=0.1, warmup_iters=500)
ema.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED)
checkpoints = ModelCheckpoint("checkpoints", n_saved=2, require_empty=False)
trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoints, {"generator": generator, "ema": ema.ema_model})


@trainer.on(Events.ITERATION_COMPLETED(every=200) | Events.ITERATION_COMPLETED(once=1))
@torch.no_grad()
def sample(engine):
    grid = torch.cat([ema.ema_model(noise) for noise in fixed_noise.split(16)])
    save_image(grid.add(1).div(2).cpu(), f"samples_{engine.state.iteration}.png", nrow=8)


@trainer.on(Events.ITERATION_COMPLETED)
def step_ends(engine):
    output = engine.state.output
    end_of_step(inputs=[output["real"], fixed_noise], activations=output["made"])


@trainer.on(Events.EPOCH_COMPLETED)
def log(engine):
    print(engine.state.epoch, engine.state.metrics)


trainer.run(loader, max_epochs=100)
