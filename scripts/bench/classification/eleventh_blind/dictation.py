"""A Parakeet learns to take dictation, trained as NeMo does: spectra made and masked on the device, CTC, Lightning in bfloat16, a NovoGrad of one's own, an average of the weights that is validated."""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC

RATE, N_FFT, HOP, N_MELS = 16000, 512, 160, 80
BLANK = 1024


class Dictations(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(int(1.2 * RATE), int(2.2 * RATE), (n,), generator=g).tolist()
        self.texts = [torch.randint(BLANK, (int(length / RATE * 4),), generator=g) for length in self.lengths]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return 0.1 * torch.randn(self.lengths[i]), self.texts[i]


def collate(rows):
    signals, texts = zip(*rows)
    return {
        "signal": pad_sequence(signals, batch_first=True),
        "signal_len": torch.tensor([len(s) for s in signals]),
        "labels": pad_sequence(texts, batch_first=True, padding_value=BLANK),
    }


class NovoGrad(torch.optim.Optimizer):
    """One second moment for each layer: the norm of its gradient."""

    def __init__(self, params, lr=1e-2, betas=(0.95, 0.5), eps=1e-8, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, grad = self.state[p], p.grad
                norm = grad.pow(2).sum()
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = norm.clone()
                else:
                    state["exp_avg_sq"].mul_(beta2).add_(norm, alpha=1 - beta2)
                grad = grad / (state["exp_avg_sq"].sqrt() + group["eps"])
                if group["weight_decay"] != 0:
                    grad.add_(p, alpha=group["weight_decay"])
                state["exp_avg"].mul_(beta1).add_(grad)
                p.add_(state["exp_avg"], alpha=-group["lr"])
        return loss


class MelSpectrogram(nn.Module):
    def __init__(self, dither=1e-5, preemph=0.97):
        super().__init__()
        self.dither, self.preemph = dither, preemph
        self.register_buffer("window", torch.hann_window(400), persistent=False)
        self.register_buffer("fb", torch.from_numpy(self.filters()), persistent=False)

    @staticmethod
    def filters():
        mels = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), N_MELS + 2)
        edges = 700 * (10 ** (mels / 2595) - 1)
        bins = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
        up = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        down = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        return np.maximum(0, np.minimum(up, down)).astype(np.float32)

    @torch.no_grad()
    def forward(self, x, length):
        x = x + self.dither * torch.randn_like(x)
        x = torch.cat([x[:, :1], x[:, 1:] - self.preemph * x[:, :-1]], dim=1)
        spectrum = torch.stft(x, N_FFT, HOP, 400, self.window, pad_mode="constant", return_complex=True)
        mel = torch.log(self.fb @ spectrum.abs().pow(2) + 2**-24).transpose(1, 2)
        frames = length // HOP + 1
        mask = torch.arange(mel.shape[1], device=mel.device) < frames[:, None]
        valid = mask.unsqueeze(-1)
        mean = (mel * valid).sum(1, keepdim=True) / frames[:, None, None]
        var = ((mel - mean).pow(2) * valid).sum(1, keepdim=True) / (frames[:, None, None] - 1)
        return ((mel - mean) / (var.sqrt() + 1e-5)) * valid, mask.long()


def spec_augment(mel, n_freq=2, width=16, n_time=3, part=0.05):
    for row in mel:
        for _ in range(n_freq):
            start, w = int(torch.randint(N_MELS - width, ())), int(torch.randint(width, ()))
            row[:, start : start + w] = 0
        for _ in range(n_time):
            w = int(part * len(row))
            start = int(torch.randint(len(row) - w, ()))
            row[start : start + w] = 0
    return mel


class DictationModel(L.LightningModule):
    def __init__(self, lr=5e-3):
        super().__init__()
        self.save_hyperparameters()
        encoder = ParakeetEncoderConfig(
            hidden_size=256,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=1024,
            subsampling_conv_channels=64,
            num_mel_bins=N_MELS,
            layerdrop=0.0,
        )
        self.net = ParakeetForCTC(
            ParakeetCTCConfig(encoder_config=encoder, vocab_size=BLANK + 1, pad_token_id=BLANK)
        )
        self.preprocessor = MelSpectrogram()

    def on_after_batch_transfer(self, batch, dataloader_idx):
        mel, mask = self.preprocessor(batch["signal"], batch["signal_len"])
        if self.trainer.training:
            mel = spec_augment(mel)
        return batch | {"input_features": mel, "attention_mask": mask}

    def shared_step(self, batch):
        return self.net(batch["input_features"], batch["attention_mask"], labels=batch["labels"])

    def training_step(self, batch, batch_idx):
        loss = self.shared_step(batch).loss
        self.log("train_loss", loss, prog_bar=True, batch_size=len(batch["labels"]))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        average = averaging._average_model
        held = [*average.parameters(), *average.buffers()]
        end_of_step(inputs=batch, activations=outputs, weights=held)

    def validation_step(self, batch, batch_idx):
        output = self.shared_step(batch)
        best = output.logits.argmax(-1)
        spoken = ((best != BLANK) & (best != F.pad(best, (1, 0), value=BLANK)[:, :-1])).sum().float()
        self.log_dict({"val_loss": output.loss, "val_words": spoken}, batch_size=len(best))

    def configure_optimizers(self):
        optimizer = NovoGrad(self.parameters(), lr=self.hparams.lr, betas=(0.8, 0.25), weight_decay=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12, eta_min=1e-5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(1103, verbose=False)
    averaging = EMAWeightAveraging(decay=0.99)
    trainer = L.Trainer(
        accelerator="auto", devices=1, max_epochs=3, precision="bf16-mixed", gradient_clip_val=1.0,
        callbacks=[averaging], num_sanity_val_steps=0, log_every_n_steps=1,
        logger=CSVLogger("logs"), enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    train = DataLoader(Dictations(16, seed=1), batch_size=4, shuffle=True, collate_fn=collate)
    val = DataLoader(Dictations(4, seed=2), batch_size=4, collate_fn=collate)
    trainer.fit(DictationModel(), train, val)
