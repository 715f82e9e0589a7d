"""A HuBERT recognizes spoken commands: the Trainer, weighted layers, frozen convolutions, two batches to a step, accuracy in between."""

import random
import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    HubertConfig,
    HubertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

RATE = 16000
LABELS = "yes no up down left right on off stop go _silence_ _unknown_".split()


def random_subsample(wav, max_length, sample_rate=RATE):
    """Randomly sample chunks of `max_length` seconds from the input audio."""
    sample_length = round(sample_rate * max_length)
    if len(wav) <= sample_length:
        return wav
    random_offset = random.randint(0, len(wav) - sample_length - 1)
    return wav[random_offset : random_offset + sample_length]


class SpeechCommands(Dataset):
    def __init__(self, n, is_train):
        rng = np.random.default_rng(401 if is_train else 402)
        self.waves = [
            (rng.standard_normal(int(size)) * 0.1).astype(np.float32)
            for size in rng.integers(int(0.7 * RATE), 2 * RATE, size=n)
        ]
        self.labels = rng.integers(len(LABELS), size=n).tolist()
        self.is_train = is_train

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        wav = self.waves[i]
        wav = random_subsample(wav, 1.0) if self.is_train else wav[:RATE]
        wav = (wav - wav.mean()) / np.sqrt(wav.var() + 1e-7)
        return {"input_values": wav, "label": self.labels[i]}


def collate(features):
    """What a Wav2Vec2FeatureExtractor does with `padding=True`."""
    longest = max(len(f["input_values"]) for f in features)
    values = np.zeros((len(features), longest), dtype=np.float32)
    mask = np.zeros((len(features), longest), dtype=np.int64)
    for row, f in enumerate(features):
        values[row, : len(f["input_values"])] = f["input_values"]
        mask[row, : len(f["input_values"])] = 1
    return {
        "input_values": torch.from_numpy(values),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.tensor([f["label"] for f in features]),
    }


def compute_metrics(eval_pred):
    predictions = np.argmax(eval_pred.predictions, axis=1)
    return {"accuracy": float((predictions == eval_pred.label_ids).mean())}


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(401)
    config = HubertConfig(
        hidden_size=256,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=1024,
        conv_dim=(64,) * 7,
        num_conv_pos_embeddings=64,
        num_conv_pos_embedding_groups=16,
        classifier_proj_size=128,
        use_weighted_layer_sum=True,
        mask_time_length=5,
        final_dropout=0.0,
        layerdrop=0.0,
        num_labels=len(LABELS),
        label2id={label: i for i, label in enumerate(LABELS)},
        id2label=dict(enumerate(LABELS)),
    )
    model = HubertForSequenceClassification(config)
    model.freeze_feature_encoder()

    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        learning_rate=3e-5,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=3,
        max_steps=5,
        warmup_steps=1,
        logging_steps=1,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=SpeechCommands(36, is_train=True),
        eval_dataset=SpeechCommands(6, is_train=False),
        data_collator=collate,
        compute_metrics=compute_metrics,
        callbacks=[Report()],
    )
    train_result = trainer.train()
    trainer.log_metrics("train", train_result.metrics)
    trainer.log_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
