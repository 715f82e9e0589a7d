"""A CLIPSeg learns to cut out what a few words name: the CLIP in it is frozen, prompts are mixed from words and pictures, bytes are cropped and normalized on the device, Accelerate in half precision, IoU between."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

SIDE, CROP = 192, 160
BOS, EOS, PAD = 7998, 7999, 1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class PhraseCut(Dataset):
    """A picture as bytes, a phrase, the mask of what it means, and another picture of the same."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.rows = [self.make() for _ in range(n)]

    def make(self):
        image, support = torch.randint(256, (2, 3, SIDE, SIDE), generator=self.g, dtype=torch.uint8)
        mask = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
        if torch.rand((), generator=self.g) > 0.2:  # sometimes there is nothing of it
            top, left = torch.randint(SIDE // 2, (2,), generator=self.g).tolist()
            mask[top : top + 70, left : left + 80] = 1
        n_words = int(torch.randint(1, 10, (), generator=self.g))
        words = torch.randint(2, BOS, (n_words,), generator=self.g).tolist()
        return {"image": image, "support": support, "mask": mask, "phrase": [BOS, *words, EOS]}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate_fn(rows):
    phrases = [torch.tensor(row["phrase"]) for row in rows]
    input_ids = torch.nn.utils.rnn.pad_sequence(phrases, batch_first=True, padding_value=PAD)
    batch = {key: torch.stack([row[key] for row in rows]) for key in ("image", "support", "mask")}
    return batch | {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}


def normalize(image):
    mean = torch.tensor(MEAN, device=image.device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=image.device).view(1, 3, 1, 1)
    return (image.float() / 255 - mean) / std


def preprocess(image, mask, training):
    """The same crop for the whole batch; the support set is seen whole, with the rest darkened."""
    if training:
        top, left = torch.randint(SIDE - CROP + 1, (2,)).tolist()
        image = image[..., top : top + CROP, left : left + CROP]
        mask = mask[..., top : top + CROP, left : left + CROP]
        if torch.rand(()) < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
    else:
        image = F.interpolate(image.float(), CROP, mode="bilinear", antialias=True)
        mask = F.interpolate(mask[:, None].float(), CROP)[:, 0]
    return normalize(image), mask.float()


def embed_prompts(net, batch, pixel_values, mixing):
    """Somewhere between the vector of the phrase and that of a picture."""
    with torch.no_grad():
        words = net.get_conditional_embeddings(
            len(pixel_values), batch["input_ids"], attention_mask=batch["attention_mask"]
        )
        if mixing is None:
            return words
        support = F.interpolate(normalize(batch["support"]), CROP, mode="bilinear")
        picture = net.get_conditional_embeddings(len(pixel_values), conditional_pixel_values=support)
        return torch.lerp(words, picture, mixing.unsqueeze(1).to(words.dtype))


@torch.inference_mode()
def evaluate(accelerator, model, loader, threshold=0.3):
    model.eval()
    inter = union = 0.0
    for batch in loader:
        pixel_values, mask = preprocess(batch["image"], batch["mask"], training=False)
        logits = model(batch["input_ids"], pixel_values, attention_mask=batch["attention_mask"]).logits
        found, wanted = accelerator.gather_for_metrics((logits.sigmoid() > threshold, mask > 0.5))
        inter += (found & wanted).sum().item()
        union += (found | wanted).sum().item()
    model.train()
    return inter / max(union, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--max_iterations", type=int, default=8)
    parser.add_argument("--val_interval", type=int, default=2)
    parser.add_argument("--amp", default="fp16" if torch.cuda.is_available() else "no")
    args = parser.parse_args()

    set_seed(1105)
    accelerator = Accelerator(mixed_precision=args.amp)
    config = CLIPSegConfig(
        text_config={
            "vocab_size": EOS + 1,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "max_position_embeddings": 32,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
        },
        vision_config={
            "hidden_size": 320,
            "intermediate_size": 1280,
            "num_hidden_layers": 7,
            "num_attention_heads": 5,
            "image_size": CROP,
            "patch_size": 16,
        },
        projection_dim=256,
        extract_layers=[2, 4, 6],
        reduce_dim=96,
        decoder_intermediate_size=1024,
        use_complex_transposed_convolution=True,
    )
    model = CLIPSegForImageSegmentation(config)
    for p in model.clip.parameters():
        p.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_iterations, eta_min=1e-4)
    train_loader = DataLoader(PhraseCut(32, 1), args.batch_size, shuffle=True, collate_fn=collate_fn)
    val_loader = DataLoader(PhraseCut(4, 2), args.batch_size, collate_fn=collate_fn)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )

    model.train()
    for i, batch in enumerate(train_loader, 1):
        pixel_values, mask = preprocess(batch["image"], batch["mask"], training=True)
        mixing = torch.rand(len(mask), device=accelerator.device)
        with accelerator.autocast():
            prompts = embed_prompts(accelerator.unwrap_model(model), batch, pixel_values, mixing)
        logits = model(pixel_values=pixel_values, conditional_embeddings=prompts).logits
        loss = F.binary_cross_entropy_with_logits(logits, mask)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        accelerator.print(f"{i}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.1e}")
        end_of_step(inputs=[batch, pixel_values, mask, mixing, prompts], activations=[logits, loss])
        if i % args.val_interval == 0:
            accelerator.print(f"{i}: IoU {evaluate(accelerator, model, val_loader):.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
