"""Supervised fine-tuning of a Llama with the Trainer: bfloat16, accumulated gradients, clipped, a cosine schedule."""

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(11)


class Conversations(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 3000, (160,))
        labels = ids.clone()
        labels[:40] = -100
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=3000,
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    bf16=True,
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    max_steps=6,
    save_strategy="no",
    report_to="none",
    logging_steps=2,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Conversations(), callbacks=[StepEnds()])
trainer.train()
