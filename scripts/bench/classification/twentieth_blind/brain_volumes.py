"""A three-dimensional autoencoder (KL) of MONAI compresses MRI of brains for a latent diffusion model: patch discriminator after the first epoch, L1 and KL losses, two Adams, bfloat16 autocast."""

import torch
from monai.data import DataLoader, Dataset
from monai.losses import PatchAdversarialLoss
from monai.networks.nets import AutoencoderKL, PatchDiscriminator
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    RandFlipd,
    RandSpatialCropd,
    ScaleIntensityRangePercentilesd,
)
from monai.utils import set_determinism
from programs import end_of_step
from torch.nn.functional import l1_loss

set_determinism(8)
device = torch.device("cuda")

volumes = [{"image": torch.randn(48, 56, 48).abs()} for _ in range(4)]
transforms = Compose(
    [
        EnsureChannelFirstd("image", channel_dim="no_channel"),
        ScaleIntensityRangePercentilesd("image", lower=0, upper=99.5, b_min=0, b_max=1),
        RandSpatialCropd("image", roi_size=(24, 32, 24), random_size=False),
        RandFlipd("image", prob=0.5, spatial_axis=0),
    ]
)
loader = DataLoader(Dataset(volumes, transforms), batch_size=2, shuffle=True)

autoencoder = AutoencoderKL(
    spatial_dims=3,
    in_channels=1,
    out_channels=1,
    channels=(32, 64, 64),
    latent_channels=3,
    num_res_blocks=1,
    norm_num_groups=16,
    attention_levels=(False, False, True),
).to(device)
discriminator = PatchDiscriminator(
    spatial_dims=3, num_layers_d=3, channels=32, in_channels=1, out_channels=1
).to(device)
adversarial = PatchAdversarialLoss(criterion="least_squares")
optimizer_g = torch.optim.Adam(autoencoder.parameters(), lr=1e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=5e-4)
kl_weight, adversarial_weight = 1e-6, 0.01
warm_up_epochs = 1


def kl_loss(mean, sigma):
    loss = 0.5 * torch.sum(mean.pow(2) + sigma.pow(2) - torch.log(sigma.pow(2)) - 1, dim=[1, 2, 3, 4])
    return loss.sum() / loss.shape[0]


for epoch in range(3):
    autoencoder.train()
    discriminator.train()
    for batch in loader:
        images = batch["image"].as_tensor().to(device)
        optimizer_g.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            reconstruction, mean, sigma = autoencoder(images)
            reconstruction_loss = l1_loss(reconstruction.float(), images)
            loss_g = reconstruction_loss + kl_weight * kl_loss(mean.float(), sigma.float())
            if epoch >= warm_up_epochs:
                fake = discriminator(reconstruction.contiguous())[-1]
                loss_g = loss_g + adversarial_weight * adversarial(
                    fake, target_is_real=True, for_discriminator=False
                )
        loss_g.backward()
        optimizer_g.step()

        told = [reconstruction, mean, sigma, loss_g]
        if epoch >= warm_up_epochs:
            optimizer_d.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                fake = discriminator(reconstruction.contiguous().detach())[-1]
                real = discriminator(images.contiguous().detach())[-1]
                loss_d = 0.5 * (
                    adversarial(fake, target_is_real=False, for_discriminator=True)
                    + adversarial(real, target_is_real=True, for_discriminator=True)
                )
            loss_d.backward()
            optimizer_d.step()
            told += [fake, real, loss_d]
        print(f"epoch {epoch} reconstruction {reconstruction_loss.item():.4f}")
        end_of_step(inputs=[images], activations=told)
torch.save(autoencoder.state_dict(), "autoencoder.pt")
