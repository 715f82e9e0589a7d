"""A SpeechT5 learns another voice: the Seq2SeqTrainer, mixed precision, checkpoints, batches of unequal length."""

import tempfile

import torch
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    TrainerCallback,
    set_seed,
)

N_MELS, REDUCTION = 80, 2


class Utterances(Dataset):
    def __init__(self, n):
        self.sizes = [
            (int(a), int(b)) for a, b in zip(torch.randint(24, 64, (n,)), torch.randint(90, 170, (n,)))
        ]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        letters, frames = self.sizes[index]
        return {
            "input_ids": torch.randint(4, 81, (letters,)),
            "labels": torch.randn(frames, N_MELS),
            "speaker_embeddings": torch.randn(512),
        }


class TTSDataCollatorWithPadding:
    def __call__(self, features):
        letters = max(len(f["input_ids"]) for f in features)
        frames = max(len(f["labels"]) for f in features) // REDUCTION * REDUCTION
        ids = torch.full((len(features), letters), 1)
        mask = torch.zeros(len(features), letters, dtype=torch.long)
        labels = torch.full((len(features), frames, N_MELS), -100.0)
        for row, feature in enumerate(features):
            n, m = len(feature["input_ids"]), min(len(feature["labels"]), frames)
            ids[row, :n], mask[row, :n] = feature["input_ids"], 1
            labels[row, :m] = feature["labels"][:m]
        speakers = torch.stack([f["speaker_embeddings"] for f in features])
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "speaker_embeddings": speakers}


class Steps(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(104)
    config = SpeechT5Config(
        hidden_size=192,
        encoder_layers=6,
        encoder_attention_heads=4,
        encoder_ffn_dim=768,
        decoder_layers=4,
        decoder_attention_heads=4,
        decoder_ffn_dim=768,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        speech_decoder_prenet_units=128,
        speech_decoder_postnet_units=128,
        max_speech_positions=512,
        reduction_factor=REDUCTION,
        use_cache=False,
    )
    model = SpeechT5ForTextToSpeech(config)
    args = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-4,
        warmup_steps=2,
        max_steps=4,
        gradient_checkpointing=True,
        fp16=True,
        optim="adamw_torch",
        save_strategy="no",
        logging_steps=2,
        label_names=["labels"],
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Seq2SeqTrainer(
        args=args,
        model=model,
        train_dataset=Utterances(48),
        data_collator=TTSDataCollatorWithPadding(),
        callbacks=[Steps()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
