"""A Phi-3 learns to call tools by LoRA: the Trainer, frozen bfloat16, checkpoints, batches padded to their longest, four to a step."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Phi3Config,
    Phi3ForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, PADDING = 24000, 0


class Calls(Dataset):
    """A list of tools and a question; only the call is learned."""

    def __init__(self, n):
        self.sizes = [(int(a), int(b)) for a, b in torch.randint(16, 96, (n, 2))]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        n_prompt, n_call = self.sizes[index]
        ids = torch.randint(5, VOCABULARY, (n_prompt + n_call,)).tolist()
        return {"input_ids": ids, "labels": [-100] * n_prompt + ids[n_prompt:]}


def collate(features):
    longest = max(len(feature["input_ids"]) for feature in features)
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for feature in features:
        n = len(feature["input_ids"])
        batch["input_ids"].append(feature["input_ids"] + [PADDING] * (longest - n))
        batch["attention_mask"].append([1] * n + [0] * (longest - n))
        batch["labels"].append(feature["labels"] + [-100] * (longest - n))
    return {key: torch.tensor(rows) for key, rows in batch.items()}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(202)
    config = Phi3Config(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        original_max_position_embeddings=1024,
        pad_token_id=PADDING,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    model = Phi3ForCausalLM(config).to(torch.bfloat16)
    lora_config = LoraConfig(
        r=16,
        lora_alpha=16,
        lora_dropout=0.05,
        bias="none",
        use_rslora=True,
        task_type="CAUSAL_LM",
        target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    )
    model.enable_input_require_grads()
    model = get_peft_model(model, lora_config)
    model.print_trainable_parameters()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=2e-4,
        lr_scheduler_type="linear",
        warmup_steps=1,
        max_grad_norm=0.3,
        max_steps=4,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=args, train_dataset=Calls(64), data_collator=collate, callbacks=[Steps()]
    )
    trainer.train()


if __name__ == "__main__":
    main()
