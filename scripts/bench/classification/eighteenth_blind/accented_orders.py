"""Moonshine is fine-tuned on accented orders taken by phone with the Seq2SeqTrainer: bfloat16 autocast, two accumulated batches, fused AdamW, checkpointed layers."""

from dataclasses import dataclass

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    Wav2Vec2FeatureExtractor,
    set_seed,
)

set_seed(23)
RATE = 16_000
PAD = 2


class Orders(Dataset):
    """Recordings of one to three seconds with the token ids of their transcripts."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = np.random.default_rng(self.seed + index)
        seconds = noise.uniform(1.0, 3.0)
        wave = noise.normal(0, 0.1, int(seconds * RATE)).astype(np.float32)
        length = int(seconds * 6)
        return {"audio": wave, "labels": noise.integers(3, 6000, length).tolist() + [2]}


@dataclass
class SpeechCollator:
    extractor: Wav2Vec2FeatureExtractor

    def __call__(self, rows):
        batch = self.extractor(
            [row["audio"] for row in rows],
            sampling_rate=RATE,
            padding=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        longest = max(len(row["labels"]) for row in rows)
        labels = torch.full((len(rows), longest), -100)
        for i, row in enumerate(rows):
            labels[i, : len(row["labels"])] = torch.tensor(row["labels"])
        batch["labels"] = labels
        return batch


class OrdersTrainer(Seq2SeqTrainer):
    def compute_loss(self, model, inputs, **kwargs):
        tell(inputs=dict(inputs))
        return super().compute_loss(model, inputs, **kwargs)


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


model = MoonshineForConditionalGeneration(
    MoonshineConfig(
        vocab_size=6000,
        hidden_size=288,
        intermediate_size=1152,
        encoder_num_hidden_layers=3,
        decoder_num_hidden_layers=3,
        pad_token_id=PAD,
    )
)
model.config.use_cache = False

arguments = Seq2SeqTrainingArguments(
    output_dir="moonshine-orders",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    learning_rate=1e-4,
    weight_decay=0.01,
    optim="adamw_torch_fused",
    lr_scheduler_type="cosine",
    warmup_steps=1,
    max_grad_norm=1.0,
    max_steps=6,
    bf16=True,
    eval_strategy="steps",
    eval_steps=2,
    prediction_loss_only=True,
    remove_unused_columns=False,
    save_strategy="no",
    logging_steps=1,
    report_to="none",
    disable_tqdm=True,
)
trainer = OrdersTrainer(
    model=model,
    args=arguments,
    train_dataset=Orders(200, 0),
    eval_dataset=Orders(4, 10_000),
    data_collator=SpeechCollator(
        Wav2Vec2FeatureExtractor(
            feature_size=1, sampling_rate=RATE, do_normalize=False, return_attention_mask=True
        )
    ),
    callbacks=[StepEnds()],
)
trainer.train()
