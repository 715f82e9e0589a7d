"""A SmolVLM learns to answer questions about scanned pages: LoRA with a rank-stabilized scale, frozen bfloat16, tiles of a page, the Trainer with checkpoints."""

import random
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMVisionConfig,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

VOCABULARY, PAD, EOS, IMAGE, FAKE = 16000, 2, 2, 15990, 15991
TILE, PATCH, SCALE_FACTOR = 96, 16, 2
TOKENS_OF_TILE = (TILE // PATCH) ** 2 // SCALE_FACTOR**2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class DocVQA(Dataset):
    """A page cut into some tiles and the whole of it, a question and a short answer."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = random.Random(i)
        n_tiles = rng.choice([1, 2, 2])
        tiles = torch.randn(n_tiles + 1, 3, TILE, TILE, generator=torch.Generator().manual_seed(i))
        words = range(20, VOCABULARY - 20)
        return {
            "tiles": tiles.clamp(-1, 1),
            "question": rng.choices(words, k=rng.randint(8, 20)),
            "answer": rng.choices(words, k=rng.randint(2, 8)),
        }


def collate_fn(examples):
    texts, images = [], []
    for example in examples:
        prompt = [1]
        for _ in example["tiles"]:
            prompt += [FAKE, *[IMAGE] * TOKENS_OF_TILE]
        texts.append(torch.tensor([*prompt, FAKE, *example["question"], 198, *example["answer"], EOS]))
        images.append(example["tiles"])
    input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(text) for text in texts])
    attention_mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).long()
    pixel_values = torch.nn.utils.rnn.pad_sequence(images, batch_first=True)
    pixel_attention_mask = torch.zeros(*pixel_values.shape[:2], TILE, TILE, dtype=torch.bool)
    for row, tiles in zip(pixel_attention_mask, images):
        row[: len(tiles)] = True
    labels = input_ids.clone()
    labels[attention_mask == 0] = -100
    labels[labels == IMAGE] = -100
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "pixel_values": pixel_values.to(torch.bfloat16),
        "pixel_attention_mask": pixel_attention_mask,
        "labels": labels,
    }


class StepCallback(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def load_model():
    config = SmolVLMConfig(
        image_token_id=IMAGE,
        scale_factor=SCALE_FACTOR,
        pad_token_id=PAD,
        tie_word_embeddings=False,
        vision_config=SmolVLMVisionConfig(
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            num_attention_heads=4,
            image_size=TILE,
            patch_size=PATCH,
        ).to_dict(),
        text_config=LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=320,
            intermediate_size=1024,
            num_hidden_layers=5,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=1024,
            pad_token_id=PAD,
            bos_token_id=1,
            eos_token_id=EOS,
        ).to_dict(),
    )
    return SmolVLMForConditionalGeneration(config).to(DEVICE, torch.bfloat16)


set_seed(505)
model = load_model()
lora_config = LoraConfig(
    r=16,
    lora_alpha=16,
    lora_dropout=0.1,
    use_rslora=True,
    target_modules=["down_proj", "o_proj", "k_proj", "q_proj", "gate_proj", "up_proj", "v_proj"],
    modules_to_save=["connector"],
    init_lora_weights="gaussian",
)
model.enable_input_require_grads()
model = get_peft_model(model, lora_config)
model.print_trainable_parameters()

training_args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=5,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=2,
    warmup_steps=1,
    learning_rate=1e-4,
    lr_scheduler_type="cosine",
    weight_decay=0.01,
    max_grad_norm=0.3,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    optim="adamw_torch_fused",
    bf16=True,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    remove_unused_columns=False,
    dataloader_pin_memory=False,
    prediction_loss_only=True,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    args=training_args,
    data_collator=collate_fn,
    train_dataset=DocVQA(24),
    eval_dataset=DocVQA(4),
    callbacks=[StepCallback()],
)
trainer.train()
