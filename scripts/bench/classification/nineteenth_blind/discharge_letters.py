"""Fine-tuning of a Phi-3 with rank-stabilized LoRA to write discharge letters: a Trainer with LoRA+ rates, bfloat16 weights, checkpointed layers, two micro-batches."""

import random

import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from programs import end_of_step, tell
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

random.seed(5)
torch.manual_seed(5)

words = [f"w{i}" for i in range(5996)]
vocabulary = {w: i for i, w in enumerate(["<unk>", "<s>", "<|endoftext|>", "<pad>", *words])}
raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="<|endoftext|>", pad_token="<pad>"
)


def passage(low, high):
    return " ".join(random.choices(words, k=random.randint(low, high)))


class Letters(Dataset):
    """Notes of a stay and the letter that was written of them; only the letter is learnt."""

    def __init__(self, n, longest=320):
        self.pairs = [(passage(90, 200), passage(60, 140)) for _ in range(n)]
        self.longest = longest

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        notes, letter = self.pairs[index]
        notes = tokenizer(notes)["input_ids"]
        letter = tokenizer(letter)["input_ids"] + [tokenizer.eos_token_id]
        ids = (notes + letter)[: self.longest]
        labels = ([-100] * len(notes) + letter)[: self.longest]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}


model = Phi3ForCausalLM(
    Phi3Config(
        vocab_size=6000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=512,
        original_max_position_embeddings=512,
        pad_token_id=3,
        bos_token_id=1,
        eos_token_id=2,
    )
).to(torch.bfloat16)
model.config.use_cache = False
model.enable_input_require_grads()
model = get_peft_model(
    model,
    LoraConfig(
        r=32,
        lora_alpha=16,
        lora_dropout=0.05,
        use_rslora=True,
        target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    ),
)
model.print_trainable_parameters()
optimizer = create_loraplus_optimizer(
    model, torch.optim.AdamW, lr=1e-4, loraplus_lr_ratio=16.0, weight_decay=0.0, betas=(0.9, 0.95)
)


class LetterTrainer(Trainer):
    def _prepare_inputs(self, inputs):
        inputs = super()._prepare_inputs(inputs)
        tell(inputs=inputs)
        return inputs


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


trainer = LetterTrainer(
    model=model,
    args=TrainingArguments(
        output_dir="letters",
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        max_steps=8,
        bf16=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=Letters(64),
    data_collator=DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8),
    optimizers=(optimizer, None),
    callbacks=[StepEnds()],
)
trainer.train()
