"""A TrOCR reads lines of handwriting: a ViT before a text decoder, trained by a plain loop, with generation between."""

import torch
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import (
    TrOCRConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

VOCABULARY, LONGEST = 8000, 24


class Lines(Dataset):
    def __init__(self, n, size=112):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        length = int(torch.randint(6, LONGEST, (), generator=generator))
        labels = torch.randint(4, VOCABULARY, (LONGEST,), generator=generator)
        labels[length] = 2
        labels[length + 1 :] = -100
        pixel_values = torch.randn(3, self.size, self.size, generator=generator)
        return {"pixel_values": pixel_values, "labels": labels}


def build_model():
    encoder = ViTConfig(
        image_size=112,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=768,
        qkv_bias=False,
    )
    decoder = TrOCRConfig(
        vocab_size=VOCABULARY,
        d_model=160,
        decoder_layers=4,
        decoder_attention_heads=4,
        decoder_ffn_dim=640,
        max_position_embeddings=64,
        cross_attention_hidden_size=192,
        is_decoder=True,
        add_cross_attention=True,
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = VisionEncoderDecoderModel(config)
    model.config.decoder_start_token_id = 2
    model.config.pad_token_id = 1
    for place in (model.generation_config,):
        place.decoder_start_token_id, place.pad_token_id, place.eos_token_id = 2, 1, 2
    return model


def compute_cer(pred_ids, label_ids):
    """How many tokens at the same place are wrong."""
    n = min(pred_ids.shape[1] - 1, label_ids.shape[1])
    counted = label_ids[:, :n] != -100
    return (pred_ids[:, 1 : n + 1] != label_ids[:, :n])[counted].float().mean().item()


def main():
    torch.manual_seed(110)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model()
    model.to(device)
    train_dataloader = DataLoader(Lines(64), batch_size=8, shuffle=True)
    eval_dataloader = DataLoader(Lines(8), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    for epoch in range(3):
        model.train()
        train_loss = 0.0
        for number, batch in enumerate(train_dataloader):
            for k, v in batch.items():
                batch[k] = v.to(device)
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            train_loss += loss.item()
            end_of_step(inputs=batch)
            if number == 1:
                break
        print(f"Loss after epoch {epoch}:", train_loss / (number + 1))

        model.eval()
        valid_cer = 0.0
        with torch.no_grad():
            for batch in eval_dataloader:
                generated = model.generate(batch["pixel_values"].to(device), max_new_tokens=12)
                valid_cer += compute_cer(generated.cpu(), batch["labels"])
        print("Validation CER:", valid_cer / len(eval_dataloader))


if __name__ == "__main__":
    main()
