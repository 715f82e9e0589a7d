"""StarCoder2 learns to write commit messages for diffs with the Trainer: loss on the message alone, noisy embeddings (NEFTune), smoothed labels, bfloat16 autocast, checkpointed layers, fused AdamW, cosine."""

import random

import torch
from datasets import Dataset
from programs import end_of_step, tell
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    Starcoder2Config,
    Starcoder2ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(42)
VOCAB, PAD, EOS = 5000, 0, 1


def example(rng):
    diff = [rng.randrange(3, VOCAB) for _ in range(rng.randint(60, 140))]
    message = [rng.randrange(3, VOCAB) for _ in range(rng.randint(8, 30))] + [EOS]
    return {"input_ids": diff + message, "labels": [-100] * len(diff) + message}


def collate(examples):
    ids = pad_sequence([torch.tensor(e["input_ids"]) for e in examples], batch_first=True, padding_value=PAD)
    labels = pad_sequence([torch.tensor(e["labels"]) for e in examples], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


rng = random.Random(0)
dataset = Dataset.from_list([example(rng) for _ in range(96)])


class CommitTrainer(Trainer):
    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        tell(inputs=inputs)
        return inputs


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


model = Starcoder2ForCausalLM(
    Starcoder2Config(
        vocab_size=VOCAB,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        sliding_window=256,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        use_cache=False,
    )
)
args = TrainingArguments(
    output_dir="commits",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=5e-5,
    lr_scheduler_type="cosine",
    warmup_steps=2,
    weight_decay=0.05,
    bf16=True,
    gradient_checkpointing=True,
    neftune_noise_alpha=5.0,
    remove_unused_columns=False,
    label_smoothing_factor=0.05,
    optim="adamw_torch_fused",
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = CommitTrainer(
    model=model, args=args, train_dataset=dataset, data_collator=collate, callbacks=[StepEnds()]
)
trainer.train()
