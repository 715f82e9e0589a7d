"""SmolVLM learns to answer questions about photographed shop shelves: DoRA on language model and connector, schedule-free AdamW, a Trainer."""

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.manual_seed(31)
IMAGE, PAD, TILES, PER_TILE = 3990, 0, 5, 16


class Shelves(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        question = torch.randint(
            5, 3900, (int(torch.randint(10, 24, (1,), generator=generator)),), generator=generator
        )
        answer = torch.randint(
            5, 3900, (int(torch.randint(20, 60, (1,), generator=generator)),), generator=generator
        )
        image = torch.full((TILES * PER_TILE,), IMAGE)
        return {
            "pixel_values": torch.rand(TILES, 3, 128, 128, generator=generator) * 2 - 1,
            "input_ids": torch.cat([image, question, answer]),
            "labels": torch.cat([torch.full((len(image) + len(question),), -100), answer]),
        }


def collate(items):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([item["input_ids"] for item in items], batch_first=True, padding_value=PAD)
    return {
        "pixel_values": torch.stack([item["pixel_values"] for item in items]),
        "pixel_attention_mask": torch.ones(len(items), TILES, 128, 128, dtype=torch.long),
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": pad([item["labels"] for item in items], batch_first=True, padding_value=-100),
    }


class ShelfTrainer(Trainer):
    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        tell(inputs=inputs)
        return inputs


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


config = SmolVLMConfig(
    vision_config=dict(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=128,
        patch_size=16,
    ),
    text_config=dict(
        model_type="llama",
        vocab_size=4000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
    ),
    image_token_id=IMAGE,
    scale_factor=2,
    pad_token_id=PAD,
)
model = SmolVLMForConditionalGeneration(config)
lora = LoraConfig(
    r=16,
    lora_alpha=16,
    lora_dropout=0.05,
    use_dora=True,
    target_modules=r".*text_model.*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
    modules_to_save=["connector"],
    init_lora_weights="gaussian",
)
model = get_peft_model(model, lora)
arguments = TrainingArguments(
    output_dir="shelves",
    per_device_train_batch_size=3,
    gradient_accumulation_steps=2,
    max_steps=4,
    learning_rate=1e-3,
    warmup_steps=2,
    lr_scheduler_type="constant",
    optim="schedule_free_adamw",
    bf16=True,
    max_grad_norm=1.0,
    logging_steps=2,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    dataloader_num_workers=0,
)
trainer = ShelfTrainer(
    model=model, args=arguments, train_dataset=Shelves(), data_collator=collate, callbacks=[StepEnds()]
)
model.config.use_cache = False
trainer.train()
