"""A LLaVA in bfloat16 learns to answer questions about pictures: its eyes are frozen, the Trainer steps by Adafactor."""

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

IMAGE_TOKEN, N_PATCHES = 3999, 49


class Questions(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        question = torch.randint(5, 3990, (20,))
        answer = torch.randint(5, 3990, (int(torch.randint(20, 60, ())),))
        return {"pixel_values": torch.randn(3, 112, 112), "question": question, "answer": answer}


def collate(rows):
    n_before = 1 + N_PATCHES + 20
    longest = n_before + max(len(row["answer"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for i, row in enumerate(rows):
        n = n_before + len(row["answer"])
        image = torch.full((N_PATCHES,), IMAGE_TOKEN)
        ids[i, :n] = torch.cat([torch.tensor([1]), image, row["question"], row["answer"]])
        labels[i, n_before:n] = row["answer"]
    pixels = torch.stack([row["pixel_values"] for row in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": labels, "pixel_values": pixels}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


torch.manual_seed(89)
config = LlavaConfig(
    vision_config=CLIPVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=5,
        num_attention_heads=4,
        image_size=112,
        patch_size=16,
    ),
    text_config=LlamaConfig(
        vocab_size=4000,
        hidden_size=320,
        intermediate_size=896,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=256,
    ),
    image_token_index=IMAGE_TOKEN,
    image_seq_length=N_PATCHES,
    vision_feature_select_strategy="default",
    vision_feature_layer=-2,
)
model = LlavaForConditionalGeneration(config).to(torch.bfloat16)
for name, parameter in model.named_parameters():
    parameter.requires_grad = "vision_tower" not in name
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="llava",
    per_device_train_batch_size=8,
    max_steps=6,
    learning_rate=2e-5,
    optim="adafactor",
    lr_scheduler_type="cosine",
    warmup_steps=1,
    bf16=True,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    remove_unused_columns=False,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Questions(), data_collator=collate, callbacks=[StepEnds()]
)
trainer.train()
