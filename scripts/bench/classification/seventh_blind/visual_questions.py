"""A PaliGemma learns to answer questions about pictures: the Trainer, all in bfloat16, its eyes frozen, two batches to a step."""

import tempfile

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    SiglipVisionConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, IMAGE_TOKEN, SIZE, PATCH = 20000, 19999, 84, 14
N_PATCHES = (SIZE // PATCH) ** 2


class VQA(Dataset):
    def __init__(self, n):
        self.sizes = torch.randint(6, 24, (n, 2)).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        n_question, n_answer = self.sizes[index]
        return {
            "image": torch.rand(3, SIZE, SIZE),
            "question": torch.randint(5, VOCABULARY - 1, (n_question,)),
            "answer": torch.randint(5, VOCABULARY - 1, (max(n_answer // 4, 1),)),
        }


def collate_fn(examples):
    """As a PaliGemmaProcessor makes them with suffixes: 1 marks the words of the answer."""
    rows = []
    for example in examples:
        prefix = torch.cat((torch.full((N_PATCHES,), IMAGE_TOKEN), torch.tensor([2]), example["question"]))
        rows.append((prefix, torch.cat((example["answer"], torch.tensor([1])))))
    longest = max(len(prefix) + len(suffix) for prefix, suffix in rows)
    input_ids = torch.zeros(len(rows), longest, dtype=torch.long)
    token_type_ids, attention_mask = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    labels = torch.full_like(input_ids, -100)
    for i, (prefix, suffix) in enumerate(rows):
        n = len(prefix) + len(suffix)
        input_ids[i, :n] = torch.cat((prefix, suffix))
        attention_mask[i, :n] = 1
        token_type_ids[i, len(prefix) : n] = 1
        labels[i, len(prefix) : n] = suffix
    pixel_values = torch.stack([(example["image"] - 0.5) / 0.5 for example in examples])
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
        "labels": labels,
        "pixel_values": pixel_values.to(torch.bfloat16),
    }


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


set_seed(303)
config = PaliGemmaConfig(
    vision_config=SiglipVisionConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=5,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=PATCH,
        projection_dim=320,
        vision_use_head=False,
    ).to_dict(),
    text_config=GemmaConfig(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=80,
        pad_token_id=0,
    ).to_dict(),
    image_token_index=IMAGE_TOKEN,
    projection_dim=320,
)
model = PaliGemmaForConditionalGeneration(config).to(torch.bfloat16)
for name, parameter in model.named_parameters():
    if "vision_tower" in name or "multi_modal_projector" in name:
        parameter.requires_grad = False

args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    remove_unused_columns=False,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    warmup_steps=2,
    learning_rate=2e-5,
    weight_decay=1e-6,
    adam_beta2=0.999,
    logging_steps=1,
    optim="adamw_torch",
    save_strategy="no",
    bf16=torch.cuda.is_available(),
    report_to=[],
    dataloader_pin_memory=False,
    disable_tqdm=True,
)
trainer = Trainer(
    model=model, train_dataset=VQA(64), data_collator=collate_fn, args=args, callbacks=[StepCallback()]
)
trainer.train()
