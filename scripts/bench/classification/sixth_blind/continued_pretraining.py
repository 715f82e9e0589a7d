"""An OLMo 2 is trained on with the texts of one subject: the Trainer, packed blocks, a fused AdamW, checkpoints, evaluation between."""

import math
import tempfile

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

VOCABULARY, BLOCK = 20000, 256


def group_texts(documents):
    """All texts one after the other, cut into blocks of the same length."""
    tokens = torch.cat(documents)
    total = len(tokens) // BLOCK * BLOCK
    return tokens[:total].view(-1, BLOCK)


class Blocks(Dataset):
    def __init__(self, n_documents, seed):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(100, 600, (n_documents,), generator=generator).tolist()
        self.blocks = group_texts([torch.randint(10, VOCABULARY, (n,), generator=generator) for n in lengths])

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        ids = self.blocks[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def preprocess_logits_for_metrics(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(prediction):
    found, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((found == labels).mean())}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(201)
    config = Olmo2Config(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=1,
        eos_token_id=2,
    )
    model = Olmo2ForCausalLM(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=2e-5,
        weight_decay=0.1,
        adam_beta2=0.95,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        max_steps=4,
        bf16=True,
        gradient_checkpointing=True,
        optim="adamw_torch_fused",
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Blocks(60, seed=1),
        eval_dataset=Blocks(4, seed=2),
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        callbacks=[Steps()],
    )
    trainer.train()
    metrics = trainer.evaluate()
    print("perplexity", math.exp(metrics["eval_loss"]))


if __name__ == "__main__":
    main()
