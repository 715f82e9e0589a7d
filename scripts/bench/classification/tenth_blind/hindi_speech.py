"""A Whisper learns Hindi as in the blog of Hugging Face: the Seq2SeqTrainer, half precision, checkpoints, SpecAugment, transcripts drawn at every evaluation."""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from programs import end_of_step, tell
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

VOCABULARY, N_MELS, FRAMES = 12000, 80, 240
END, START, HINDI, TRANSCRIBE, NO_TIMESTAMPS = 11000, 11001, 11002, 11003, 11005


class CommonVoice(Dataset):
    """What prepare_dataset leaves: log-mel spectra of sound padded to one length, and tokens of a sentence."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            spectrum = rng.standard_normal((N_MELS, FRAMES)).astype(np.float32)
            spectrum[:, int(rng.integers(FRAMES // 2, FRAMES)) :] = -1.0
            words = rng.integers(1, END, size=int(rng.integers(8, 40))).tolist()
            labels = [START, HINDI, TRANSCRIBE, NO_TIMESTAMPS, *words, END]
            self.rows.append({"input_features": spectrum, "labels": labels})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    decoder_start_token_id: int

    def __call__(self, features):
        batch = {"input_features": torch.from_numpy(np.stack([f["input_features"] for f in features]))}
        labels = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(f["labels"]) for f in features], batch_first=True, padding_value=-100
        )
        # The start is put there again by the model.
        if (labels[:, 0] == self.decoder_start_token_id).all():
            labels = labels[:, 1:]
        batch["labels"] = labels
        return batch


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def compute_metrics(pred):
    wrong = total = 0
    for guessed, wanted in zip(pred.predictions, pred.label_ids):
        wanted = [int(t) for t in wanted if 0 <= t < END]
        guessed = [int(t) for t in guessed if 0 <= t < END]
        wrong, total = wrong + edit_distance(guessed, wanted), total + len(wanted)
    return {"wer": 100 * wrong / max(total, 1)}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def tell_of_cache(cache):
    """Keys and values of what is being written down in an evaluation."""
    if cache is not None:
        parts = (cache.self_attention_cache, cache.cross_attention_cache)
        layers = [layer for part in parts for layer in part.layers if layer.keys is not None]
        tell(caches=[(layer.keys, layer.values) for layer in layers])


def load_model():
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY,
            num_mel_bins=N_MELS,
            d_model=256,
            encoder_layers=4,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            max_source_positions=FRAMES // 2,
            max_target_positions=64,
            bos_token_id=END,
            eos_token_id=END,
            pad_token_id=END,
            decoder_start_token_id=START,
            apply_spec_augment=True,
            mask_time_prob=0.05,
            mask_feature_prob=0.05,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
    model.generation_config.no_timestamps_token_id = NO_TIMESTAMPS
    model.generation_config.is_multilingual = True
    model.generation_config.lang_to_id = {"<|hi|>": HINDI}
    model.generation_config.task_to_id = {"transcribe": TRANSCRIBE}
    model.generation_config.language = "hi"
    model.generation_config.task = "transcribe"
    model.register_forward_hook(lambda _, args, output: tell_of_cache(output.get("past_key_values")))
    return model


set_seed(1001)
model = load_model()
training_args = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=1,
    learning_rate=1e-5,
    warmup_steps=2,
    max_steps=6,
    gradient_checkpointing=True,
    fp16=torch.cuda.is_available(),
    eval_strategy="steps",
    per_device_eval_batch_size=2,
    predict_with_generate=True,
    generation_max_length=14,
    eval_steps=2,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    metric_for_best_model="wer",
    greater_is_better=False,
    dataloader_pin_memory=False,
    disable_tqdm=True,
)
trainer = Seq2SeqTrainer(
    args=training_args,
    model=model,
    train_dataset=CommonVoice(16, seed=1),
    eval_dataset=CommonVoice(2, seed=2),
    data_collator=DataCollatorSpeechSeq2SeqWithPadding(START),
    compute_metrics=compute_metrics,
    callbacks=[StepEnds()],
)
trainer.train()
