"""What DNA does is read from its letters: convolutions, then attention, a Poisson loss, under Lightning in bfloat16."""

from itertools import pairwise

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import PearsonCorrCoef

LENGTH, N_BINS, N_TRACKS = 8192, 64, 96


class Genome(Dataset):
    def __init__(self, n, is_train):
        self.n, self.is_train = n, is_train

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        sequence = torch.nn.functional.one_hot(torch.randint(4, (LENGTH,)), 4).float().T.contiguous()
        signal = torch.rand(N_BINS, N_TRACKS) * 4
        if self.is_train and torch.rand(()) < 0.5:
            sequence, signal = sequence.flip(0, 1), signal.flip(0)
        return sequence, signal


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class SoftmaxPooling(nn.Module):
    def __init__(self, channels, size=2):
        super().__init__()
        self.size = size
        self.to_attention = nn.Conv1d(channels, channels, 1, bias=False)

    def forward(self, x):
        b, c, n = x.shape
        x = x.view(b, c, n // self.size, self.size)
        logits = self.to_attention(x.flatten(2)).view_as(x)
        return (x * logits.softmax(dim=-1)).sum(dim=-1)


def conv_block(before, after, width=1):
    return nn.Sequential(
        nn.BatchNorm1d(before), nn.GELU(), nn.Conv1d(before, after, width, padding=width // 2)
    )


class SequenceToTracks(nn.Module):
    def __init__(self, width=256, n_layers=4):
        super().__init__()
        half = width // 2
        sizes = [half, half, 160, 192, 208, 224, width]
        self.stem = nn.Sequential(
            nn.Conv1d(4, half, 15, padding=7), Residual(conv_block(half, half)), SoftmaxPooling(half)
        )
        self.tower = nn.Sequential(
            *(
                nn.Sequential(
                    conv_block(before, after, 5), Residual(conv_block(after, after)), SoftmaxPooling(after)
                )
                for before, after in pairwise(sizes)
            )
        )
        self.positions = nn.Parameter(torch.randn(N_BINS, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 8, 2 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, N_TRACKS))

    def forward(self, sequence):
        x = self.tower(self.stem(sequence)).transpose(1, 2)
        return nn.functional.softplus(self.head(self.transformer(x + self.positions)))


class Tracks(L.LightningModule):
    def __init__(self, lr=5e-4):
        super().__init__()
        self.save_hyperparameters()
        self.model = SequenceToTracks()
        self.loss = nn.PoissonNLLLoss(log_input=False)
        self.correlation = PearsonCorrCoef(num_outputs=N_TRACKS)

    def forward(self, sequence):
        return self.model(sequence)

    def training_step(self, batch, batch_idx):
        sequence, signal = batch
        loss = self.loss(self(sequence), signal)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        sequence, signal = batch
        found = self(sequence)
        self.log("val_loss", self.loss(found, signal))
        self.correlation.update(found.float().flatten(0, 1), signal.flatten(0, 1))

    def on_validation_epoch_end(self):
        self.log("val_pearson", self.correlation.compute().mean())
        self.correlation.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[2])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)


def main():
    L.seed_everything(214, verbose=False)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=3,
        gradient_clip_val=0.2,
        callbacks=[Steps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train_loader = DataLoader(Genome(8, True), batch_size=4, shuffle=True)
    trainer.fit(Tracks(), train_loader, DataLoader(Genome(4, False), batch_size=4))


if __name__ == "__main__":
    main()
