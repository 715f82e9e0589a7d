"""An Electra finds names in sentences: the Trainer, smoothed labels, accumulated gradients, evaluations in between."""

import torch
from programs import end_of_step
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    ElectraConfig,
    ElectraForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]


class Sentences(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for length in torch.randint(24, 128, (n,), generator=generator).tolist():
            ids = torch.randint(5, 6000, (length,), generator=generator)
            labels = torch.randint(0, len(LABELS), (length,), generator=generator)
            labels[ids % 4 == 0] = -100
            self.rows.append({"input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    ids = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    labels = pad_sequence([row["labels"] for row in rows], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": labels}


def compute_metrics(found):
    predictions, labels = found.predictions.argmax(-1), found.label_ids
    counted = labels != -100
    return {"accuracy": float((predictions == labels)[counted].mean())}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    config = ElectraConfig(
        vocab_size=6000,
        embedding_size=128,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=160,
        num_labels=len(LABELS),
    )
    model = ElectraForTokenClassification(config)
    arguments = TrainingArguments(
        output_dir="entities",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=2,
        label_smoothing_factor=0.1,
        learning_rate=5e-5,
        weight_decay=0.01,
        warmup_steps=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        seed=81,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        data_collator=collate,
        train_dataset=Sentences(96, seed=0),
        eval_dataset=Sentences(32, seed=1),
        compute_metrics=compute_metrics,
        callbacks=[StepEnds()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
