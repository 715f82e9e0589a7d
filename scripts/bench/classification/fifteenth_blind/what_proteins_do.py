"""What proteins do is told from whom they interact with by a deep GCN, as PyTorch Geometric's example for ogbn-proteins does it: random parts of one graph, layers with softmax aggregation that are computed again in backward, half precision with a scaler, many answers for each protein, ROC-AUC over the whole graph after an epoch."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from sklearn.metrics import roc_auc_score
from torch.nn import LayerNorm, Linear, ReLU
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import DeepGCNLayer, GENConv
from torch_geometric.utils import scatter, to_undirected

N_PROTEINS, N_PAIRS, N_FUNCTIONS = 4_000, 60_000, 112


def interactions():
    family = torch.randint(40, (N_PROTEINS,))
    order = torch.argsort(family)
    first = torch.randint(N_PROTEINS, (N_PAIRS,))
    near = (first + torch.randint(-60, 60, (N_PAIRS,))) % N_PROTEINS
    edge_index = torch.stack([order[first], order[near]])
    edge_attr = torch.rand(N_PAIRS, 8) ** 3
    edge_index, edge_attr = to_undirected(edge_index, edge_attr, reduce="mean")
    x = scatter(edge_attr, edge_index[1], dim=0, dim_size=N_PROTEINS, reduce="mean")
    y = (torch.rand(40, N_FUNCTIONS)[family] > 0.8).float()
    data = Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=y)
    split = torch.rand(N_PROTEINS)
    data.train_mask, data.valid_mask, data.test_mask = (
        split < 0.7,
        (split >= 0.7) & (split < 0.85),
        split >= 0.85,
    )
    return data


class DeeperGCN(torch.nn.Module):
    def __init__(self, hidden_channels, num_layers, out_channels):
        super().__init__()
        self.node_encoder = Linear(8, hidden_channels)
        self.edge_encoder = Linear(8, hidden_channels)
        self.layers = torch.nn.ModuleList()
        for i in range(1, num_layers + 1):
            conv = GENConv(
                hidden_channels,
                hidden_channels,
                aggr="softmax",
                t=1.0,
                learn_t=True,
                num_layers=2,
                norm="layer",
            )
            norm = LayerNorm(hidden_channels, elementwise_affine=True)
            self.layers.append(
                DeepGCNLayer(conv, norm, ReLU(inplace=True), block="res+", dropout=0.1, ckpt_grad=i % 3)
            )
        self.lin = Linear(hidden_channels, out_channels)

    def forward(self, x, edge_index, edge_attr):
        x, edge_attr = self.node_encoder(x), self.edge_encoder(edge_attr)
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.lin(F.dropout(x, p=0.1, training=self.training))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = interactions()
    train_loader = RandomNodeLoader(data, num_parts=2, shuffle=True)
    test_loader = RandomNodeLoader(data, num_parts=2)
    model = DeeperGCN(hidden_channels=64, num_layers=14, out_channels=N_FUNCTIONS).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = torch.nn.BCEWithLogitsLoss()
    scaler = torch.amp.GradScaler(device.type)

    @torch.no_grad()
    def test():
        model.eval()
        y_true, y_pred = {"train": [], "valid": [], "test": []}, {"train": [], "valid": [], "test": []}
        for part in test_loader:
            part = part.to(device)
            with torch.autocast(device.type, dtype=torch.float16):
                out = model(part.x, part.edge_index, part.edge_attr)
            for split in y_true:
                mask = part[f"{split}_mask"]
                y_true[split].append(part.y[mask].cpu())
                y_pred[split].append(out[mask].float().cpu())
        return {split: roc_auc_score(torch.cat(y_true[split]), torch.cat(y_pred[split])) for split in y_true}

    best = 0.0
    for epoch in range(1, 4):
        model.train()
        total_loss = total_examples = 0
        for part in train_loader:
            optimizer.zero_grad()
            part = part.to(device)
            with torch.autocast(device.type, dtype=torch.float16):
                out = model(part.x, part.edge_index, part.edge_attr)
                loss = criterion(out[part.train_mask], part.y[part.train_mask])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            n = int(part.train_mask.sum())
            total_loss += loss.item() * n
            total_examples += n
            end_of_step(inputs=part.to_dict(), activations=[out, loss])
        scores = test()
        if scores["valid"] > best:
            best = scores["valid"]
            torch.save(model.state_dict(), "best.pt")
        print(
            f"epoch {epoch:02d}: loss {total_loss / total_examples:.4f}, ROC-AUC {scores['valid']:.4f} {scores['test']:.4f}"
        )


if __name__ == "__main__":
    main()
