"""F5-TTS learns to clone voices with its own Trainer: flow matching on mel spectrograms, fused AdamW, bf16, an EMA, batches by frames."""

import random

import torch
from f5_tts.model import CFM, DiT, Trainer
from programs import end_of_step, tell
from torch.utils.data import Dataset

random.seed(5)
torch.manual_seed(5)

LETTERS = {character: index for index, character in enumerate(" abcdefghijklmnopqrstuvwxyz',.?!")}


class Utterances(Dataset):
    """Mel spectrograms of 24 kHz speech with their transcripts, sorted by nothing in particular."""

    def __init__(self, count=40):
        self.lengths = [random.randint(150, 300) for _ in range(count)]

    def __len__(self):
        return len(self.lengths)

    def get_frame_len(self, index):
        return self.lengths[index]

    def __getitem__(self, index):
        frames = self.lengths[index]
        text = "".join(random.choice(list(LETTERS)) for _ in range(frames // 7))
        return {"mel_spec": torch.randn(1, 100, frames) * 2 - 3, "text": text}


class Voice(CFM):
    def forward(self, inp, text, *, lens=None, noise_scheduler=None):
        tell(inputs=[inp, lens])
        outputs = super().forward(inp, text, lens=lens, noise_scheduler=noise_scheduler)
        tell(activations=list(outputs))
        return outputs


model = Voice(
    transformer=DiT(
        dim=320,
        depth=5,
        heads=5,
        dim_head=64,
        ff_mult=2,
        text_dim=256,
        conv_layers=3,
        text_num_embeds=len(LETTERS),
        mel_dim=100,
        dropout=0.1,
    ),
    mel_spec_kwargs={
        "n_fft": 1024,
        "hop_length": 256,
        "win_length": 1024,
        "n_mel_channels": 100,
        "target_sample_rate": 24000,
        "mel_spec_type": "vocos",
    },
    vocab_char_map=LETTERS,
)
trainer = Trainer(
    model,
    epochs=4,
    learning_rate=7.5e-5,
    num_warmup_updates=4,
    save_per_updates=100,
    checkpoint_path="ckpts/voices",
    batch_size_per_gpu=700,
    batch_size_type="frame",
    max_samples=8,
    max_grad_norm=1.0,
    logger=None,
    ema_kwargs={"beta": 0.999},
    accelerate_kwargs={"mixed_precision": "bf16"},
)
log = trainer.accelerator.log


def log_update(values, step):
    log(values, step=step)
    end_of_step()


trainer.accelerator.log = log_update
trainer.train(Utterances(), num_workers=1, resumable_with_seed=666)
