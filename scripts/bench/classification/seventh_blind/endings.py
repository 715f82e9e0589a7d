"""An ALBERT chooses how a story goes on, one of four: the Trainer, checkpoints on disk, layers that share their weights, best model at the end."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    AlbertConfig,
    AlbertForMultipleChoice,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, PADDING, N_CHOICES = 15000, 0, 4


class Swag(Dataset):
    """A beginning with each of four endings, as a tokenizer makes pairs of them."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            first = [2, *rng.integers(5, VOCABULARY, size=rng.integers(10, 30)).tolist(), 3]
            seconds = [
                [*rng.integers(5, VOCABULARY, size=rng.integers(6, 24)).tolist(), 3] for _ in range(N_CHOICES)
            ]
            self.rows.append(
                {
                    "input_ids": [first + second for second in seconds],
                    "token_type_ids": [[0] * len(first) + [1] * len(second) for second in seconds],
                    "attention_mask": [[1] * (len(first) + len(second)) for second in seconds],
                    "label": int(rng.integers(N_CHOICES)),
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@dataclass
class DataCollatorForMultipleChoice:
    pad_to_multiple_of: int = 8

    def __call__(self, features):
        labels = [feature["label"] for feature in features]
        longest = max(len(ids) for feature in features for ids in feature["input_ids"])
        longest += -longest % self.pad_to_multiple_of
        batch = {}
        for key in ("input_ids", "token_type_ids", "attention_mask"):
            flat = [ids + [PADDING] * (longest - len(ids)) for feature in features for ids in feature[key]]
            batch[key] = torch.tensor(flat).view(len(features), N_CHOICES, longest)
        batch["labels"] = torch.tensor(labels, dtype=torch.int64)
        return batch


def compute_metrics(eval_predictions):
    predictions, label_ids = eval_predictions
    preds = np.argmax(predictions, axis=1)
    return {"accuracy": (preds == label_ids).astype(np.float32).mean().item()}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


if __name__ == "__main__":
    set_seed(311)
    model = AlbertForMultipleChoice(
        AlbertConfig(
            vocab_size=VOCABULARY,
            embedding_size=128,
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=6,
            max_position_embeddings=128,
            pad_token_id=PADDING,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        learning_rate=5e-5,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        max_steps=4,
        weight_decay=0.01,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Swag(40, seed=1),
        eval_dataset=Swag(6, seed=2),
        data_collator=DataCollatorForMultipleChoice(),
        compute_metrics=compute_metrics,
        callbacks=[Steps()],
    )
    trainer.train()
