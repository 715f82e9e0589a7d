"""What a paper is about is told by papers it cites: a GATv2 on sampled neighbours, features sliced on the host, labels as hints, inference layer by layer between."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.optim.lr_scheduler import ReduceLROnPlateau

N_NODES, N_FEATURES, N_CLASSES, FANOUT = 3000, 256, 40, (8, 4)


class CitationGraph:
    """Who cites whom, as rows of a sparse matrix: both directions and every paper itself."""

    def __init__(self, rng):
        self.y = torch.from_numpy(rng.integers(0, N_CLASSES, N_NODES))
        centers = rng.normal(size=(N_CLASSES, N_FEATURES)).astype(np.float32)
        noise = rng.normal(size=(N_NODES, N_FEATURES)).astype(np.float32)
        self.x = torch.from_numpy(0.3 * centers[self.y.numpy()] + noise)
        cited = rng.zipf(1.6, size=(2, N_NODES * 5)) % N_NODES
        cited[0] = rng.integers(0, N_NODES, cited.shape[1])
        loops = np.arange(N_NODES)[None].repeat(2, axis=0)
        edges = np.unique(np.concatenate((cited, cited[::-1], loops), axis=1), axis=1)
        self.rowptr = np.searchsorted(edges[0], np.arange(N_NODES + 1))
        self.col = edges[1]
        order = rng.permutation(N_NODES)
        self.train_idx, self.val_idx = order[:1500], order[1500:2200]


class NeighborSampler:
    """Batches of papers with some of their neighbours, hop by hop; the blocks go from the outside in."""

    def __init__(self, graph, idx, sizes, batch_size, rng):
        self.graph, self.idx, self.sizes, self.batch_size, self.rng = graph, idx, sizes, batch_size, rng

    def sample_one_hop(self, targets, size):
        rowptr, col = self.graph.rowptr, self.graph.col
        degree = rowptr[targets + 1] - rowptr[targets]
        picked = rowptr[targets][:, None] + (self.rng.random((len(targets), size)) * degree[:, None]).astype(
            int
        )
        sources, dst = col[picked].ravel(), np.arange(len(targets)).repeat(size)
        others = np.setdiff1d(sources, targets)
        n_id = np.concatenate((targets, others))
        place = np.empty(N_NODES, dtype=np.int64)
        place[n_id] = np.arange(len(n_id))
        return n_id, torch.from_numpy(np.stack((place[sources], dst))), len(targets)

    def __iter__(self):
        order = self.rng.permutation(self.idx)
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            n_id, adjs = order[start : start + self.batch_size], []
            for size in self.sizes:
                n_id, edge_index, n_targets = self.sample_one_hop(n_id, size)
                adjs.insert(0, (edge_index, n_targets))
            yield self.batch_size, torch.from_numpy(n_id), adjs


def softmax_of_edges(scores, dst, n):
    largest = scores.new_full((n, scores.size(1)), float("-inf"))
    largest.scatter_reduce_(0, dst[:, None].expand_as(scores), scores.detach(), reduce="amax")
    exp = (scores - largest[dst]).exp()
    total = exp.new_zeros(n, scores.size(1)).index_add_(0, dst, exp)
    return exp / (total[dst] + 1e-16)


class GATv2Conv(nn.Module):
    def __init__(self, in_channels, out_channels, heads, concat=True, dropout=0.3):
        super().__init__()
        self.heads, self.out_channels, self.concat, self.dropout = heads, out_channels, concat, dropout
        self.lin_l = nn.Linear(in_channels, heads * out_channels)
        self.lin_r = nn.Linear(in_channels, heads * out_channels)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        nn.init.xavier_uniform_(self.att)

    def forward(self, x_src, x_dst, edge_index):
        src, dst = edge_index
        x_l = self.lin_l(x_src).view(-1, self.heads, self.out_channels)
        x_r = self.lin_r(x_dst).view(-1, self.heads, self.out_channels)
        x_j = x_l[src]
        scores = (F.leaky_relu(x_j + x_r[dst], 0.2) * self.att).sum(-1)
        alpha = F.dropout(softmax_of_edges(scores, dst, len(x_dst)), self.dropout, self.training)
        out = torch.zeros_like(x_r).index_add_(0, dst, x_j * alpha[..., None])
        return out.flatten(1) if self.concat else out.mean(1)


class GAT(nn.Module):
    def __init__(self, hidden=192, heads=4):
        super().__init__()
        self.label_emb = nn.Embedding(N_CLASSES + 1, N_FEATURES, padding_idx=N_CLASSES)
        width = hidden * heads
        self.convs = nn.ModuleList([GATv2Conv(N_FEATURES, hidden, heads), GATv2Conv(width, hidden, heads)])
        self.skips = nn.ModuleList([nn.Linear(N_FEATURES, width), nn.Linear(width, width)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in range(2)])
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Dropout(0.5))
        self.out = nn.Linear(width // 2, N_CLASSES)

    def layer(self, i, x, n_targets, edge_index):
        x_target = x[:n_targets]
        x = self.convs[i](x, x_target, edge_index) + self.skips[i](x_target)
        return F.dropout(F.elu(self.norms[i](x)), p=0.5, training=self.training)

    def forward(self, x, hints, adjs):
        x = x + self.label_emb(hints)
        for i, (edge_index, n_targets) in enumerate(adjs):
            x = self.layer(i, x, n_targets, edge_index)
        return self.out(self.head(x))

    @torch.no_grad()
    def inference(self, graph, hints, device, batch_size=750):
        """All papers, one layer after the other; what is between lies on the host."""
        x_all = graph.x + self.label_emb(hints.to(device)).cpu()
        for i in range(len(self.convs)):
            xs = []
            for start in range(0, N_NODES, batch_size):
                a, b = graph.rowptr[start], graph.rowptr[start + batch_size]
                degree = np.diff(graph.rowptr[start : start + batch_size + 1])
                dst = torch.from_numpy(np.arange(batch_size).repeat(degree))
                src = torch.from_numpy(graph.col[a:b])
                target = x_all[start : start + batch_size].to(device)
                h = self.convs[i](x_all.to(device), target, torch.stack((src, dst)).to(device))
                h = F.elu(self.norms[i](h + self.skips[i](target)))
                xs.append(h.cpu() if i == 0 else self.out(self.head(h)).cpu())
            x_all = torch.cat(xs)
        return x_all


def main(epochs=3, batch_size=48, batches_per_epoch=3):
    rng = np.random.default_rng(904)
    torch.manual_seed(904)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    graph = CitationGraph(rng)
    loader = NeighborSampler(graph, graph.train_idx, FANOUT, batch_size, rng)
    model = GAT().to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1)
    known = torch.full((N_NODES,), N_CLASSES)
    known[graph.train_idx] = graph.y[graph.train_idx]

    for epoch in range(epochs):
        model.train()
        total_loss = total_correct = 0
        for i, (n_seeds, n_id, adjs) in enumerate(loader):
            if i == batches_per_epoch:
                break
            hints = known[n_id].clone()
            hints[:n_seeds] = N_CLASSES
            hints[torch.rand(len(hints)) < 0.5] = N_CLASSES
            x, y, hints = graph.x[n_id].to(device), graph.y[n_id[:n_seeds]].to(device), hints.to(device)
            adjs = [(edge_index.to(device), n_targets) for edge_index, n_targets in adjs]
            optimizer.zero_grad()
            out = model(x, hints, adjs)
            loss = F.cross_entropy(out, y, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            total_loss += float(loss)
            total_correct += int(out.argmax(dim=-1).eq(y).sum())
            edges = [edge_index for edge_index, _ in adjs]
            end_of_step(inputs=[x, y, hints, edges], activations=[out, loss])
        model.eval()
        pred = model.inference(graph, known, device).argmax(dim=-1)
        val_acc = pred[graph.val_idx].eq(graph.y[graph.val_idx]).float().mean().item()
        scheduler.step(val_acc)
        acc = total_correct / (batches_per_epoch * batch_size)
        print(f"epoch {epoch}: loss {total_loss / batches_per_epoch:.4f}, train {acc:.3f}, val {val_acc:.3f}")


if __name__ == "__main__":
    main()
