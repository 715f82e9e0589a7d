"""A reward model with five attributes (as for HelpSteer): a Qwen2 with a regression head, all weights trained by the Trainer in bfloat16 autocast, fused AdamW, a lower rate in the backbone."""

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    Qwen2Config,
    Qwen2ForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

ATTRIBUTES = ["helpfulness", "correctness", "coherence", "complexity", "verbosity"]
PAD = 0
torch.manual_seed(21)


class RatedAnswers(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.ids = [rng.integers(5, 5000, rng.integers(70, 220)) for _ in range(n)]
        self.ratings = rng.integers(0, 5, (n, len(ATTRIBUTES))).astype(np.float32)
        self.ratings[rng.random(self.ratings.shape) < 0.1] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {
            "input_ids": torch.from_numpy(self.ids[index]),
            "labels": torch.from_numpy(self.ratings[index]),
        }


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True, padding_value=PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.stack([r["labels"] for r in rows]),
    }


class RatingTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tell(inputs=inputs)
        labels = inputs.pop("labels")
        outputs = model(**inputs, use_cache=False)
        rated = labels != -100
        errors = (outputs.logits.float() - labels) ** 2
        loss = (errors * rated).sum() / rated.sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            head = [p for n, p in self.model.named_parameters() if n.startswith("score")]
            matrices = [p for n, p in self.model.model.named_parameters() if p.ndim >= 2]
            rest = [p for n, p in self.model.model.named_parameters() if p.ndim < 2]
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": matrices, "weight_decay": 0.01},
                    {"params": rest, "weight_decay": 0.0},
                    {"params": head, "lr": 1e-4, "weight_decay": 0.0},
                ],
                lr=self.args.learning_rate,
                betas=(0.9, 0.98),
                fused=True,
            )
        return self.optimizer


def correlations(evaluation):
    predicted, rated = evaluation.predictions, evaluation.label_ids
    scores = {}
    for i, name in enumerate(ATTRIBUTES):
        known = rated[:, i] != -100
        scores[name] = float(np.corrcoef(predicted[known, i], rated[known, i])[0, 1])
    return scores


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


model = Qwen2ForSequenceClassification(
    Qwen2Config(
        vocab_size=5000,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        num_labels=len(ATTRIBUTES),
        pad_token_id=PAD,
    )
)
trainer = RatingTrainer(
    model=model,
    args=TrainingArguments(
        output_dir="ratings",
        per_device_train_batch_size=6,
        per_device_eval_batch_size=8,
        learning_rate=9e-6,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=2,
        max_steps=6,
        max_grad_norm=1.0,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_drop_last=True,
        label_names=["labels"],
    ),
    train_dataset=RatedAnswers(64, 0),
    eval_dataset=RatedAnswers(16, 1),
    data_collator=collate,
    compute_metrics=correlations,
    callbacks=[StepEnds()],
)
trainer.train()
