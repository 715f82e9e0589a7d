"""Who edits which page next is learned from a stream of edits by a temporal graph network (TGN of PyTorch Geometric): a memory of every node, messages that wait on the device, a schedule-free AdamW."""

import torch
from programs import end_of_step
from schedulefree import AdamWScheduleFree
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn
from torch_geometric.data import TemporalData
from torch_geometric.loader import TemporalDataLoader
from torch_geometric.nn import TGNMemory, TransformerConv
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

N_USERS, N_PAGES, N_EDITS, MESSAGE = 8_000, 1_000, 40_000, 172
N_NODES = N_USERS + N_PAGES
WIDTH = 172


class GraphAttention(nn.Module):
    def __init__(self, in_channels, out_channels, msg_dim, time_enc):
        super().__init__()
        self.time_enc = time_enc
        self.conv = TransformerConv(
            in_channels, out_channels // 2, heads=2, dropout=0.1, edge_dim=msg_dim + time_enc.out_channels
        )

    def forward(self, x, last_update, edge_index, t, msg):
        rel_t = last_update[edge_index[0]] - t
        rel_t_enc = self.time_enc(rel_t.to(x.dtype))
        return self.conv(x, edge_index, torch.cat([rel_t_enc, msg], dim=-1))


class LinkPredictor(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.src, self.dst, self.final = (
            nn.Linear(channels, channels),
            nn.Linear(channels, channels),
            nn.Linear(channels, 1),
        )

    def forward(self, z_src, z_dst):
        return self.final((self.src(z_src) + self.dst(z_dst)).relu())


def edits():
    src = (torch.rand(N_EDITS) ** 2 * N_USERS).long()
    dst = N_USERS + (torch.rand(N_EDITS) ** 3 * N_PAGES).long()
    t = torch.randint(1, 100, (N_EDITS,)).cumsum(0)
    return TemporalData(src=src, dst=dst, t=t, msg=torch.randn(N_EDITS, MESSAGE))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    data = edits().to(device)
    train_data, val_data, _ = data.train_val_test_split(val_ratio=0.15, test_ratio=0.15)
    train_loader = TemporalDataLoader(train_data, batch_size=400, neg_sampling_ratio=1.0)
    val_loader = TemporalDataLoader(val_data, batch_size=400, neg_sampling_ratio=1.0)
    neighbor_loader = LastNeighborLoader(N_NODES, size=20, device=device)

    memory = TGNMemory(
        N_NODES,
        MESSAGE,
        WIDTH,
        WIDTH,
        message_module=IdentityMessage(MESSAGE, WIDTH, WIDTH),
        aggregator_module=LastAggregator(),
    ).to(device)
    gnn = GraphAttention(WIDTH, WIDTH, MESSAGE, memory.time_enc).to(device)
    predictor = LinkPredictor(WIDTH).to(device)
    parameters = set(memory.parameters()) | set(gnn.parameters()) | set(predictor.parameters())
    optimizer = AdamWScheduleFree(parameters, lr=1e-3, warmup_steps=10)
    criterion = nn.BCEWithLogitsLoss()
    assoc = torch.empty(N_NODES, dtype=torch.long, device=device)

    def waiting():
        messages = [
            held
            for store in (memory.msg_s_store, memory.msg_d_store)
            for held in store.values()
            if held[0].numel()
        ]
        return [messages, neighbor_loader.neighbors, neighbor_loader.e_id, neighbor_loader._assoc, assoc]

    def scores(batch):
        n_id, edge_index, e_id = neighbor_loader(batch.n_id)
        assoc[n_id] = torch.arange(n_id.size(0), device=device)
        z, last_update = memory(n_id)
        z = gnn(z, last_update, edge_index, data.t[e_id].to(device), data.msg[e_id].to(device))
        return predictor(z[assoc[batch.src]], z[assoc[batch.dst]]), predictor(
            z[assoc[batch.src]], z[assoc[batch.neg_dst]]
        )

    def remember(batch):
        memory.update_state(batch.src, batch.dst, batch.t, batch.msg)
        neighbor_loader.insert(batch.src, batch.dst)

    @torch.no_grad()
    def test(n_batches=2):
        memory.eval(), gnn.eval(), predictor.eval(), optimizer.eval()
        aps, aucs = [], []
        for _, batch in zip(range(n_batches), val_loader):
            pos, neg = scores(batch)
            y_pred = torch.cat([pos, neg]).sigmoid().cpu()
            y_true = torch.cat([torch.ones(pos.size(0)), torch.zeros(neg.size(0))])
            aps.append(average_precision_score(y_true, y_pred))
            aucs.append(roc_auc_score(y_true, y_pred))
            remember(batch)
        return sum(aps) / len(aps), sum(aucs) / len(aucs)

    for epoch in range(2):
        memory.reset_state()
        neighbor_loader.reset_state()
        for step, batch in enumerate(train_loader):
            memory.train(), gnn.train(), predictor.train(), optimizer.train()
            optimizer.zero_grad()
            pos_out, neg_out = scores(batch)
            loss = criterion(pos_out, torch.ones_like(pos_out)) + criterion(
                neg_out, torch.zeros_like(neg_out)
            )
            remember(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(parameters), 1.0)
            optimizer.step()
            memory.detach()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")
            end_of_step(
                inputs=[list(dict(data()).values()), list(dict(batch()).values()), waiting()],
                activations=[loss, pos_out, neg_out],
            )
        ap, auc = test()
        print(f"epoch {epoch}: AP {ap:.4f}, AUC {auc:.4f}")


if __name__ == "__main__":
    main()
