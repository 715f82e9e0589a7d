"""How well molecules dissolve is learned by a GraphGPS: messages along bonds beside attention between all atoms, random walks tell where an atom is, graphs are collated by hand and padded on the device, Adamax, half of a cycle of the rate, L1 in between."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader

ATOMS, BONDS, WALKS, CHANNELS = 28, 4, 20, 192
device = "cuda" if torch.cuda.is_available() else "cpu"


def random_molecule(rng):
    """A tree of atoms with a few rings, and how often a walk comes back."""
    n = rng.randint(12, 36)
    kinds = torch.tensor([int(rng.random() ** 3 * ATOMS) for _ in range(n)])
    pairs = {(i, rng.randrange(max(0, i - 4), i)) for i in range(1, n)}
    pairs |= {(i, i - 5) for i in range(5, n) if rng.random() < 0.15}
    edges = torch.tensor(sorted(pairs)).T
    bonds = torch.tensor([int(rng.random() ** 2 * BONDS) for _ in range(edges.shape[1])])
    adjacency = torch.zeros(n, n)
    adjacency[edges[0], edges[1]] = adjacency[edges[1], edges[0]] = 1
    step = adjacency / adjacency.sum(1, keepdim=True)
    walk, returns = torch.eye(n), []
    for _ in range(WALKS):
        walk = walk @ step
        returns.append(walk.diagonal())
    target = (kinds == 2).float().mean() * 4 - 0.05 * n + 0.3 * (edges.shape[1] - n)
    return {
        "x": kinds,
        "pe": torch.stack(returns, 1),
        "edge_index": torch.cat([edges, edges.flip(0)], 1),
        "edge_attr": bonds.repeat(2),
        "y": target,
    }


def collate(graphs):
    sizes = torch.tensor([len(g["x"]) for g in graphs])
    starts = sizes.cumsum(0) - sizes
    return {
        "x": torch.cat([g["x"] for g in graphs]),
        "pe": torch.cat([g["pe"] for g in graphs]),
        "edge_index": torch.cat([g["edge_index"] + s for g, s in zip(graphs, starts)], dim=1),
        "edge_attr": torch.cat([g["edge_attr"] for g in graphs]),
        "batch": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "y": torch.stack([g["y"] for g in graphs]),
    }


def to_dense_batch(x, batch, n_graphs):
    """Rows of one graph after the other -> graphs by atoms, padded, and which are real."""
    sizes = torch.bincount(batch, minlength=n_graphs)
    starts = sizes.cumsum(0) - sizes
    longest = int(sizes.max())
    index = torch.arange(len(batch), device=x.device) - starts[batch] + batch * longest
    out = x.new_zeros(n_graphs * longest, x.shape[-1]).index_copy(0, index, x)
    mask = torch.zeros(n_graphs * longest, dtype=torch.bool, device=x.device)
    mask[index] = True
    return out.view(n_graphs, longest, -1), mask.view(n_graphs, longest)


class GINEConv(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, channels))

    def forward(self, x, edge_index, edge_attr):
        source, target = edge_index
        messages = F.relu(x[source] + edge_attr)
        return self.nn(x + torch.zeros_like(x).index_add_(0, target, messages))


class GPSConv(nn.Module):
    def __init__(self, channels, heads=4, dropout=0.1):
        super().__init__()
        self.conv, self.dropout = GINEConv(channels), dropout
        self.attn = nn.MultiheadAttention(channels, heads, dropout=0.3, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 2 * channels),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(2 * channels, channels),
            nn.Dropout(dropout),
        )
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm1d(channels) for _ in range(3))

    def forward(self, x, edge_index, edge_attr, batch, n_graphs):
        local = F.dropout(self.conv(x, edge_index, edge_attr), self.dropout, self.training)
        local = self.norm1(local + x)
        h, mask = to_dense_batch(x, batch, n_graphs)
        h, _ = self.attn(h, h, h, key_padding_mask=~mask, need_weights=False)
        h = self.norm2(F.dropout(h[mask], self.dropout, self.training) + x)
        out = local + h
        return self.norm3(out + self.mlp(out))


class GPS(nn.Module):
    def __init__(self, channels=CHANNELS, pe_dim=16, num_layers=5):
        super().__init__()
        self.node_emb = nn.Embedding(ATOMS, channels - pe_dim)
        self.pe_lin, self.pe_norm = nn.Linear(WALKS, pe_dim), nn.BatchNorm1d(WALKS)
        self.edge_emb = nn.Embedding(BONDS, channels)
        self.convs = nn.ModuleList(GPSConv(channels) for _ in range(num_layers))
        self.mlp = nn.Sequential(nn.Linear(channels, channels // 2), nn.ReLU(), nn.Linear(channels // 2, 1))

    def forward(self, data):
        n_graphs = len(data["y"])
        x = torch.cat([self.node_emb(data["x"]), self.pe_lin(self.pe_norm(data["pe"]))], 1)
        edge_attr = self.edge_emb(data["edge_attr"])
        for conv in self.convs:
            x = conv(x, data["edge_index"], edge_attr, data["batch"], n_graphs)
        pooled = x.new_zeros(n_graphs, x.shape[1]).index_add_(0, data["batch"], x)
        return self.mlp(pooled).squeeze(-1)


def train(model, loader, optimizer, scheduler):
    model.train()
    total_loss = 0.0
    for data in loader:
        data = {key: value.to(device) for key, value in data.items()}
        optimizer.zero_grad()
        out = model(data)
        loss = F.l1_loss(out, data["y"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total_loss += loss.item() * len(out)
        end_of_step(inputs=data, activations=[out, loss])
    return total_loss / len(loader.dataset)


@torch.no_grad()
def test(model, loader):
    model.eval()
    total_error, n = 0.0, 0
    for data in loader:
        data = {key: value.to(device) for key, value in data.items()}
        total_error += (model(data) - data["y"]).abs().sum().item()
        n += len(data["y"])
    return total_error / n


def main():
    torch.manual_seed(1208)
    rng = random.Random(1208)
    molecules = [random_molecule(rng) for _ in range(96)]
    train_loader = DataLoader(molecules[:64], batch_size=32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(molecules[64:], batch_size=32, collate_fn=collate)
    model = GPS().to(device)
    optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    for epoch in range(1, 7):
        loss = train(model, train_loader, optimizer, scheduler)
        print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Val: {test(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
