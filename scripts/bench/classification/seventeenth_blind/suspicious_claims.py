"""Skorch trains a feature-tokenizer transformer with periodic embeddings on insurance claims: NAdam, one cycle, clipping."""

import numpy as np
import torch
from programs import end_of_step, tell
from rtdl_num_embeddings import PeriodicEmbeddings
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EpochScoring, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from skorch.utils import to_tensor
from torch import nn


class ClaimsTransformer(nn.Module):
    def __init__(self, n_numbers, cardinalities, d_token=128, n_blocks=3, n_heads=8, dropout=0.1):
        super().__init__()
        self.numbers = PeriodicEmbeddings(
            n_numbers, d_token, n_frequencies=48, frequency_init_scale=0.05, lite=False
        )
        self.categories = nn.ModuleList([nn.Embedding(size, d_token) for size in cardinalities])
        self.cls = nn.Parameter(torch.randn(1, 1, d_token) * 0.02)
        layer = nn.TransformerEncoderLayer(
            d_token, n_heads, 4 * d_token, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_blocks, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d_token), nn.ReLU(), nn.Linear(d_token, 2))

    def forward(self, numbers, categories):
        tokens = [self.cls.expand(len(numbers), -1, -1), self.numbers(numbers)]
        tokens += [embedding(categories[:, i]).unsqueeze(1) for i, embedding in enumerate(self.categories)]
        return self.head(self.blocks(torch.cat(tokens, dim=1))[:, 0])


class ClaimsNet(NeuralNetClassifier):
    def get_loss(self, y_pred, y_true, *args, **kwargs):
        y_true = to_tensor(y_true, device=self.device)
        tell(inputs=y_true)
        return super().get_loss(y_pred, y_true, *args, **kwargs)


class StepEnds(Callback):
    def on_batch_end(self, net, batch=None, training=False, **kwargs):
        if training:
            end_of_step(activations=[kwargs["loss"], kwargs["y_pred"]])


rng = np.random.default_rng(12)
n, cardinalities = 1600, [60, 12, 7, 400, 5, 31]
numbers = rng.normal(size=(n, 22)).astype(np.float32)
categories = np.stack([rng.integers(0, size, n) for size in cardinalities], axis=1)
labels = (numbers[:, 0] + 0.3 * numbers[:, 4] ** 2 + rng.normal(0, 0.5, n) > 1.2).astype(np.int64)

torch.manual_seed(12)
net = ClaimsNet(
    ClaimsTransformer,
    module__n_numbers=22,
    module__cardinalities=cardinalities,
    criterion=nn.CrossEntropyLoss,
    criterion__label_smoothing=0.05,
    optimizer=torch.optim.NAdam,
    optimizer__weight_decay=1e-5,
    optimizer__decoupled_weight_decay=True,
    lr=3e-4,
    max_epochs=2,
    batch_size=160,
    iterator_train__shuffle=True,
    train_split=ValidSplit(5, stratified=True),
    callbacks=[
        ("auc", EpochScoring("roc_auc", lower_is_better=False)),
        ("clip", GradientNormClipping(1.0)),
        (
            "one_cycle",
            LRScheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=1e-3, total_steps=16, step_every="batch"),
        ),
        ("ends", StepEnds()),
    ],
    device="cuda",
    verbose=0,
)
net.fit({"numbers": numbers, "categories": categories}, labels)
