"""A W2v-BERT learns to write down a language with few recordings, as in the blog of Hugging Face: CTC, an adapter layer, half precision, checkpoints."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2BertConfig,
    Wav2Vec2BertForCTC,
    set_seed,
)

VOCAB = [" ", *"abcdefghijklmnopqrstuvwxyzöçşüğ", "[UNK]", "[PAD]"]
PAD_ID = len(VOCAB) - 1
FEATURES = 160


class CommonVoice(Dataset):
    """What SeamlessM4TFeatureExtractor makes of clips: two frames of 80 mels in a row, normalized."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            n_frames = int(rng.integers(48, 72))
            features = rng.standard_normal((n_frames, FEATURES)).astype(np.float32)
            labels = rng.integers(0, PAD_ID - 1, size=int(rng.integers(4, n_frames // 6)))
            self.rows.append(
                {
                    "input_features": (features - features.mean(0)) / (features.std(0) + 1e-7),
                    "input_length": n_frames,
                    "labels": labels,
                }
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@dataclass
class DataCollatorCTCWithPadding:
    multiple: int = 2

    def __call__(self, features):
        longest = max(f["input_length"] for f in features)
        longest += -longest % self.multiple
        batch = {
            "input_features": torch.zeros(len(features), longest, FEATURES),
            "attention_mask": torch.zeros(len(features), longest, dtype=torch.int32),
        }
        labels = torch.full((len(features), max(len(f["labels"]) for f in features)), -100)
        for i, f in enumerate(features):
            batch["input_features"][i, : f["input_length"]] = torch.from_numpy(f["input_features"])
            batch["attention_mask"][i, : f["input_length"]] = 1
            labels[i, : len(f["labels"])] = torch.from_numpy(f["labels"])
        batch["labels"] = labels
        return batch


def decode(ids, group=True):
    text, last = [], None
    for i in ids:
        if not (group and i == last) and i not in (PAD_ID, -100):
            text.append(VOCAB[i])
        last = i
    return "".join(text)


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def compute_metrics(pred):
    pred_ids = np.argmax(pred.predictions, axis=-1)
    guessed = [decode(row.tolist()) for row in pred_ids]
    wanted = [decode(row.tolist(), group=False) for row in pred.label_ids]
    wrong = sum(distance(g, w) for g, w in zip(guessed, wanted))
    return {"cer": wrong / sum(len(w) for w in wanted)}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


set_seed(502)
config = Wav2Vec2BertConfig(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    feature_projection_input_dim=FEATURES,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    feat_proj_dropout=0.0,
    mask_time_prob=0.05,
    layerdrop=0.0,
    ctc_loss_reduction="mean",
    ctc_zero_infinity=True,
    add_adapter=True,
    output_hidden_size=256,
    pad_token_id=PAD_ID,
    bos_token_id=None,
    eos_token_id=None,
    vocab_size=len(VOCAB),
)
model = Wav2Vec2BertForCTC(config)

training_args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    num_train_epochs=3,
    gradient_checkpointing=True,
    fp16=torch.cuda.is_available(),
    eval_steps=2,
    logging_steps=1,
    learning_rate=5e-5,
    remove_unused_columns=False,
    warmup_steps=2,
    save_strategy="no",
    dataloader_pin_memory=False,
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model=model,
    data_collator=DataCollatorCTCWithPadding(),
    args=training_args,
    compute_metrics=compute_metrics,
    train_dataset=CommonVoice(8, seed=1),
    eval_dataset=CommonVoice(2, seed=2),
    callbacks=[StepEnds()],
)
trainer.train()
