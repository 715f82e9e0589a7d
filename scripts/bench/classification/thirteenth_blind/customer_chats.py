"""A GLM-4 learns to answer customers by DoRA: directions and sizes of weights apart, a few new words of the chat format are learned with it, answers alone count; the Trainer on frozen bfloat16 with checkpoints, two batches to a step, perplexity between."""

import math
import random
import tempfile

import torch
from peft import LoraConfig, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Glm4Config,
    Glm4ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCAB_SIZE = 18000
PAD, EOS = 0, 1
# the new words: who speaks, and where a turn ends
USER, ASSISTANT, SYSTEM, END = range(VOCAB_SIZE - 4, VOCAB_SIZE)
MAX_LENGTH = 112


def conversation(rng):
    def words(low, high):
        return [rng.randrange(10, VOCAB_SIZE - 4) for _ in range(rng.randint(low, high))]

    turns = [(SYSTEM, list(range(100, 112)))]
    for _ in range(rng.randint(1, 3)):
        turns += [(USER, words(4, 20)), (ASSISTANT, words(6, 30))]
    return turns


def apply_chat_template(turns):
    input_ids, labels = [], []
    for role, text in turns:
        counted = role == ASSISTANT
        input_ids += [role, *text, END]
        labels += [-100] + ([*text, END] if counted else [-100] * (len(text) + 1))
    return {"input_ids": [*input_ids, EOS][:MAX_LENGTH], "labels": [*labels, EOS][:MAX_LENGTH]}


class SupportChats(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.examples = [apply_chat_template(conversation(rng)) for _ in range(n)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


def data_collator(features):
    longest = max(len(f["input_ids"]) for f in features)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for f in features:
        n_pad = longest - len(f["input_ids"])
        batch["input_ids"].append(f["input_ids"] + [PAD] * n_pad)
        batch["attention_mask"].append([1] * len(f["input_ids"]) + [0] * n_pad)
        batch["labels"].append(f["labels"] + [-100] * n_pad)
    return {key: torch.tensor(rows) for key, rows in batch.items()}


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step}: perplexity {math.exp(metrics['eval_loss']):.1f}")


def load_base_model(device):
    config = Glm4Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=320,
        intermediate_size=960,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    model = Glm4ForCausalLM(config).to(dtype=torch.bfloat16, device=device)
    model.config.use_cache = False
    return model


def main():
    set_seed(1301)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_base_model(device)
    peft_config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        use_dora=True,
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
        trainable_token_indices={"embed_tokens": [USER, ASSISTANT, SYSTEM, END]},
    )
    model = get_peft_model(model, peft_config)
    model.print_trainable_parameters()

    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=8,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=2e-4,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        warmup_steps=1,
        weight_decay=0.01,
        max_grad_norm=0.3,
        adam_beta2=0.95,
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=SupportChats(36, seed=1),
        eval_dataset=SupportChats(6, seed=2),
        data_collator=data_collator,
        callbacks=[StepCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
