"""Fine-tuning of a Parakeet (FastConformer with CTC) on voice mails with the Trainer: schedule-free AdamW, bfloat16 autocast, evaluation of errors."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    ParakeetCTCConfig,
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

rng = np.random.default_rng(6)
torch.manual_seed(6)
extractor = ParakeetFeatureExtractor(feature_size=80, sampling_rate=16000)


class VoiceMails(Dataset):
    def __init__(self, count):
        self.seconds = rng.uniform(3, 7, count)

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        seconds = self.seconds[index]
        audio = rng.normal(0, 0.05, int(16000 * seconds)).astype(np.float32)
        return {"audio": audio, "labels": rng.integers(0, 1024, int(3 * seconds))}


def collate(examples):
    batch = dict(
        extractor([example["audio"] for example in examples], sampling_rate=16000, return_tensors="pt")
    )
    longest = max(len(example["labels"]) for example in examples)
    labels = torch.full((len(examples), longest), 1024)
    for row, example in enumerate(examples):
        labels[row, : len(example["labels"])] = torch.from_numpy(example["labels"])
    batch["labels"] = labels
    return batch


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


class SpeechTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


model = ParakeetForCTC(
    ParakeetCTCConfig(
        vocab_size=1025,
        encoder_config=ParakeetEncoderConfig(
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=8,
            intermediate_size=1024,
            subsampling_conv_channels=128,
            layerdrop=0.0,
        ).to_dict(),
    )
)
arguments = TrainingArguments(
    output_dir="parakeet",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    optim="schedule_free_adamw",
    lr_scheduler_type="constant",
    learning_rate=5e-4,
    bf16=True,
    max_grad_norm=1.0,
    max_steps=6,
    eval_strategy="steps",
    eval_steps=2,
    prediction_loss_only=True,
    logging_steps=1,
    remove_unused_columns=False,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
SpeechTrainer(
    model=model,
    args=arguments,
    data_collator=collate,
    train_dataset=VoiceMails(60),
    eval_dataset=VoiceMails(6),
    callbacks=[StepEnds()],
).train()
