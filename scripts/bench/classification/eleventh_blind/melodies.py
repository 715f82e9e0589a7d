"""A MusicGen learns one kind of music from a few pieces, as in the repository for its DreamBooth: an EnCodec makes codes of them first, LoRA on layers, embeddings and heads of the decoder, the Trainer in full precision."""

import random
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from torch.utils.data import Dataset
from transformers import (
    EncodecConfig,
    MusicgenConfig,
    MusicgenDecoderConfig,
    MusicgenForConditionalGeneration,
    T5Config,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

RATE, CODEBOOKS, CODES = 16000, 4, 1024
VOCABULARY, TEXT_PAD, TEXT_EOS = 8000, 0, 1
SECONDS = (1.2, 2.2)


def load_model():
    text_encoder = T5Config(
        vocab_size=VOCABULARY, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4,
        pad_token_id=TEXT_PAD, eos_token_id=TEXT_EOS,
    )  # fmt: skip
    # Fifty frames a second, ten bits of each codebook.
    audio_encoder = EncodecConfig(
        sampling_rate=RATE, num_filters=8, hidden_size=64, codebook_size=CODES, codebook_dim=64,
        upsampling_ratios=[8, 5, 4, 2], target_bandwidths=[2.0], num_lstm_layers=1,
    )  # fmt: skip
    decoder = MusicgenDecoderConfig(
        vocab_size=CODES,
        hidden_size=384,
        num_hidden_layers=5,
        ffn_dim=1536,
        num_attention_heads=6,
        num_codebooks=CODEBOOKS,
        pad_token_id=CODES,
        bos_token_id=CODES,
        max_position_embeddings=512,
    )
    config = MusicgenConfig(text_encoder=text_encoder, audio_encoder=audio_encoder, decoder=decoder)
    config.decoder.decoder_start_token_id = CODES
    return MusicgenForConditionalGeneration(config)


def delayed(codes):
    """Codebook k comes k frames later, so that it can look at those before it."""
    n_frames, n_codebooks = codes.shape
    labels = torch.full((n_frames + n_codebooks - 1, n_codebooks), -100)
    for k in range(n_codebooks):
        labels[k : k + n_frames, k] = codes[:, k]
    return labels


class Pieces(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        instance_prompt = [rng.randrange(2, VOCABULARY) for _ in range(4)]
        self.rows = []
        for _ in range(n):
            description = [rng.randrange(2, VOCABULARY) for _ in range(rng.randrange(6, 20))]
            length = int(rng.uniform(*SECONDS) * RATE)
            self.rows.append(
                {
                    "waveform": 0.2 * torch.randn(1, length).cumsum(-1).tanh(),
                    "input_ids": [*instance_prompt, *description, TEXT_EOS],
                }
            )

    @torch.no_grad()
    def encode(self, audio_encoder, device):
        """Once, one piece after the other; the codes go back to the host."""
        audio_encoder.to(device).eval()
        for row in self.rows:
            waveform = row.pop("waveform").unsqueeze(0).to(device)
            codes = audio_encoder.encode(waveform, bandwidth=2.0).audio_codes
            row["labels"] = delayed(codes[0, 0].T.cpu())
        return self

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class DataCollatorMusicGenWithPadding:
    def __init__(self, unconditional=0.1):
        self.unconditional = unconditional

    def __call__(self, features):
        texts = [torch.tensor(f["input_ids"]) for f in features]
        input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=TEXT_PAD)
        attention_mask = (input_ids != TEXT_PAD).long()
        for row in attention_mask:
            if random.random() < self.unconditional:
                row.zero_()  # for guidance without a classifier
        labels = torch.nn.utils.rnn.pad_sequence(
            [f["labels"] for f in features], batch_first=True, padding_value=-100
        )
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class StepEnds(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        end_of_step()


def main():
    set_seed(1107)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=3,
        per_device_eval_batch_size=2,
        learning_rate=2e-4,
        adam_beta2=0.99,
        weight_decay=0.1,
        max_steps=5,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        remove_unused_columns=False,
        label_names=["labels"],
        prediction_loss_only=True,
        dataloader_pin_memory=False,
        report_to=[],
        disable_tqdm=True,
    )
    model = load_model()
    train_dataset = Pieces(9, seed=1).encode(model.audio_encoder, training_args.device)
    eval_dataset = Pieces(2, seed=2).encode(model.audio_encoder, training_args.device)

    model.freeze_text_encoder()
    model.freeze_audio_encoder()
    target_modules = ["enc_to_dec_proj", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
    target_modules += [f"lm_heads.{i}" for i in range(CODEBOOKS)]
    target_modules += [f"embed_tokens.{i}" for i in range(CODEBOOKS)]
    model = get_peft_model(
        model, LoraConfig(r=16, lora_alpha=16, lora_dropout=0.05, bias="none", target_modules=target_modules)
    )
    model.print_trainable_parameters()
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        data_collator=DataCollatorMusicGenWithPadding(),
        callbacks=[StepEnds()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
