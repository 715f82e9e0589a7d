"""A masked autoencoder of images: most patches are hidden, a small decoder paints them; bytes come to the device."""

import argparse
import math

import torch
from programs import end_of_step
from transformers import ViTMAEConfig, ViTMAEForPreTraining


def get_args():
    parser = argparse.ArgumentParser("pre-training")
    parser.add_argument("--batch_size", default=24, type=int)
    parser.add_argument("--steps", default=4, type=int)
    parser.add_argument("--warmup", default=2, type=int)
    parser.add_argument("--blr", default=1.5e-4, type=float)
    parser.add_argument("--mask_ratio", default=0.75, type=float)
    return parser.parse_args()


def adjust_learning_rate(optimizer, step, args):
    lr = args.blr * args.batch_size / 256
    if step < args.warmup:
        lr = lr * (step + 1) / args.warmup
    else:
        lr = lr * 0.5 * (1 + math.cos(math.pi * (step - args.warmup) / 100))
    for group in optimizer.param_groups:
        group["lr"] = lr


class Augment:
    """Normalizes and flips on the device."""

    def __init__(self, device):
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1) * 255
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1) * 255

    def __call__(self, images):
        images = images.float().sub_(self.mean).div_(self.std)
        flip = torch.rand(len(images), device=images.device) < 0.5
        return torch.where(flip[:, None, None, None], images.flip(-1), images)


def main(args):
    torch.manual_seed(69)
    device = torch.device("cuda")
    config = ViTMAEConfig(
        hidden_size=288,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=1152,
        image_size=96,
        patch_size=8,
        mask_ratio=args.mask_ratio,
        decoder_hidden_size=160,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=640,
        norm_pix_loss=True,
    )
    model = ViTMAEForPreTraining(config)
    model.to(device)
    model.train(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.blr, betas=(0.9, 0.95), weight_decay=0.05)
    augment = Augment(device)
    for step in range(args.steps):
        adjust_learning_rate(optimizer, step, args)
        raw = torch.randint(0, 256, (args.batch_size, 3, 96, 96), dtype=torch.uint8)
        samples = augment(raw.to(device, non_blocking=True))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(pixel_values=samples)
        loss = outputs.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f} lr {optimizer.param_groups[0]['lr']:.2e}")
        end_of_step(
            inputs=[samples, augment.mean, augment.std],
            activations=[loss, outputs.logits, outputs.mask, outputs.ids_restore],
        )


if __name__ == "__main__":
    main(get_args())
