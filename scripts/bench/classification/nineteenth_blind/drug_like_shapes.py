"""Equivariant diffusion (EDM) learns to draw small molecules in three dimensions: an EGNN over all pairs of atoms, AdamW with AMSGrad, gradients clipped by their history, an EMA."""

import copy
import math

import numpy as np
import torch
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(17)
device = torch.device("cuda")
n_types, max_atoms, timesteps = 5, 18, 1000


class Molecules(Dataset):
    """Conformers with hydrogens: positions, types one-hot and charges."""

    def __init__(self, length, seed):
        rng = np.random.default_rng(seed)
        self.sizes = rng.integers(9, max_atoms + 1, length)
        self.walks = [np.cumsum(rng.normal(0, 0.9, (n, 3)), 0).astype("float32") for n in self.sizes]
        self.types = [rng.choice(n_types, n, p=[0.5, 0.32, 0.06, 0.11, 0.01]) for n in self.sizes]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        n = self.sizes[index]
        positions = torch.zeros(max_atoms, 3)
        positions[:n] = torch.from_numpy(self.walks[index] - self.walks[index].mean(0))
        one_hot = torch.zeros(max_atoms, n_types)
        one_hot[torch.arange(n), torch.from_numpy(self.types[index])] = 1
        atom_mask = (torch.arange(max_atoms) < n).float()
        charges = torch.zeros(max_atoms, 1)
        charges[:n, 0] = torch.tensor([1.0, 6, 7, 8, 9])[torch.from_numpy(self.types[index])]
        return {"positions": positions, "one_hot": one_hot, "charges": charges, "atom_mask": atom_mask}


def collate(items):
    batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    mask = batch["atom_mask"]
    edge_mask = mask[:, :, None] * mask[:, None, :] * ~torch.eye(max_atoms, dtype=torch.bool)
    batch["edge_mask"] = edge_mask.reshape(-1, 1)
    batch["atom_mask"] = mask[:, :, None]
    return batch


def remove_mean(x, mask):
    return x - (x.sum(1, keepdim=True) / mask.sum(1, keepdim=True)) * mask


def segment_sum(data, index, n, factor):
    return data.new_zeros(n, data.size(1)).index_add_(0, index, data) / factor


class GCL(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * hidden + 2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.node_mlp = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.att_mlp = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid())

    def forward(self, h, row, col, edge_attr, node_mask, edge_mask):
        m = self.edge_mlp(torch.cat([h[row], h[col], edge_attr], 1))
        m = m * self.att_mlp(m) * edge_mask
        agg = segment_sum(m, row, h.size(0), 100)
        return (h + self.node_mlp(torch.cat([h, agg], 1))) * node_mask


class EquivariantUpdate(nn.Module):
    def __init__(self, hidden, scale):
        super().__init__()
        last = nn.Linear(hidden, 1, bias=False)
        nn.init.xavier_uniform_(last.weight, gain=0.001)
        self.coord_mlp = nn.Sequential(
            nn.Linear(2 * hidden + 2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
        )
        self.scale = scale

    def forward(self, h, x, row, col, direction, edge_attr, node_mask, edge_mask):
        weight = torch.tanh(self.coord_mlp(torch.cat([h[row], h[col], edge_attr], 1))) * self.scale
        return (x + segment_sum(direction * weight * edge_mask, row, x.size(0), 100)) * node_mask


def distances(x, row, col):
    difference = x[row] - x[col]
    radial = difference.pow(2).sum(1, keepdim=True)
    return radial, difference / (torch.sqrt(radial + 1e-8) + 1)


class Block(nn.Module):
    def __init__(self, hidden, sublayers=1):
        super().__init__()
        self.gcls = nn.ModuleList(GCL(hidden) for _ in range(sublayers))
        self.update = EquivariantUpdate(hidden, scale=15 / 6)

    def forward(self, h, x, row, col, d0, node_mask, edge_mask):
        radial, direction = distances(x, row, col)
        edge_attr = torch.cat([radial, d0], 1)
        for gcl in self.gcls:
            h = gcl(h, row, col, edge_attr, node_mask, edge_mask)
        return h, self.update(h, x, row, col, direction, edge_attr, node_mask, edge_mask)


class Dynamics(nn.Module):
    def __init__(self, features, hidden, layers):
        super().__init__()
        self.embedding = nn.Linear(features + 1, hidden)
        self.embedding_out = nn.Linear(hidden, features)
        self.blocks = nn.ModuleList(Block(hidden) for _ in range(layers))
        self.edges = {}

    def adjacency(self, n, batch_size, device):
        if (n, batch_size) not in self.edges:
            offset = torch.arange(batch_size, device=device)[:, None, None] * n
            node = torch.arange(n, device=device)
            row = (offset + node[None, :, None]).expand(-1, n, n).reshape(-1)
            col = (offset + node[None, None, :]).expand(-1, n, n).reshape(-1)
            self.edges[n, batch_size] = row, col
        return self.edges[n, batch_size]

    def forward(self, z, t, node_mask, edge_mask):
        b, n, _ = z.shape
        row, col = self.adjacency(n, b, z.device)
        flat_mask = node_mask.reshape(b * n, 1)
        z = z.reshape(b * n, -1) * flat_mask
        x0, h = z[:, :3], z[:, 3:]
        h = self.embedding(torch.cat([h, t.repeat_interleave(n, 0)], 1))
        d0, _ = distances(x0, row, col)
        x = x0
        for block in self.blocks:
            h, x = block(h, x, row, col, d0, flat_mask, edge_mask)
        h = self.embedding_out(h) * flat_mask
        velocity = remove_mean(((x - x0) * flat_mask).view(b, n, 3), node_mask)
        return torch.cat([velocity, h.view(b, n, -1)], 2)


class Diffusion(nn.Module):
    def __init__(self, dynamics):
        super().__init__()
        self.dynamics = dynamics
        steps = torch.linspace(0, 1, timesteps + 1, dtype=torch.float64)
        alphas2 = (1 - 2e-5) * (1 - steps**2) ** 2 + 1e-5
        self.register_buffer("gamma", -(torch.log(alphas2) - torch.log(1 - alphas2)).float())

    def noise(self, like, mask):
        x = remove_mean(torch.randn(*like.shape[:2], 3, device=like.device) * mask, mask)
        h = torch.randn(*like.shape[:2], like.size(2) - 3, device=like.device) * mask
        return torch.cat([x, h], 2)

    def forward(self, x, one_hot, charges, node_mask, edge_mask):
        xh = torch.cat([x, one_hot / 4, charges / 10], 2)
        lowest = 0 if self.training else 1
        t = torch.randint(lowest, timesteps + 1, (x.size(0), 1), device=x.device)
        gamma = self.gamma[t][:, :, None]
        alpha, sigma = torch.sqrt(torch.sigmoid(-gamma)), torch.sqrt(torch.sigmoid(gamma))
        eps = self.noise(xh, node_mask)
        z_t = alpha * xh + sigma * eps
        predicted = self.dynamics(z_t, t.float() / timesteps, node_mask, edge_mask)
        return ((eps - predicted) ** 2).mean((1, 2)).mean()


class Queue:
    def __init__(self, max_len=50):
        self.items, self.max_len = [3000.0], max_len

    def add(self, item):
        self.items = [item, *self.items][: self.max_len]

    def limit(self):
        return 1.5 * np.mean(self.items) + 2 * np.std(self.items)


def prepared(batch):
    batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
    batch["positions"] = remove_mean(batch["positions"], batch["atom_mask"])
    batch["positions"] += 0.01 * remove_mean(
        torch.randn_like(batch["positions"]) * batch["atom_mask"], batch["atom_mask"]
    )
    return batch


def loss_of(model, batch):
    return model(
        batch["positions"], batch["one_hot"], batch["charges"], batch["atom_mask"], batch["edge_mask"]
    )


loader = DataLoader(Molecules(16 * 6, 0), batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)
valid = DataLoader(Molecules(16, 1), batch_size=16, collate_fn=collate)
model = Diffusion(Dynamics(n_types + 1, hidden=128, layers=6)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, amsgrad=True, weight_decay=1e-12)
model_ema = copy.deepcopy(model)
gradient_norms = Queue()

for epoch in range(2):
    model.train()
    for i, batch in enumerate(loader):
        batch = prepared(batch)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        limit = gradient_norms.limit()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=limit)
        gradient_norms.add(min(float(norm), float(limit)))
        optimizer.step()
        with torch.no_grad():
            for average, current in zip(model_ema.parameters(), model.parameters()):
                average.data = average.data * 0.999 + (1 - 0.999) * current.data
        if i % 2 == 0:
            print(
                f"epoch {epoch} iteration {i}: loss {loss.item():.3f}, norm {norm:.2f}, bits {loss.item() / math.log(2):.2f}"
            )
        end_of_step(inputs=[batch, list(model.dynamics.edges.values())], activations=loss)
    model_ema.eval()
    with torch.no_grad():
        print("valid", np.mean([loss_of(model_ema, prepared(batch)).item() for batch in valid]))
