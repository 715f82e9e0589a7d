"""A FastSpeech 2 with conformers learns to read aloud in several voices: spectra, pitch, energy and durations, Noam's rate, clipped gradients, sentences sorted by length, spectra of others between."""

import random

import torch
from programs import end_of_step
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel

hparams = {
    "n_phonemes": 78,
    "n_speakers": 24,
    "n_mels": 80,
    "batch_size": 6,
    "d_model": 256,
    "warmup_steps": 400,
    "grad_clip": 1.0,
    "epochs": 3,
    "val_every": 2,
}
device = "cuda" if torch.cuda.is_available() else "cpu"


class AlignedSpeech(Dataset):
    """Phonemes, and what the aligner found: how long each is, how high and how loud."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(12, 40, (), generator=g))
            durations = torch.randint(1, 6, (length,), generator=g)
            self.items.append(
                {
                    "input_ids": torch.randint(1, hparams["n_phonemes"], (length,), generator=g),
                    "duration_labels": durations,
                    "pitch_labels": torch.randn(length, 1, generator=g),
                    "energy_labels": torch.randn(length, 1, generator=g),
                    "spectrogram_labels": torch.randn(int(durations.sum()), hparams["n_mels"], generator=g),
                    "speaker_ids": torch.randint(hparams["n_speakers"], (1,), generator=g),
                }
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class SortedBatches(Sampler):
    """Batches of about the same length, in any order."""

    def __init__(self, dataset, batch_size):
        order = sorted(range(len(dataset)), key=lambda i: len(dataset[i]["input_ids"]))
        self.batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))

    def __len__(self):
        return len(self.batches)


def collate(items):
    # What is padded of a spectrum is known by this value.
    padding = {"spectrogram_labels": -100.0}
    batch = {
        key: pad_sequence([item[key] for item in items], True, padding.get(key, 0))
        for key in items[0]
        if key != "speaker_ids"
    }
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    batch["speaker_ids"] = torch.stack([item["speaker_ids"] for item in items])
    return batch


def to_device(batch):
    return {key: value.to(device, non_blocking=True) for key, value in batch.items()}


def build_model():
    config = FastSpeech2ConformerConfig(
        hidden_size=hparams["d_model"],
        vocab_size=hparams["n_phonemes"],
        num_mel_bins=hparams["n_mels"],
        encoder_layers=3,
        decoder_layers=3,
        encoder_linear_units=768,
        decoder_linear_units=768,
        decoder_kernel_size=15,
        speech_decoder_postnet_layers=4,
        speech_decoder_postnet_units=192,
        pitch_predictor_layers=3,
        num_speakers=hparams["n_speakers"],
    )
    return FastSpeech2ConformerModel(config)


def noam(step):
    step = max(step, 1)
    return hparams["d_model"] ** -0.5 * min(step**-0.5, step * hparams["warmup_steps"] ** -1.5)


@torch.no_grad()
def validate(model, loader):
    # The model compares spectra only where it is given durations, while it is trained.
    total = 0.0
    for batch in loader:
        batch = to_device(batch)
        total += model(**batch).loss.item()
    # One sentence with durations of its own, as it will be used.
    model.eval()
    ids = batch["input_ids"][:1, : int(batch["attention_mask"][0].sum())]
    spectrogram = model(ids, speaker_ids=batch["speaker_ids"][:1]).spectrogram
    model.train()
    return total / len(loader), spectrogram.shape[1]


def main():
    random.seed(1102)
    torch.manual_seed(1102)
    train_set, val_set = AlignedSpeech(24, seed=1), AlignedSpeech(6, seed=2)
    train_loader = DataLoader(
        train_set, batch_sampler=SortedBatches(train_set, hparams["batch_size"]), collate_fn=collate
    )
    val_loader = DataLoader(val_set, batch_size=3, collate_fn=collate)
    model = build_model().to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")

    step = 0
    for epoch in range(hparams["epochs"]):
        for batch in train_loader:
            batch = to_device(batch)
            optimizer.zero_grad()
            output = model(**batch)
            output.loss.backward()
            norm = clip_grad_norm_(model.parameters(), hparams["grad_clip"])
            optimizer.step()
            scheduler.step()
            step += 1
            print(f"epoch {epoch} step {step} loss {output.loss.item():.3f} norm {norm.item():.2f}")
            kept = [value for value in output.values() if torch.is_tensor(value)]
            end_of_step(inputs=batch, activations=[kept, norm])
            if step % hparams["val_every"] == 0:
                loss, frames = validate(model, val_loader)
                print(f"  validation {loss:.3f}, a sentence of {frames} frames")


if __name__ == "__main__":
    main()
