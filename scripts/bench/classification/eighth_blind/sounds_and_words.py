"""A CLAP brings sounds and their captions together: Lightning in bfloat16, spectra made on the device, a slow average of the weights."""

import math

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import ClapConfig, ClapModel

RATE, SECONDS, N_MELS, N_FFT, HOP = 16000, 4, 64, 512, 160
VOCABULARY, PAD, LENGTH = 12000, 1, 40


class Captioned(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        waveform = torch.randn(RATE * SECONDS) * 0.05
        n_words = int(torch.randint(6, LENGTH - 2, ()))
        ids = torch.full((LENGTH,), PAD)
        ids[0], ids[1 : n_words + 1], ids[n_words + 1] = 0, torch.randint(5, VOCABULARY, (n_words,)), 2
        return {"waveform": waveform, "input_ids": ids, "attention_mask": (ids != PAD).long()}


def mel_filters():
    """Triangles on the mel scale, (frequencies, mels)."""

    def to_mel(hz):
        return 2595.0 * math.log10(1.0 + hz / 700.0)

    mels = torch.linspace(to_mel(50.0), to_mel(RATE / 2), N_MELS + 2)
    points = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    frequencies = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
    slopes = points[None, :] - frequencies[:, None]
    down = -slopes[:, :-2] / (points[1:-1] - points[:-2])
    up = slopes[:, 2:] / (points[2:] - points[1:-1])
    return torch.minimum(down, up).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)
        self.register_buffer("filters", mel_filters(), persistent=False)

    def forward(self, waveform):
        spectrum = torch.stft(waveform, N_FFT, HOP, window=self.window, return_complex=True)
        mel = spectrum.abs().pow(2).transpose(1, 2) @ self.filters
        return (10 * mel.clamp(min=1e-10).log10()).unsqueeze(1)


class ContrastiveAudio(L.LightningModule):
    def __init__(self, lr=1e-4, warmup=3):
        super().__init__()
        self.save_hyperparameters()
        config = ClapConfig(
            text_config={
                "vocab_size": VOCABULARY,
                "hidden_size": 256,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 1024,
                "max_position_embeddings": LENGTH + 4,
                "projection_dim": 256,
            },
            audio_config={
                "num_mel_bins": N_MELS,
                "spec_size": 256,
                "patch_embeds_hidden_size": 24,
                "hidden_size": 192,
                "depths": [1, 1, 2, 1],
                "num_attention_heads": [2, 4, 4, 8],
                "projection_dim": 256,
                "drop_path_rate": 0.1,
            },
            projection_dim=256,
        )
        self.model = ClapModel(config)
        self.log_mel = LogMel()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            features = self.log_mel(batch.pop("waveform"))
            if self.trainer.training:
                start = int(torch.randint(0, features.shape[2] - 30, ()))
                features[:, :, start : start + 30] = features.mean()
        return batch | {"input_features": features}

    def training_step(self, batch, batch_idx):
        outputs = self.model(**batch, return_loss=True)
        self.log("train/loss", outputs.loss)
        self.log("train/scale", self.model.logit_scale_a.exp().detach())
        return outputs.loss

    def validation_step(self, batch, batch_idx):
        outputs = self.model(**batch, return_loss=True)
        right = torch.arange(len(outputs.logits_per_text), device=self.device)
        hits = (outputs.logits_per_text.argmax(dim=1) == right).float().mean()
        self.log_dict({"val/loss": outputs.loss, "val/R@1": hits}, batch_size=len(right))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.hparams.lr, betas=(0.99, 0.9), weight_decay=0.0
        )
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / self.hparams.warmup)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Report(Callback):
    def __init__(self, average):
        self.average = average

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        print({name: round(float(value), 3) for name, value in trainer.callback_metrics.items()})
        average = self.average._average_model
        end_of_step(
            inputs=batch, activations=outputs, weights=[list(average.parameters()), list(average.buffers())]
        )


def main():
    L.seed_everything(407, verbose=False)
    average = EMAWeightAveraging(decay=0.99)
    trainer = L.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=3,
        gradient_clip_val=1.0,
        callbacks=[average, Report(average)],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train_loader = DataLoader(Captioned(6), batch_size=3, shuffle=True, drop_last=True)
    trainer.fit(ContrastiveAudio(), train_loader, DataLoader(Captioned(2), batch_size=2))


if __name__ == "__main__":
    main()
