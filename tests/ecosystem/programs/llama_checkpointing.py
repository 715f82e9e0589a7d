"""Trainer with what saves memory on a single card: bf16, gradient checkpointing and accumulation."""

from dataclasses import dataclass

import torch
from own_count import print_count
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


@dataclass
class Sizes:
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    vocab: int = 2048
    length: int = 192


class RandomText(torch.utils.data.IterableDataset):
    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        while True:
            ids = torch.randint(0, self.sizes.vocab, (self.sizes.length,), generator=generator)
            yield {"input_ids": ids, "labels": ids}


class Report(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **kwargs):
        print_count(kwargs["model"], kwargs["optimizer"])


sizes = Sizes()
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        intermediate_size=4 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=sizes.length,
        use_cache=False,
        tie_word_embeddings=True,
    )
)
args = TrainingArguments(
    output_dir="llama-out",
    bf16=True,
    gradient_checkpointing=True,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=5,
    optim="adamw_torch",
    lr_scheduler_type="constant",
    logging_strategy="no",
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Trainer(model=model, args=args, train_dataset=RandomText(sizes), callbacks=[Report]).train()
