"""F5-TTS is fine-tuned on a narrator's own recordings with the trainer of its package: flow matching fills in masked spans of mel frames, batches hold as many frames as fit, fp16 under accelerate, fused AdamW that warms up and decays linearly, clipped, with an averaged copy of the model."""

import json
import random
from pathlib import Path

import numpy as np
import soundfile
import torch
from f5_tts.model import CFM, DiT, Trainer
from f5_tts.model.modules import MelSpec
from f5_tts.model.utils import get_tokenizer
from programs import end_of_step, tell
from torch.utils.data import Dataset

DATA, CHECKPOINTS = Path("narrator"), Path("ckpts/narrator")
MEL = {
    "n_fft": 1024,
    "hop_length": 256,
    "win_length": 1024,
    "n_mel_channels": 100,
    "target_sample_rate": 24_000,
    "mel_spec_type": "vocos",
}


def record_narrator(n, seed=7):
    """Wav files with a sentence each, a metadata file, and the vocabulary of characters."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    (DATA / "wavs").mkdir(parents=True, exist_ok=True)
    rate, rows = MEL["target_sample_rate"], []
    for i in range(n):
        words = [
            "".join(rng.choices("abcdefghijklmnoprstuvwy", k=rng.randint(2, 8)))
            for _ in range(rng.randint(5, 14))
        ]
        text = " ".join(words).capitalize() + "."
        seconds = len(text) / 15 + rng.random()
        t = np.arange(int(seconds * rate)) / rate
        pitch = 110 + 25 * np.sin(2 * np.pi * 0.7 * t + rng.random())
        wave = sum(np.sin(2 * np.pi * k * np.cumsum(pitch) / rate) / k for k in range(1, 8))
        wave = 0.1 * wave * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t)) + 0.003 * noise.standard_normal(len(t))
        soundfile.write(DATA / "wavs" / f"{i:04d}.wav", wave.astype(np.float32), rate)
        rows.append(
            {"audio_path": str(DATA / "wavs" / f"{i:04d}.wav"), "text": text, "duration": len(t) / rate}
        )
    (DATA / "metadata.json").write_text(json.dumps(rows))
    characters = sorted({" "} | {c for row in rows for c in row["text"]})
    (DATA / "vocab.txt").write_text("\n".join(characters) + "\n")


class Narrations(Dataset):
    def __init__(self):
        self.rows = json.loads((DATA / "metadata.json").read_text())
        self.mel_spectrogram = MelSpec(**MEL)

    def __len__(self):
        return len(self.rows)

    def get_frame_len(self, index):
        return self.rows[index]["duration"] * MEL["target_sample_rate"] / MEL["hop_length"]

    def __getitem__(self, index):
        row = self.rows[index]
        wave, _ = soundfile.read(row["audio_path"], dtype="float32")
        mel = self.mel_spectrogram(torch.from_numpy(wave)[None])[0]
        return {"mel_spec": mel, "text": list(row["text"])}


class NarrationTrainer(Trainer):
    """The package's trainer; it logs once after every update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model.register_forward_pre_hook(self.remember, with_kwargs=True)
        self.model.register_forward_hook(self.remember_outputs)
        self.log_values, self.accelerator.log = self.accelerator.log, self.log_update

    def remember(self, model, args, kwargs):
        self.batch = (*args, kwargs["lens"])
        tell(inputs=self.batch)

    def remember_outputs(self, model, args, outputs):
        self.outputs = outputs

    def log_update(self, values, step=None, **kwargs):
        self.log_values(values, step=step, **kwargs)
        end_of_step(inputs=self.batch, activations=self.outputs)


def main():
    torch.manual_seed(666)
    random.seed(666)
    record_narrator(24)
    vocab_char_map, vocab_size = get_tokenizer(str(DATA / "vocab.txt"), "custom")

    def build():
        transformer = DiT(
            dim=384,
            depth=4,
            heads=6,
            ff_mult=2,
            text_dim=192,
            conv_layers=2,
            text_num_embeds=vocab_size,
            mel_dim=MEL["n_mel_channels"],
        )
        return CFM(transformer=transformer, mel_spec_kwargs=MEL, vocab_char_map=vocab_char_map)

    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    pretrained = {f"ema_model.{name}": value for name, value in build().state_dict().items()}
    torch.save(
        {"ema_model_state_dict": {"initted": torch.tensor(True), "step": torch.tensor(0), **pretrained}},
        CHECKPOINTS / "pretrained_model_0.pt",
    )

    trainer = NarrationTrainer(
        build(),
        epochs=4,
        learning_rate=1e-5,
        num_warmup_updates=2,
        save_per_updates=1000,
        last_per_updates=1000,
        checkpoint_path=str(CHECKPOINTS),
        batch_size_per_gpu=512,
        batch_size_type="frame",
        max_samples=16,
        max_grad_norm=1.0,
        logger=None,
        accelerate_kwargs={"mixed_precision": "fp16"},
    )
    trainer.train(Narrations(), num_workers=1, resumable_with_seed=666)


if __name__ == "__main__":
    main()
