"""A Longformer sorts long documents: windows and global attention, the Trainer, mixed precision, checkpoints."""

import tempfile

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    LongformerConfig,
    LongformerForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, LONGEST, N_TOPICS = 12000, 768, 20


class Documents(Dataset):
    def __init__(self, n, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(200, LONGEST, (n,), generator=self.generator).tolist()
        self.topics = torch.randint(N_TOPICS, (n,), generator=self.generator).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        ids = torch.full((LONGEST,), 1)
        n = self.lengths[index]
        ids[:n] = torch.randint(4, VOCABULARY, (n,), generator=self.generator)
        globally = torch.zeros(LONGEST, dtype=torch.long)
        globally[0] = 1
        return {
            "input_ids": ids,
            "attention_mask": (ids != 1).long(),
            "global_attention_mask": globally,
            "labels": self.topics[index],
        }


def compute_metrics(prediction):
    found = prediction.predictions.argmax(-1)
    return {"accuracy": float((found == prediction.label_ids).mean())}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(204)
    config = LongformerConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        attention_window=[128] * 4,
        max_position_embeddings=LONGEST + 2,
        type_vocab_size=1,
        pad_token_id=1,
        num_labels=N_TOPICS,
    )
    model = LongformerForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=3e-5,
        weight_decay=0.01,
        warmup_steps=1,
        max_steps=4,
        fp16=True,
        gradient_checkpointing=True,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Documents(16, seed=1),
        eval_dataset=Documents(4, seed=2),
        compute_metrics=compute_metrics,
        callbacks=[Steps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
