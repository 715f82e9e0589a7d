"""Which stroke somebody swims is told from a short clip by a TimeSformer: attention over time and then over space, the Trainer in bfloat16, two batches to a step, colours changed for a whole clip, the best of the checkpoints is loaded at the end."""

import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    TimesformerConfig,
    TimesformerForVideoClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

labels = ["backstroke", "breaststroke", "butterfly", "crawl", "start", "turn"]
label2id = {label: i for i, label in enumerate(labels)}
id2label = {i: label for label, i in label2id.items()}
mean, std = np.array([0.45, 0.45, 0.45]), np.array([0.225, 0.225, 0.225])
num_frames, image_size = 6, 64


class Clips(Dataset):
    """Noise that moves in a direction of its kind; frames are taken evenly from longer clips."""

    def __init__(self, n, seed, train):
        self.rng, self.train = np.random.default_rng(seed), train
        self.kinds = self.rng.integers(len(labels), size=n)
        self.scenes = self.rng.integers(0, 256, (n, 160, 160, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, i):
        kind, scene = int(self.kinds[i]), self.scenes[i]
        angle, start = 2 * np.pi * kind / len(labels), 32 + self.rng.integers(-8, 8, 2)
        frames = []
        for t in np.linspace(0, 23, num_frames):
            top, left = (start + t * np.array([np.sin(angle), np.cos(angle)])).astype(int)
            frames.append(scene[top : top + image_size, left : left + image_size])
        video = np.stack(frames).astype(np.float32) / 255
        if self.train:
            video = np.clip(
                video * self.rng.uniform(0.8, 1.2) + self.rng.uniform(-0.1, 0.1, (1, 1, 1, 3)), 0, 1
            )
        video = torch.from_numpy((video - mean) / std).permute(0, 3, 1, 2).float()
        return {"pixel_values": video, "labels": kind}


def collate_fn(examples):
    return {
        "pixel_values": torch.stack([example["pixel_values"] for example in examples]),
        "labels": torch.tensor([example["labels"] for example in examples]),
    }


def compute_metrics(eval_pred):
    found = eval_pred.predictions.argmax(axis=-1)
    right = found == eval_pred.label_ids
    per_class = [right[eval_pred.label_ids == k].mean() for k in np.unique(eval_pred.label_ids)]
    return {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean(per_class))}


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print({k: round(v, 4) for k, v in logs.items() if isinstance(v, float)})


def main():
    set_seed(1202)
    config = TimesformerConfig(
        image_size=image_size,
        patch_size=16,
        num_frames=num_frames,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=1024,
        attention_probs_dropout_prob=0.1,
        hidden_dropout_prob=0.1,
        attention_type="divided_space_time",
        label2id=label2id,
        id2label=id2label,
    )
    model = TimesformerForVideoClassification(config)
    # what a patch is stays as it was pretrained
    for parameter in model.timesformer.embeddings.parameters():
        parameter.requires_grad = False
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{trainable / 1e6:.1f}M of {model.num_parameters() / 1e6:.1f}M parameters are trained")

    with tempfile.TemporaryDirectory() as output_dir:
        args = TrainingArguments(
            output_dir=output_dir,
            remove_unused_columns=False,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            learning_rate=5e-5,
            weight_decay=0.05,
            lr_scheduler_type="cosine",
            warmup_steps=1,
            per_device_train_batch_size=2,
            per_device_eval_batch_size=4,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            max_grad_norm=1.0,
            label_smoothing_factor=0.1,
            bf16=torch.cuda.is_available(),
            load_best_model_at_end=True,
            metric_for_best_model="accuracy",
            logging_steps=1,
            dataloader_drop_last=True,
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            args,
            train_dataset=Clips(8, seed=1, train=True),
            eval_dataset=Clips(4, seed=2, train=False),
            data_collator=collate_fn,
            compute_metrics=compute_metrics,
            callbacks=[Report()],
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
