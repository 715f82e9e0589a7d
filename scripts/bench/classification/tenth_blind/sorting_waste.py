"""A FocalNet sorts waste into bins, as the example of transformers trains classifiers: a Trainer with weighted classes, half precision, two batches to a step, mixed pictures, accuracy between."""

import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    FocalNetConfig,
    FocalNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

LABELS = "battery biological cardboard clothes glass metal paper plastic shoes trash".split()
SIZE = 64
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


class Waste(Dataset):
    """Photos of which some kinds are rare."""

    def __init__(self, n, seed, train):
        rng = np.random.default_rng(seed)
        share = 1 / np.arange(1, len(LABELS) + 1)
        self.labels = rng.choice(len(LABELS), size=n, p=share / share.sum())
        self.pixels = torch.from_numpy(rng.integers(0, 256, (n, 3, 80, 80), dtype=np.uint8))
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.pixels[index].float() / 255
        if self.train:
            top, left = torch.randint(0, 80 - SIZE + 1, (2,)).tolist()
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
        else:
            top = left = (80 - SIZE) // 2
        image = image[:, top : top + SIZE, left : left + SIZE]
        return {
            "pixel_values": (image - MEAN[:, None, None]) / STD[:, None, None],
            "labels": int(self.labels[index]),
        }


class MixupCollator:
    def __init__(self, alpha=0.2):
        self.beta = torch.distributions.Beta(alpha, alpha)

    def __call__(self, examples):
        pixel_values = torch.stack([e["pixel_values"] for e in examples])
        labels = torch.tensor([e["labels"] for e in examples])
        targets = nn.functional.one_hot(labels, len(LABELS)).float()
        lam, order = self.beta.sample(), torch.randperm(len(examples))
        return {
            "pixel_values": lam * pixel_values + (1 - lam) * pixel_values[order],
            "labels": lam * targets + (1 - lam) * targets[order],
        }


def collate(examples):
    return {
        "pixel_values": torch.stack([e["pixel_values"] for e in examples]),
        "labels": torch.tensor([e["labels"] for e in examples]),
    }


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights, eval_collator, **kwargs):
        super().__init__(*args, **kwargs)
        self.criterion = nn.CrossEntropyLoss(weight=class_weights, label_smoothing=0.1).to(self.args.device)
        self.eval_collator = eval_collator

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.criterion(outputs.logits.float(), labels)
        return (loss, outputs) if return_outputs else loss

    def get_eval_dataloader(self, eval_dataset=None):
        mixing, self.data_collator = self.data_collator, self.eval_collator
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = mixing


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def compute_metrics(eval_pred):
    predicted = np.argmax(eval_pred.predictions, axis=1)
    per_class = [
        (predicted[eval_pred.label_ids == c] == c).mean()
        for c in range(len(LABELS))
        if (eval_pred.label_ids == c).any()
    ]
    return {
        "accuracy": float((predicted == eval_pred.label_ids).mean()),
        "balanced_accuracy": float(np.mean(per_class)),
    }


def main():
    set_seed(1001)
    train_dataset, eval_dataset = Waste(160, 1, train=True), Waste(32, 2, train=False)
    counts = np.bincount(train_dataset.labels, minlength=len(LABELS)).clip(1)
    class_weights = torch.tensor(counts.sum() / (len(LABELS) * counts), dtype=torch.float32)

    config = FocalNetConfig(
        image_size=SIZE,
        embed_dim=64,
        depths=[2, 2, 4, 2],
        hidden_sizes=[128, 256, 384, 512],
        drop_path_rate=0.1,
        use_layerscale=True,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )
    model = FocalNetForImageClassification(config)
    print(f"{model.num_parameters() / 1e6:.1f}M parameters")

    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        remove_unused_columns=False,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=3e-4,
        weight_decay=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        max_grad_norm=1.0,
        fp16=torch.cuda.is_available(),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = WeightedTrainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        data_collator=MixupCollator(),
        compute_metrics=compute_metrics,
        callbacks=[Steps()],
        class_weights=class_weights,
        eval_collator=collate,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
