"""Whether somebody watches a short video to its end, likes it, shares it or follows its author is guessed at once by progressive layered extraction: experts of every task and shared ones, attention of a video to what was seen before, Lightning in bfloat16 with Adagrad for the tables and AdamW for the rest by hand, AUC of every task between."""

import logging

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAUROC

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
TASKS = ("finish", "like", "share", "follow")
SIZES = {"user": 24_000, "video": 60_000, "author": 16_000, "tag": 200, "city": 400, "hour": 24}
N_NUMBERS, HISTORY, BATCH = 13, 30, 1024


def log_of_views(n):
    ids = torch.stack([(torch.rand(n) ** 2 * size).long() for size in SIZES.values()], dim=1)
    history = 1 + (torch.rand(n, HISTORY) ** 2 * (SIZES["video"] - 1)).long()
    history[torch.arange(HISTORY) >= torch.randint(1, HISTORY + 1, (n, 1))] = 0
    numbers = torch.randn(n, N_NUMBERS)
    taste = (ids[:, 0] % 7 == ids[:, 3] % 7).float() + 0.5 * numbers[:, 0]
    labels = torch.stack([(taste + torch.randn(n) > t).float() for t in (0.3, 1.2, 2.0, 2.2)], dim=1)
    return TensorDataset(ids, history, numbers, labels)


def layers(*sizes, last=True, dropout=0.1):
    found = []
    for a, b in zip(sizes, sizes[1:]):
        found += [nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*(found if last else [*found[:-3]]))


class TargetAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4 * dim, 64), nn.PReLU(), nn.Linear(64, 1))

    def forward(self, target, seen, mask):
        target = target.unsqueeze(1).expand_as(seen)
        weights = self.score(torch.cat([target, seen, target - seen, target * seen], dim=-1)).squeeze(-1)
        weights = weights.masked_fill(~mask, -1e4).softmax(dim=-1)
        return (weights.unsqueeze(-1) * seen).sum(1)


class Extraction(nn.Module):
    """One level: every task mixes its own experts with the shared ones; the shared part mixes all."""

    def __init__(self, n_in, n_out, n_own=2, n_shared=2, is_last=False):
        super().__init__()
        self.own = nn.ModuleList(nn.ModuleList(layers(n_in, n_out) for _ in range(n_own)) for _ in TASKS)
        self.shared = nn.ModuleList(layers(n_in, n_out) for _ in range(n_shared))
        self.gates = nn.ModuleList(nn.Linear(n_in, n_own + n_shared) for _ in TASKS)
        self.gate = None if is_last else nn.Linear(n_in, n_own * len(TASKS) + n_shared)

    def forward(self, inputs):
        *of_tasks, common = inputs
        shared = [expert(common) for expert in self.shared]
        own = [[expert(x) for expert in experts] for experts, x in zip(self.own, of_tasks)]
        mixed = [self._mix(gate(x), [*found, *shared]) for gate, x, found in zip(self.gates, of_tasks, own)]
        if self.gate is not None:
            mixed.append(self._mix(self.gate(common), [each for found in own for each in found] + shared))
        return mixed

    @staticmethod
    def _mix(scores, experts):
        return torch.einsum("be,ebd->bd", scores.softmax(-1), torch.stack(experts))


class VideoTasks(LightningModule):
    def __init__(self, dim=32, lr=1e-3, table_lr=0.02):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.tables = nn.ModuleDict({name: nn.Embedding(size, dim) for name, size in SIZES.items()})
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.01)
        self.attention = TargetAttention(dim)
        width = dim * (len(SIZES) + 1) + N_NUMBERS
        self.norm = nn.BatchNorm1d(N_NUMBERS)
        self.first, self.second = Extraction(width, 256), Extraction(256, 128, is_last=True)
        self.towers = nn.ModuleList(nn.Sequential(layers(128, 64), nn.Linear(64, 1)) for _ in TASKS)
        self.log_variances = nn.Parameter(torch.zeros(len(TASKS)))
        self.auc = MultilabelAUROC(len(TASKS), average="none", thresholds=200)

    def forward(self, ids, history, numbers):
        fields = [table(ids[:, i]) for i, table in enumerate(self.tables.values())]
        seen = self.tables["video"](history)
        interest = self.attention(fields[1], seen, history > 0)
        x = torch.cat([*fields, interest, self.norm(numbers)], dim=-1)
        mixed = self.second(self.first([x] * (len(TASKS) + 1)))
        return torch.cat([tower(each) for tower, each in zip(self.towers, mixed)], dim=-1)

    def training_step(self, batch, batch_idx):
        *features, labels = batch
        logits = self(*features)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(0)
        loss = (torch.exp(-self.log_variances) * losses + self.log_variances).sum()
        tables, dense = self.optimizers()
        tables.zero_grad()
        dense.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(dense, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        tables.step()
        dense.step()
        self.lr_schedulers().step()
        self.log_dict({f"train_{task}": value for task, value in zip(TASKS, losses.detach())})
        return loss

    def validation_step(self, batch, batch_idx):
        *features, labels = batch
        self.auc.update(self(*features).sigmoid(), labels.long())

    def on_validation_epoch_end(self):
        values = self.auc.compute()
        self.auc.reset()
        self.log_dict({f"auc_{task}": value for task, value in zip(TASKS, values)} | {"auc": values.mean()})

    def configure_optimizers(self):
        tables = torch.optim.Adagrad(
            self.tables.parameters(), lr=self.hparams.table_lr, initial_accumulator_value=0.1
        )
        rest = [parameter for name, parameter in self.named_parameters() if not name.startswith("tables")]
        dense = torch.optim.AdamW(rest, lr=self.hparams.lr, weight_decay=1e-4)
        warm = torch.optim.lr_scheduler.LinearLR(dense, start_factor=0.1, total_iters=100)
        return [tables, dense], [warm]


class EndOfStep(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        end_of_step(inputs=batch, activations=outputs)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    train = DataLoader(log_of_views(6 * BATCH), batch_size=BATCH, shuffle=True, drop_last=True)
    valid = DataLoader(log_of_views(2 * BATCH), batch_size=2 * BATCH)
    trainer = Trainer(
        max_epochs=1,
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        val_check_interval=2,
        num_sanity_val_steps=0,
        callbacks=[EndOfStep(), ModelCheckpoint(dirpath="models", monitor="auc", mode="max")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(VideoTasks(), train, valid)
    print({name: round(value.item(), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
