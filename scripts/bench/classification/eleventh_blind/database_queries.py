"""A Gemma 3 learns to write SQL for questions: LoRA+ with a faster rate for one half of each pair, noise on the embeddings (NEFTune), the Trainer on frozen bfloat16, two batches to a step, exact matches between."""

import tempfile

import numpy as np
import torch
from peft import LoraConfig, TaskType, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
    set_seed,
)

VOCAB_SIZE, PAD, EOS, BOS = 20000, 0, 1, 2
SCHEMA_TOKENS, START_OF_TURN, END_OF_TURN = range(100, 400), 105, 106
IGNORE_INDEX = -100


class SqlCreateContext(Dataset):
    """b-mc2/sql-create-context after the chat template: a schema, a question, an answer."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.examples = []
        for _ in range(n):
            schema = rng.choice(SCHEMA_TOKENS, int(rng.integers(20, 60))).tolist()
            question = rng.integers(400, VOCAB_SIZE, int(rng.integers(8, 24))).tolist()
            answer = rng.choice([*schema, *question], int(rng.integers(10, 30))).tolist()
            prompt = [BOS, START_OF_TURN, *schema, *question, END_OF_TURN, START_OF_TURN]
            self.examples.append(
                {
                    "input_ids": [*prompt, *answer, EOS],
                    "labels": [IGNORE_INDEX] * len(prompt) + [*answer, EOS],
                }
            )

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def data_collator(features, pad_to_multiple_of=8):
    longest = max(len(f["input_ids"]) for f in features)
    longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of

    def padded(key, value):
        return torch.tensor([f[key] + [value] * (longest - len(f[key])) for f in features])

    input_ids = padded("input_ids", PAD)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": padded("labels", IGNORE_INDEX),
    }


def preprocess_logits_for_metrics(logits, labels):
    """Only the best words go to the host, not the logits."""
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(dim=-1)


def compute_metrics(eval_preds):
    predictions, labels = eval_preds.predictions[:, :-1], eval_preds.label_ids[:, 1:]
    mask = labels != IGNORE_INDEX
    right = (predictions == labels) & mask
    return {
        "token_accuracy": right.sum() / mask.sum(),
        "exact_match": (right.sum(-1) == mask.sum(-1)).mean(),
    }


class LogCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step}: exact match {metrics['eval_exact_match']:.3f}")


def main():
    set_seed(1101)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=64,
        max_position_embeddings=512,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        attn_implementation="eager",  # as they recommend for training
    )
    model = Gemma3ForCausalLM(config).to(torch.bfloat16)
    peft_config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=16,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules="all-linear",
    )
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()

    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=6,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=2,
        max_grad_norm=0.3,
        neftune_noise_alpha=5,
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
    )
    optimizer = create_loraplus_optimizer(
        model,
        optimizer_cls=torch.optim.AdamW,
        lr=2e-4,
        loraplus_lr_ratio=16,
        loraplus_weight_decay=0.01,
    )
    scheduler = get_cosine_schedule_with_warmup(optimizer, 1, training_args.max_steps)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=SqlCreateContext(48, seed=1),
        eval_dataset=SqlCreateContext(4, seed=2),
        data_collator=data_collator,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        optimizers=(optimizer, scheduler),
        callbacks=[LogCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
