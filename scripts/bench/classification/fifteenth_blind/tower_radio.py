"""Radio between tower and pilots is written down by a Conformer with CTC in Lightning: mel features and masks on the device, batches of similar length, mixed with bfloat16, two batches to a step, clipped NovoGrad on a Noam schedule, an exponential average of the weights that validation uses, word errors from a greedy decoder."""

import random

import lightning as L
import numpy as np
import torch
import torchaudio
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from pytorch_optimizer import NovoGrad
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler
from torchmetrics.text import WordErrorRate

SAMPLE_RATE = 8000
CHARACTERS = "_ abcdefghijklmnopqrstuvwxyz'"
WORDS = (
    "alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec romeo "
    "sierra tango uniform victor whiskey yankee zulu one two three four five six seven eight niner zero cleared to land "
    "runway left right descend climb maintain flight level heading contact approach tower ground wind knots hold short"
).split()


class Utterances(Dataset):
    """Every letter is a short chord of its own, through a noisy narrow-band radio."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(n)]
        self.seed = seed

    def __len__(self):
        return len(self.texts)

    def duration(self, index):
        return len(self.texts[index]) * 0.06

    def __getitem__(self, index):
        noise = np.random.default_rng(self.seed * 10_000 + index)
        pieces = []
        for character in self.texts[index]:
            t = np.arange(int(SAMPLE_RATE * 0.06 * noise.uniform(0.9, 1.1))) / SAMPLE_RATE
            k = CHARACTERS.index(character)
            chord = np.sin(2 * np.pi * (300 + 60 * k) * t) + 0.5 * np.sin(2 * np.pi * (900 + 75 * k) * t)
            pieces.append(chord * np.hanning(len(t)) if character != " " else np.zeros_like(t))
        wave = np.tanh(1.5 * np.concatenate(pieces)) + noise.normal(0, 0.15, sum(map(len, pieces)))
        target = torch.tensor([CHARACTERS.index(c) for c in self.texts[index]])
        return torch.from_numpy(wave.astype(np.float32)), target


class BucketSampler(Sampler):
    """Utterances of similar length together, as many as fit into so many seconds."""

    def __init__(self, dataset, max_seconds, seed=0):
        order = sorted(range(len(dataset)), key=dataset.duration)
        self.batches, batch, longest = [], [], 0.0
        for index in order:
            longest = max(longest, dataset.duration(index))
            if batch and longest * (len(batch) + 1) > max_seconds:
                self.batches.append(batch)
                batch, longest = [], dataset.duration(index)
            batch.append(index)
        self.batches.append(batch)
        random.Random(seed).shuffle(self.batches)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(rows):
    waves, targets = zip(*rows, strict=True)
    lengths = torch.tensor([len(wave) for wave in waves])
    target_lengths = torch.tensor([len(target) for target in targets])
    return (
        pad_sequence(waves, batch_first=True),
        lengths,
        pad_sequence(targets, batch_first=True),
        target_lengths,
    )


class RadioData(L.LightningDataModule):
    def setup(self, stage=None):
        self.train_set, self.val_set = Utterances(96, seed=1), Utterances(8, seed=2)

    def train_dataloader(self):
        return DataLoader(
            self.train_set,
            batch_sampler=BucketSampler(self.train_set, 18.0),
            collate_fn=collate,
            pin_memory=True,
        )

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=4, collate_fn=collate)


class ConvSubsampling(nn.Module):
    def __init__(self, n_mels, dim):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.out = nn.Linear(64 * (n_mels // 4), dim)

    def forward(self, features):
        x = self.conv(features[:, None])
        return self.out(x.permute(0, 3, 1, 2).flatten(2))


class RadioConformer(L.LightningModule):
    def __init__(self, n_mels=64, dim=256, layers=5, lr=2.0, warmup=1000):
        super().__init__()
        self.save_hyperparameters()
        self.mel = torchaudio.transforms.MelSpectrogram(SAMPLE_RATE, n_fft=256, hop_length=80, n_mels=n_mels)
        self.augment = nn.Sequential(
            torchaudio.transforms.FrequencyMasking(15),
            torchaudio.transforms.TimeMasking(25, p=0.2),
            torchaudio.transforms.TimeMasking(25, p=0.2),
        )
        self.subsampling = ConvSubsampling(n_mels, dim)
        self.dropout = nn.Dropout(0.1)
        self.encoder = torchaudio.models.Conformer(
            input_dim=dim,
            num_heads=4,
            ffn_dim=4 * dim,
            num_layers=layers,
            depthwise_conv_kernel_size=31,
            dropout=0.1,
        )
        self.head = nn.Linear(dim, len(CHARACTERS))
        self.ctc = nn.CTCLoss(blank=0, zero_infinity=True)
        self.wer = WordErrorRate()

    def features(self, waves, lengths):
        with torch.autocast("cuda", enabled=False), torch.no_grad():
            mel = (self.mel(waves.float()) + 1e-6).log()
            mel = (mel - mel.mean(-1, keepdim=True)) / (mel.std(-1, keepdim=True) + 1e-5)
            if self.training:
                mel = self.augment(mel)
        return mel, lengths // 80 + 1

    def forward(self, waves, lengths):
        mel, lengths = self.features(waves, lengths)
        x = self.dropout(self.subsampling(mel))
        lengths = ((lengths + 1) // 2 + 1) // 2
        x, lengths = self.encoder(x, lengths.clamp(max=x.shape[1]))
        return self.head(x), lengths

    def loss(self, logits, lengths, targets, target_lengths):
        log_probs = logits.float().log_softmax(-1).transpose(0, 1)
        return self.ctc(log_probs, targets, lengths, target_lengths)

    def training_step(self, batch, batch_idx):
        waves, lengths, targets, target_lengths = batch
        logits, out_lengths = self(waves, lengths)
        loss = self.loss(logits, out_lengths, targets, target_lengths)
        self.log("train_loss", loss, prog_bar=True, batch_size=len(waves))
        return loss

    def validation_step(self, batch, batch_idx):
        waves, lengths, targets, target_lengths = batch
        logits, out_lengths = self(waves, lengths)
        self.log("val_loss", self.loss(logits, out_lengths, targets, target_lengths), batch_size=len(waves))
        read = [self.decode(row[:n]) for row, n in zip(logits.argmax(-1), out_lengths.tolist(), strict=True)]
        truth = [
            "".join(CHARACTERS[i] for i in row[:n])
            for row, n in zip(targets.tolist(), target_lengths.tolist(), strict=True)
        ]
        self.wer(read, truth)
        self.log("val_wer", self.wer, batch_size=len(waves))

    @staticmethod
    def decode(indices):
        return "".join(CHARACTERS[i] for i in torch.unique_consecutive(indices).tolist() if i)

    def configure_optimizers(self):
        optimizer = NovoGrad(self.parameters(), lr=self.hparams.lr, betas=(0.95, 0.98), weight_decay=1e-3)
        dim, warmup = self.hparams.dim, self.hparams.warmup
        noam = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: dim**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": noam, "interval": "step"}}


class EndOfStep(Callback):
    steps = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            end_of_step(inputs=batch, activations=outputs)


def main():
    L.seed_everything(21)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=4,
        num_sanity_val_steps=1,
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=CSVLogger("logs"),
        callbacks=[EMAWeightAveraging(decay=0.999), LearningRateMonitor("step"), EndOfStep()],
    )
    trainer.fit(RadioConformer(), datamodule=RadioData())
    trainer.save_checkpoint("conformer.ckpt")


if __name__ == "__main__":
    main()
