"""Florence-2 learns to describe damage on photographed cars: accelerate in bf16, a frozen vision tower, AdamW, two micro-batches."""

import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BartConfig,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2VisionConfig,
    get_scheduler,
)

IMAGE_TOKEN = 6000
N_IMAGE_TOKENS = 12 * 12 // 4 + 1
set_seed(21)


class ClaimPhotos(Dataset):
    """A photo, the task prompt <DAMAGE> and the adjuster's note."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = torch.rand(3, 192, 192)
        image = (image - 0.45) / 0.225
        prompt = torch.tensor([0, 417, 88, 2140, 61, 2])
        note = torch.randint(4, 5900, (random.randint(24, 60),))
        return image, prompt, torch.cat([note, torch.tensor([2])])


def collate(examples):
    images, prompts, notes = zip(*examples)
    prompts = pad_sequence(prompts, batch_first=True, padding_value=1)
    pictures = torch.full((len(images), N_IMAGE_TOKENS), IMAGE_TOKEN)
    input_ids = torch.cat([pictures, prompts], dim=1)
    return {
        "pixel_values": torch.stack(images),
        "input_ids": input_ids,
        "attention_mask": (input_ids != 1).long(),
        "labels": pad_sequence(notes, batch_first=True, padding_value=-100),
    }


def build_model():
    vision = Florence2VisionConfig(
        depths=(1, 1, 3, 1),
        embed_dim=(64, 128, 192, 384),
        num_heads=(2, 4, 6, 12),
        num_groups=(2, 4, 6, 12),
        window_size=6,
        projection_dim=320,
    )
    text = BartConfig(
        vocab_size=6016,
        d_model=320,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=5,
        decoder_attention_heads=5,
        encoder_ffn_dim=1280,
        decoder_ffn_dim=1280,
        max_position_embeddings=256,
        dropout=0.1,
    )
    return Florence2ForConditionalGeneration(
        Florence2Config(vision_config=vision, text_config=text, image_token_id=IMAGE_TOKEN)
    )


def main():
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    train_loader = DataLoader(ClaimPhotos(64), batch_size=4, shuffle=True, collate_fn=collate, drop_last=True)
    valid_loader = DataLoader(ClaimPhotos(8), batch_size=4, collate_fn=collate)

    model = build_model()
    for parameter in model.model.vision_tower.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-5, weight_decay=0.01
    )
    n_epochs = 2
    scheduler = get_scheduler(
        "linear", optimizer, num_warmup_steps=0, num_training_steps=n_epochs * len(train_loader)
    )
    model, optimizer, train_loader, valid_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, valid_loader, scheduler
    )

    updates = 0
    for epoch in range(n_epochs):
        model.train()
        running = 0.0
        for step, batch in enumerate(train_loader):
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.item()
            if accelerator.sync_gradients:
                updates += 1
                if updates % 2 == 0:
                    model.eval()
                    with torch.no_grad():
                        held_out = [model(**unseen).loss.item() for unseen in valid_loader]
                    print(
                        f"{updates}: train {running / (step + 1):.3f} valid {sum(held_out) / len(held_out):.3f}"
                    )
                    model.train()
                end_of_step(inputs=batch, activations=[outputs, loss])
    accelerator.unwrap_model(model).save_pretrained("florence2-damage")


if __name__ == "__main__":
    main()
