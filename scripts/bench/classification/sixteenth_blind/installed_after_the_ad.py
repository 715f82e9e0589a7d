"""A DLRM with mixture-of-experts towers for click and installation: sparse embedding gradients with SparseAdam, the rest with Adagrad."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
device = torch.device("cuda")

NUM_DENSE = 13
CARDINALITIES = [40000, 25000, 12000, 6000, 3000, 900, 300, 60, 24, 7]
DIM = 32
BATCH = 4096


class Impressions(Dataset):
    def __init__(self, count):
        generator = np.random.default_rng(0)
        self.dense = generator.lognormal(size=(count, NUM_DENSE)).astype(np.float32)
        self.sparse = np.stack(
            [np.minimum(generator.zipf(1.2, count), c) - 1 for c in CARDINALITIES], axis=1
        ).astype(np.int64)
        self.click = (generator.random(count) < 0.2).astype(np.float32)
        self.install = self.click * (generator.random(count) < 0.3).astype(np.float32)

    def __len__(self):
        return len(self.click)

    def __getitem__(self, i):
        return self.dense[i], self.sparse[i], np.stack([self.click[i], self.install[i]])


def mlp(sizes, last=True):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if last or i < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DotInteraction(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.register_buffer("pairs", torch.tril_indices(count, count, offset=-1), persistent=False)

    def forward(self, dense, embedded):
        stacked = torch.cat([dense.unsqueeze(1), embedded], dim=1)
        product = torch.bmm(stacked, stacked.transpose(1, 2))
        return torch.cat([dense, product[:, self.pairs[0], self.pairs[1]]], dim=1)


class MultiTaskDLRM(nn.Module):
    def __init__(self, experts=4, tasks=2):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(c, DIM, mode="sum", sparse=True) for c in CARDINALITIES)
        for table in self.tables:
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        self.bottom = mlp([NUM_DENSE, 256, 128, DIM])
        count = len(CARDINALITIES) + 1
        width = DIM + count * (count - 1) // 2
        self.interaction = DotInteraction(count)
        self.experts = nn.ModuleList(mlp([width, 256, 128]) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(mlp([128, 64, 1], last=False) for _ in range(tasks))

    def forward(self, dense, sparse):
        embedded = torch.stack([table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables)], dim=1)
        features = self.interaction(self.bottom(torch.log1p(dense)), embedded)
        outputs = torch.stack([expert(features) for expert in self.experts], dim=1)
        logits = []
        for gate, tower in zip(self.gates, self.towers):
            mix = gate(features).softmax(-1).unsqueeze(-1)
            logits.append(tower((outputs * mix).sum(1)).squeeze(-1))
        return logits


model = MultiTaskDLRM().to(device)
sparse_parameters = list(model.tables.parameters())
sparse_ids = {id(p) for p in sparse_parameters}
dense_parameters = [p for p in model.parameters() if id(p) not in sparse_ids]
sparse_optimizer = torch.optim.SparseAdam(sparse_parameters, lr=1e-3)
dense_optimizer = torch.optim.Adagrad(dense_parameters, lr=1e-2, initial_accumulator_value=0.1)
warmup = torch.optim.lr_scheduler.LinearLR(dense_optimizer, start_factor=0.1, total_iters=100)

loader = DataLoader(Impressions(BATCH * 4), batch_size=BATCH, shuffle=True, drop_last=True, pin_memory=False)

running = 0.0
model.train()
for step, (dense, sparse, labels) in enumerate(loader, start=1):
    dense = dense.to(device, non_blocking=True)
    sparse = sparse.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)

    click_logit, install_logit = model(dense, sparse)
    click_loss = F.binary_cross_entropy_with_logits(click_logit, labels[:, 0])
    joint = torch.sigmoid(click_logit) * torch.sigmoid(install_logit)
    install_loss = F.binary_cross_entropy(joint.clamp(1e-7, 1 - 1e-7), labels[:, 1])
    loss = click_loss + install_loss

    sparse_optimizer.zero_grad()
    dense_optimizer.zero_grad()
    loss.backward()
    sparse_optimizer.step()
    dense_optimizer.step()
    warmup.step()

    running = 0.9 * running + 0.1 * loss.item()
    print(
        f"step {step}: loss {running:.4f}, click {click_loss.item():.4f}, install {install_loss.item():.4f}"
    )
    end_of_step(
        inputs=[dense, sparse, labels],
        activations=[click_logit, install_logit, joint, click_loss, install_loss, loss],
    )
