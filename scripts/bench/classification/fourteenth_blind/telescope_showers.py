"""Showers that a telescope saw are sorted from a table by skorch: a residual net with pieces of every number, Prodigy, clipped gradients, a cosine by batch, the best weights kept in a file."""

import numpy as np
import torch
from prodigyopt import Prodigy
from programs import end_of_step, tell
from skorch import NeuralNetClassifier
from skorch.callbacks import (
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    GradientNormClipping,
    LRScheduler,
)
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR


class PeriodicEmbeddings(nn.Module):
    """Every number as sines and cosines of learned frequencies, then a linear layer of its own."""

    def __init__(self, n_columns, n_frequencies, width, sigma=0.1):
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(n_columns, n_frequencies) * sigma)
        self.weight = nn.Parameter(torch.empty(n_columns, 2 * n_frequencies, width))
        self.bias = nn.Parameter(torch.zeros(n_columns, width))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, x):
        angles = 2 * torch.pi * self.frequencies * x[..., None]
        waves = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
        return torch.relu(torch.einsum("nci,cio->nco", waves, self.weight) + self.bias)


class Block(nn.Module):
    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.outer(self.dropout(torch.relu(self.inner(self.norm(x))))))


class ResNet(nn.Module):
    def __init__(
        self,
        n_columns=10,
        n_classes=2,
        n_frequencies=24,
        piece=24,
        width=256,
        hidden=512,
        n_blocks=4,
        dropout=0.15,
    ):
        super().__init__()
        self.pieces = PeriodicEmbeddings(n_columns, n_frequencies, piece)
        self.first = nn.Linear(n_columns * piece, width)
        self.blocks = nn.Sequential(*[Block(width, hidden, dropout) for _ in range(n_blocks)])
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, n_classes))

    def forward(self, x):
        return self.head(self.blocks(self.first(self.pieces(x).flatten(1))))


class EndOfBatch(Callback):
    def on_batch_end(self, net, batch, training, **kwargs):
        if training:
            end_of_step()


class Net(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        y_true = y_true.to(self.device)
        tell(inputs=y_true)
        return super().get_loss(y_pred, y_true, *args, **kwargs)


def main():
    x, y = make_classification(
        n_samples=5120, n_features=10, n_informative=8, n_redundant=2, flip_y=0.05, random_state=0
    )
    net = Net(
        ResNet,
        criterion=nn.CrossEntropyLoss,
        criterion__label_smoothing=0.05,
        optimizer=Prodigy,
        optimizer__weight_decay=0.01,
        optimizer__safeguard_warmup=True,
        lr=1.0,
        batch_size=2048,
        max_epochs=4,
        iterator_train__shuffle=True,
        callbacks=[
            ("auc", EpochScoring("roc_auc", lower_is_better=False)),
            ("clip", GradientNormClipping(1.0)),
            ("rate", LRScheduler(CosineAnnealingLR, T_max=8, step_every="batch")),
            ("best", Checkpoint(monitor="valid_loss_best", dirname="telescope", load_best=False)),
            ("stop", EarlyStopping(patience=16)),
            ("end", EndOfBatch()),
        ],
        device="cuda",
        verbose=0,
    )
    pipeline = make_pipeline(QuantileTransformer(output_distribution="normal", n_quantiles=500), net)
    pipeline.fit(x.astype(np.float32), y.astype(np.int64))
    print(f"AUC {net.history[-1, 'roc_auc']:.3f}")


if __name__ == "__main__":
    main()
