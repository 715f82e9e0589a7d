"""Fine-tuning Whisper, the way of the well-known tutorial: a collator class, Seq2SeqTrainer, frozen encoder layers."""

from dataclasses import dataclass
from typing import Any

import torch
from own_count import print_count
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

config = WhisperConfig(
    vocab_size=1200,
    num_mel_bins=40,
    d_model=128,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=256,
    decoder_ffn_dim=256,
    max_source_positions=200,
    max_target_positions=64,
    pad_token_id=1,
    bos_token_id=2,
    eos_token_id=3,
    decoder_start_token_id=4,
)


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    decoder_start_token_id: int

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        speech = torch.stack([f["input_features"] for f in features])
        longest = max(len(f["labels"]) for f in features)
        labels = torch.full((len(features), longest), -100)
        for row, feature in zip(labels, features):
            row[: len(feature["labels"])] = feature["labels"]
        if (labels[:, 0] == self.decoder_start_token_id).all().cpu().item():
            labels = labels[:, 1:]
        return {"input_features": speech, "labels": labels}


def utterances(n):
    gen = torch.Generator().manual_seed(0)
    out = []
    for i in range(n):
        text = torch.randint(5, 1200, (12 + i % 9,), generator=gen)
        text[0] = config.decoder_start_token_id
        out.append({"input_features": torch.randn(40, 400, generator=gen), "labels": text})
    return out


class CountCallback(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        print_count(model, optimizer)


def train():
    model = WhisperForConditionalGeneration(config)
    for p in model.model.encoder.layers[0].parameters():
        p.requires_grad = False
    args = Seq2SeqTrainingArguments(
        output_dir="./whisper",
        per_device_train_batch_size=4,
        learning_rate=1e-5,
        max_steps=5,
        fp16=False,
        logging_steps=5,
        save_strategy="no",
        report_to=["none"],
        remove_unused_columns=False,
        label_names=["labels"],
    )
    trainer = Seq2SeqTrainer(
        args=args,
        model=model,
        train_dataset=utterances(32),
        data_collator=DataCollatorSpeechSeq2SeqWithPadding(config.decoder_start_token_id),
        callbacks=[CountCallback()],
    )
    trainer.train()


train()
