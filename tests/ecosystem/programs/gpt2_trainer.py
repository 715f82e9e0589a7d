"""Pre-train a small GPT-2 on made-up text with the Trainer of transformers."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from own_count import print_count
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Blocks(Dataset):
    """Token blocks of one length, as `group_texts` makes them."""

    def __init__(self, n=64, length=128, vocab=2048):
        self.tokens = torch.randint(0, vocab, (n, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        ids = self.tokens[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


class Count(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        print_count(model, optimizer)


def main():
    set_seed(17)
    config = GPT2Config(vocab_size=2048, n_positions=128, n_embd=192, n_layer=4, n_head=6)
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir="gpt2-out",
        per_device_train_batch_size=4,
        max_steps=6,
        learning_rate=5e-4,
        warmup_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        dataloader_num_workers=0,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Blocks(),
        data_collator=default_data_collator,
        callbacks=[Count()],
    )
    result = trainer.train()
    print(result.metrics["train_runtime"] > 0)


if __name__ == "__main__":
    main()
