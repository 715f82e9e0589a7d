"""A BLIP learns to describe pictures: a ViT and a text decoder that looks at it, bfloat16 by autocast, a plain loop."""

import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipTextConfig,
    BlipVisionConfig,
    get_cosine_schedule_with_warmup,
)

VOCABULARY, SIZE, LONGEST = 10000, 128, 32


class ImageCaptioningDataset(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        n = int(torch.randint(8, LONGEST, ()))
        ids = torch.zeros(LONGEST, dtype=torch.long)
        ids[:n] = torch.randint(5, VOCABULARY, (n,))
        return {
            "pixel_values": torch.randn(3, SIZE, SIZE),
            "input_ids": ids,
            "attention_mask": (torch.arange(LONGEST) < n).long(),
        }


def build_model():
    text = BlipTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        encoder_hidden_size=320,
        intermediate_size=1024,
        num_hidden_layers=5,
        num_attention_heads=4,
        max_position_embeddings=64,
        bos_token_id=2,
        eos_token_id=3,
        sep_token_id=3,
        pad_token_id=0,
    )
    vision = BlipVisionConfig(
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=6,
        num_attention_heads=5,
        image_size=SIZE,
        patch_size=16,
    )
    config = BlipConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), image_text_hidden_size=128
    )
    return BlipForConditionalGeneration(config)


def main():
    torch.manual_seed(208)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build_model()
    model.to(device)
    train_dataloader = DataLoader(ImageCaptioningDataset(40), shuffle=True, batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.05)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 50)
    model.train()
    for idx, batch in enumerate(train_dataloader):
        input_ids = batch.pop("input_ids").to(device)
        attention_mask = batch.pop("attention_mask").to(device)
        pixel_values = batch.pop("pixel_values").to(device)
        labels = input_ids.masked_fill(attention_mask == 0, -100)
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            outputs = model(
                input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values, labels=labels
            )
            loss = outputs.loss
        print("Loss:", loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        end_of_step(
            inputs=[input_ids, attention_mask, pixel_values, labels],
            activations=[value for value in outputs.values() if value is not None],
        )


if __name__ == "__main__":
    main()
