"""What proteins do, from a weighted graph of their associations: a deep GEN network of PyG (res+ blocks, checkpointed) trained on random parts of the graph."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from sklearn.metrics import roc_auc_score
from torch.nn import LayerNorm, Linear, ReLU
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import DeepGCNLayer, GENConv
from torch_geometric.utils import scatter, to_undirected

torch.manual_seed(5)
n_nodes, n_edges, n_tasks = 6000, 70000, 112

source = torch.randint(0, n_nodes, (n_edges,))
target = (source + torch.randint(1, 900, (n_edges,))) % n_nodes
edge_attr = torch.rand(n_edges, 8)
edge_index, edge_attr = to_undirected(torch.stack([source, target]), edge_attr, n_nodes)
data = Data(
    edge_index=edge_index,
    edge_attr=edge_attr,
    y=(torch.rand(n_nodes, n_tasks) < 0.15).float(),
    num_nodes=n_nodes,
)
data.x = scatter(data.edge_attr, data.edge_index[1], dim=0, dim_size=n_nodes, reduce="sum")
part = torch.rand(n_nodes)
data.train_mask, data.valid_mask = part < 0.7, (part >= 0.7) & (part < 0.85)

train_loader = RandomNodeLoader(data, num_parts=4, shuffle=True)
test_loader = RandomNodeLoader(data, num_parts=2)


class DeeperGCN(torch.nn.Module):
    def __init__(self, hidden_channels, num_layers):
        super().__init__()
        self.node_encoder = Linear(data.x.size(-1), hidden_channels)
        self.edge_encoder = Linear(data.edge_attr.size(-1), hidden_channels)
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
            act = ReLU(inplace=True)
            self.layers.append(DeepGCNLayer(conv, norm, act, block="res+", dropout=0.1, ckpt_grad=i % 3))
        self.lin = Linear(hidden_channels, n_tasks)

    def forward(self, x, edge_index, edge_attr):
        x = self.node_encoder(x)
        edge_attr = self.edge_encoder(edge_attr)
        x = self.layers[0].conv(x, edge_index, edge_attr)
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))
        x = F.dropout(x, p=0.1, training=self.training)
        return self.lin(x)


device = torch.device("cuda")
model = DeeperGCN(hidden_channels=64, num_layers=12).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = torch.nn.BCEWithLogitsLoss()


def train(epoch):
    model.train()
    total_loss = total_examples = 0
    for batch in train_loader:
        optimizer.zero_grad()
        batch = batch.to(device)
        out = model(batch.x, batch.edge_index, batch.edge_attr)
        loss = criterion(out[batch.train_mask], batch.y[batch.train_mask])
        loss.backward()
        optimizer.step()
        total_loss += float(loss) * int(batch.train_mask.sum())
        total_examples += int(batch.train_mask.sum())
        end_of_step(inputs=batch.to_dict(), activations=[out, loss])
    return total_loss / total_examples


@torch.no_grad()
def test():
    model.eval()
    y_true, y_pred = [], []
    for batch in test_loader:
        batch = batch.to(device)
        out = model(batch.x, batch.edge_index, batch.edge_attr)
        y_true.append(batch.y[batch.valid_mask].cpu())
        y_pred.append(out[batch.valid_mask].cpu())
    return roc_auc_score(torch.cat(y_true).numpy(), torch.cat(y_pred).numpy())


for epoch in range(1, 3):
    print(f"epoch {epoch}: loss {train(epoch):.4f}, valid {test():.4f}")
