"""An M2M100 learns to translate: the Seq2SeqTrainer, smoothed labels, bfloat16, translations by beams at every evaluation."""

import tempfile

import numpy as np
import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

VOCABULARY, PADDING, END, FRENCH = 16000, 1, 2, 5


class Sentences(Dataset):
    def __init__(self, n):
        self.sizes = torch.randint(12, 60, (n, 2)).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        n, m = self.sizes[index]
        return {
            "input_ids": torch.cat((torch.randint(10, VOCABULARY, (n,)), torch.tensor([END]))),
            "labels": torch.cat((torch.tensor([FRENCH]), torch.randint(10, VOCABULARY, (m,)))),
        }


class Collator:
    """Pads to a multiple of eight, as DataCollatorForSeq2Seq does."""

    def padded(self, rows, value):
        longest = -(-max(map(len, rows)) // 8) * 8
        return torch.stack([torch.nn.functional.pad(r, (0, longest - len(r)), value=value) for r in rows])

    def __call__(self, features):
        ids = self.padded([f["input_ids"] for f in features], PADDING)
        labels = self.padded([f["labels"] for f in features], -100)
        decoder_ids = shift_tokens_right(labels, PADDING, END)
        return {
            "input_ids": ids,
            "attention_mask": (ids != PADDING).long(),
            "labels": labels,
            "decoder_input_ids": decoder_ids,
        }


def compute_metrics(prediction):
    found, labels = prediction.predictions, prediction.label_ids
    n = min(found.shape[1], labels.shape[1])
    counted = labels[:, :n] != -100
    return {
        "accuracy": float((found[:, :n] == labels[:, :n])[counted].mean()),
        "gen_len": float(np.mean(np.count_nonzero(found != PADDING, axis=1))),
    }


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(205)
    config = M2M100Config(
        vocab_size=VOCABULARY,
        d_model=256,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        max_position_embeddings=256,
        pad_token_id=PADDING,
        eos_token_id=END,
        decoder_start_token_id=END,
    )
    model = M2M100ForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = FRENCH
    args = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=4,
        learning_rate=5e-5,
        weight_decay=0.01,
        label_smoothing_factor=0.1,
        max_steps=4,
        bf16=True,
        eval_strategy="steps",
        eval_steps=2,
        predict_with_generate=True,
        generation_max_length=14,
        generation_num_beams=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=Sentences(64),
        eval_dataset=Sentences(8),
        data_collator=Collator(),
        compute_metrics=compute_metrics,
        callbacks=[Steps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
