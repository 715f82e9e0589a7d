"""LoRA on a Llama through peft; only the adapters train."""

import torch
from own_count import print_count
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
)
peft_config = LoraConfig(
    task_type=TaskType.CAUSAL_LM,
    r=8,
    lora_alpha=32,
    lora_dropout=0.1,
    target_modules=["q_proj", "v_proj"],
)
model = get_peft_model(base, peft_config)
model.print_trainable_parameters()


def examples():
    torch.manual_seed(0)
    for _ in range(64):
        ids = torch.randint(0, 2000, (128,))
        yield {"input_ids": ids, "attention_mask": torch.ones(128, dtype=torch.int64), "labels": ids}


class Counter(TrainerCallback):
    def on_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        print_count(model, optimizer)


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="lora",
        learning_rate=1e-3,
        per_device_train_batch_size=4,
        max_steps=6,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=list(examples()),
    callbacks=[Counter()],
)
trainer.train()
