"""A Phi learns to solve word problems by PiSSA: adapters begin as the principal part of every weight, found on the device; the Trainer on frozen bfloat16, answers alone count, four short batches to a step, accuracy between."""

import tempfile

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    PhiConfig,
    PhiForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

IGNORE_INDEX = -100
VOCAB_SIZE, PAD_ID, EOS_ID = 16000, 0, 1
INSTRUCTION, RESPONSE = list(range(10, 34)), list(range(40, 46))
DIGITS = range(50, 60)

device = "cuda" if torch.cuda.is_available() else "cpu"


class MetaMath(Dataset):
    """Problems and solutions, in the words of the Alpaca template."""

    def __init__(self, n_examples, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n_examples):
            query = rng.integers(100, VOCAB_SIZE, rng.integers(15, 50)).tolist()
            reasoning = rng.integers(100, VOCAB_SIZE, rng.integers(20, 60)).tolist()
            answer = rng.choice(DIGITS, rng.integers(1, 5)).tolist()
            source = INSTRUCTION + query + RESPONSE
            target = [*reasoning, *answer, EOS_ID]
            self.rows.append(
                {
                    "input_ids": source + target,
                    "attention_mask": [1] * len(source + target),
                    "labels": [IGNORE_INDEX] * len(source) + target,
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return dict(self.rows[i])


class Padding:
    """All that the collator of transformers asks of a tokenizer."""

    padding_side = "right"

    def pad(self, features, padding=True, max_length=None, pad_to_multiple_of=None, return_tensors=None):
        longest = max(len(f["input_ids"]) for f in features)
        if pad_to_multiple_of:
            longest = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
        fill = {"input_ids": PAD_ID, "attention_mask": 0, "labels": IGNORE_INDEX}
        return {
            key: torch.tensor([list(f[key]) + [fill[key]] * (longest - len(f[key])) for f in features])
            for key in features[0]
        }


class Collator(DataCollatorForSeq2Seq):
    def __call__(self, features, return_tensors=None):
        return self.tokenizer.pad(features, pad_to_multiple_of=self.pad_to_multiple_of)


class EndOfStep(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def argmax_of_logits(logits, labels):
    if isinstance(logits, tuple):
        logits = logits[0]
    return logits.argmax(-1)


def compute_metrics(eval_pred):
    predictions, labels = eval_pred.predictions[:, :-1], eval_pred.label_ids[:, 1:]
    counted = labels != IGNORE_INDEX
    digits = counted & np.isin(labels, list(DIGITS))
    return {
        "word_accuracy": (predictions == labels)[counted].mean(),
        "digit_accuracy": (predictions == labels)[digits].mean(),
    }


def build_model():
    config = PhiConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        partial_rotary_factor=0.5,
        max_position_embeddings=512,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
        bos_token_id=EOS_ID,
    )
    model = PhiForCausalLM(config).to(device, torch.bfloat16)
    lora_config = LoraConfig(
        init_lora_weights="pissa_niter_4",
        r=32,
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"],
        bias="none",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora_config)


def train():
    set_seed(1201)
    model = build_model()
    model.print_trainable_parameters()
    model.config.use_cache = False

    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=2,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=4,
        learning_rate=2e-5,
        weight_decay=0.0,
        warmup_steps=1,
        lr_scheduler_type="cosine",
        bf16=True,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=MetaMath(24, seed=1),
        eval_dataset=MetaMath(4, seed=2),
        data_collator=Collator(tokenizer=Padding(), pad_to_multiple_of=8),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=argmax_of_logits,
        callbacks=[EndOfStep()],
    )
    trainer.train()


if __name__ == "__main__":
    train()
