"""T5 from scratch on a toy copy task: Seq2SeqTrainer and Adafactor."""

import torch
from own_count import print_count
from torch.utils.data import TensorDataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
)


class Watch(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **kw):
        print_count([kw["model"]], [kw["optimizer"]])


def collate(items):
    source = torch.stack([item[0] for item in items])
    return {"input_ids": source, "attention_mask": (source != 0).long(), "labels": source}


if __name__ == "__main__":
    torch.manual_seed(42)
    cfg = T5Config(
        vocab_size=1024,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=3,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(cfg)
    tokens = torch.randint(2, cfg.vocab_size, (64, 48))
    tokens[:, -1] = 1
    args = Seq2SeqTrainingArguments(
        "t5-out",
        optim="adafactor",
        learning_rate=1e-3,
        per_device_train_batch_size=8,
        max_steps=5,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=TensorDataset(tokens),
        data_collator=collate,
        callbacks=[Watch()],
    )
    trainer.train()
