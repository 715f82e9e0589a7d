"""A U-Net with self-conditioning learns to draw butterflies under the Trainer of denoising-diffusion-pytorch: v is predicted, losses are weighted by SNR, bfloat16, two batches to a step, an EMA that draws pictures every other step."""

import random
from pathlib import Path

import numpy as np
import torch
from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet
from PIL import Image
from programs import end_of_step, tell

IMAGE_SIZE = 32
FOLDER = Path("./butterflies")


def write_pictures(folder, n):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(n):
        coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((48, 40), Image.Resampling.BICUBIC)
        picture.save(folder / f"{i:04d}.png")


class ButterflyTrainer(Trainer):
    """Counts steps by the batches that are fetched."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.dl = self.count(self.dl)

    def count(self, batches):
        for i, batch in enumerate(batches):
            if i and i % self.gradient_accumulate_every == 0:
                end_of_step()
            tell(inputs=batch)
            yield batch


def main():
    random.seed(0)
    torch.manual_seed(0)
    write_pictures(FOLDER, 104)
    model = Unet(
        dim=40,
        dim_mults=(1, 2, 4),
        self_condition=True,
        attn_heads=4,
        full_attn=(False, False, True),
        flash_attn=False,
    )
    diffusion = GaussianDiffusion(
        model,
        image_size=IMAGE_SIZE,
        timesteps=1000,
        sampling_timesteps=4,
        objective="pred_v",
        min_snr_loss_weight=True,
        auto_normalize=True,
    ).cuda()
    trainer = ButterflyTrainer(
        diffusion,
        str(FOLDER),
        train_batch_size=8,
        gradient_accumulate_every=2,
        train_lr=8e-5,
        train_num_steps=6,
        ema_update_every=1,
        ema_decay=0.995,
        save_and_sample_every=2,
        num_samples=4,
        results_folder="./results",
        amp=True,
        mixed_precision_type="bf16",
        calculate_fid=False,
    )
    trainer.train()


if __name__ == "__main__":
    main()
