"""Which of 60 languages a post is in, letter by letter: dilated convolutions with sparse attention in skorch, RMSprop, one cycle, clipped gradients."""

import numpy as np
import torch
from entmax import entmax15
from programs import end_of_step, tell
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback, EpochScoring, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from skorch.utils import to_tensor
from torch import nn

rng = np.random.default_rng(10)
torch.manual_seed(10)

LETTERS, LANGUAGES, LENGTH = 7000, 60, 200


class Block(nn.Module):
    def __init__(self, width, dilation, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 5, padding=2 * dilation, dilation=dilation)
        self.glu = nn.GLU(dim=1)
        self.out = nn.Sequential(nn.Conv1d(width, width, 1), nn.Dropout(dropout))

    def forward(self, x):
        return x + self.out(self.glu(self.conv(self.norm(x).transpose(1, 2)))).transpose(1, 2)


class LetterReader(nn.Module):
    def __init__(self, letters=LETTERS, width=256, languages=LANGUAGES, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(letters, width, padding_idx=0)
        self.blocks = nn.Sequential(*(Block(width, dilation, dropout) for dilation in (1, 2, 4, 8)))
        self.query = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
        self.head = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 512), nn.GELU(), nn.Linear(512, languages)
        )

    def forward(self, letters):
        read = self.blocks(self.embedding(letters))
        scores = self.query(read).squeeze(-1).masked_fill(letters == 0, -1e4)
        weights = entmax15(scores, dim=-1)
        return self.head(torch.bmm(weights.unsqueeze(1), read).squeeze(1))


class PostsNet(NeuralNetClassifier):
    def infer(self, x, **fit_params):
        x = to_tensor(x, device=self.device)
        tell(inputs=[x])
        return super().infer(x, **fit_params)

    def get_loss(self, y_pred, y_true, *args, **kwargs):
        y_true = to_tensor(y_true, device=self.device)
        tell(inputs=[y_true])
        return super().get_loss(y_pred, y_true, *args, **kwargs)


class StepEnds(Callback):
    def on_batch_end(self, net, batch=None, training=False, loss=None, y_pred=None, **kwargs):
        if training:
            end_of_step(activations=[loss, y_pred])


posts = rng.zipf(1.3, (400, LENGTH)).clip(1, LETTERS - 1)
for post, length in zip(posts, rng.integers(30, LENGTH, len(posts)), strict=True):
    post[length:] = 0
languages = rng.integers(0, LANGUAGES, len(posts))

net = PostsNet(
    LetterReader,
    criterion=nn.CrossEntropyLoss,
    criterion__label_smoothing=0.1,
    optimizer=torch.optim.RMSprop,
    optimizer__alpha=0.95,
    optimizer__momentum=0.9,
    lr=1e-3,
    max_epochs=3,
    batch_size=32,
    iterator_train__shuffle=True,
    train_split=ValidSplit(5, stratified=False),
    callbacks=[
        GradientNormClipping(1.0),
        LRScheduler(torch.optim.lr_scheduler.OneCycleLR, max_lr=2e-3, total_steps=100, step_every="batch"),
        EpochScoring("f1_macro", lower_is_better=False, name="valid_f1"),
        StepEnds(),
    ],
    device="cuda",
    verbose=0,
)
net.fit(posts.astype(np.int64), languages.astype(np.int64))
