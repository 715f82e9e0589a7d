"""Sequence classification with BERT: batches padded to their longest row, Trainer, evaluation in between."""

import random

import torch
from own_count import print_count
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

random.seed(4)
torch.manual_seed(4)

VOCAB, LABELS = 3000, 3


def make_rows(n):
    rows = []
    for _ in range(n):
        length = random.randint(20, 96)
        rows.append(
            {
                "input_ids": [random.randrange(1, VOCAB) for _ in range(length)],
                "label": random.randrange(LABELS),
            }
        )
    return rows


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids, masks = [], []
    for r in rows:
        fill = width - len(r["input_ids"])
        ids.append(r["input_ids"] + [0] * fill)
        masks.append([1] * len(r["input_ids"]) + [0] * fill)
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(masks),
        "labels": torch.tensor([r["label"] for r in rows]),
    }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


class Count(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model, optimizer, **_):
        print_count(model, optimizer)


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        intermediate_size=768,
        max_position_embeddings=128,
        num_labels=LABELS,
    )
)

training_args = TrainingArguments(
    output_dir="bert-out",
    num_train_epochs=1,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    learning_rate=2e-5,
    weight_decay=0.01,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=2,
    report_to="none",
)

trainer = Trainer(
    model,
    training_args,
    train_dataset=make_rows(48),
    eval_dataset=make_rows(16),
    data_collator=collate,
    compute_metrics=accuracy,
    callbacks=[Count],
)
trainer.train()
print(trainer.evaluate()["eval_accuracy"])
