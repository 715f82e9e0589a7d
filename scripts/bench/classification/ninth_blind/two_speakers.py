"""A Conv-TasNet tells apart two people who speak at once: Lightning, the best pairing of voices, clipped gradients, the rate falls when it gets no better."""

from itertools import permutations

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE, SEGMENT = 8000, 1.5


class Mixtures(Dataset):
    """Like LibriMix: two sources, each as loud as chance has it, and their sum."""

    def __init__(self, n_utterances):
        self.n_utterances = n_utterances
        self.n_samples = int(SAMPLE_RATE * SEGMENT)

    def __len__(self):
        return self.n_utterances

    def __getitem__(self, idx):
        sources = torch.randn(2, self.n_samples).cumsum(-1).diff(prepend=torch.zeros(2, 1))
        sources = sources * torch.rand(2, 1).add(0.3)
        return sources.sum(0), sources


class GlobalLayerNorm(nn.Module):
    def __init__(self, n_channels, eps=1e-8):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(n_channels, 1))
        self.beta = nn.Parameter(torch.zeros(n_channels, 1))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = (x - mean).pow(2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (x - mean) / (var + self.eps).sqrt() + self.beta


class Conv1DBlock(nn.Module):
    def __init__(self, in_chan, hid_chan, skip_chan, kernel_size, dilation):
        super().__init__()
        self.shared_block = nn.Sequential(
            nn.Conv1d(in_chan, hid_chan, 1),
            nn.PReLU(),
            GlobalLayerNorm(hid_chan),
            nn.Conv1d(
                hid_chan,
                hid_chan,
                kernel_size,
                padding=dilation * (kernel_size - 1) // 2,
                dilation=dilation,
                groups=hid_chan,
            ),
            nn.PReLU(),
            GlobalLayerNorm(hid_chan),
        )
        self.res_conv = nn.Conv1d(hid_chan, in_chan, 1)
        self.skip_conv = nn.Conv1d(hid_chan, skip_chan, 1)

    def forward(self, x):
        shared = self.shared_block(x)
        return self.res_conv(shared), self.skip_conv(shared)


class ConvTasNet(nn.Module):
    def __init__(
        self, n_src=2, n_filters=512, kernel_size=32, stride=16, bn_chan=128, hid_chan=384, n_blocks=6
    ):
        super().__init__()
        self.n_src = n_src
        self.encoder = nn.Conv1d(1, n_filters, kernel_size, stride=stride, bias=False)
        self.bottleneck = nn.Sequential(GlobalLayerNorm(n_filters), nn.Conv1d(n_filters, bn_chan, 1))
        self.TCN = nn.ModuleList(
            Conv1DBlock(bn_chan, hid_chan, bn_chan, 3, 2**i) for _ in range(2) for i in range(n_blocks)
        )
        self.mask_net = nn.Sequential(nn.PReLU(), nn.Conv1d(bn_chan, n_src * n_filters, 1))
        self.decoder = nn.ConvTranspose1d(n_filters, 1, kernel_size, stride=stride, bias=False)

    def forward(self, wav):
        batch, n_samples = wav.shape
        tf_rep = torch.relu(self.encoder(wav.unsqueeze(1)))
        output = self.bottleneck(tf_rep)
        skip_connection = 0.0
        for block in self.TCN:
            residual, skip = block(output)
            output = output + residual
            skip_connection = skip_connection + skip
        est_mask = torch.relu(self.mask_net(skip_connection)).view(batch, self.n_src, *tf_rep.shape[1:])
        masked = (est_mask * tf_rep.unsqueeze(1)).flatten(0, 1)
        decoded = self.decoder(masked).view(batch, self.n_src, -1)
        return nn.functional.pad(decoded, (0, n_samples - decoded.shape[-1]))


def pairwise_neg_sisdr(est, targets, eps=1e-8):
    """For every estimate and every target: (batch, estimates, targets)."""
    est = est - est.mean(-1, keepdim=True)
    targets = targets - targets.mean(-1, keepdim=True)
    est, targets = est.unsqueeze(2), targets.unsqueeze(1)
    dot = (est * targets).sum(-1, keepdim=True)
    scaled = dot * targets / (targets.pow(2).sum(-1, keepdim=True) + eps)
    noise = est - scaled
    ratio = scaled.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps)
    return -10 * torch.log10(ratio + eps)


def pit_loss(est, targets):
    losses = pairwise_neg_sisdr(est, targets)
    of_orders = [
        torch.stack([losses[:, i, j] for i, j in enumerate(order)]).mean(0)
        for order in permutations(range(targets.shape[1]))
    ]
    return torch.stack(of_orders, dim=1).min(dim=1).values.mean()


class System(pl.LightningModule):
    def __init__(self, model, lr=1e-3):
        super().__init__()
        self.model = model
        self.lr = lr

    def common_step(self, batch):
        inputs, targets = batch
        return pit_loss(self.model(inputs), targets)

    def training_step(self, batch, batch_nb):
        loss = self.common_step(batch)
        self.log("loss", loss, logger=True, on_step=True)
        return loss

    def validation_step(self, batch, batch_nb):
        self.log("val_loss", self.common_step(batch), on_epoch=True, prog_bar=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=1e-6)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def main():
    pl.seed_everything(501)
    train_loader = DataLoader(Mixtures(4), shuffle=True, batch_size=2, drop_last=True)
    val_loader = DataLoader(Mixtures(2), shuffle=False, batch_size=2, drop_last=True)
    trainer = pl.Trainer(
        max_epochs=3,
        callbacks=[EarlyStopping("val_loss", patience=30), LearningRateMonitor("step")],
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        gradient_clip_val=5.0,
        logger=CSVLogger("exp"),
        log_every_n_steps=1,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(System(ConvTasNet()), train_loader, val_loader)


if __name__ == "__main__":
    main()
