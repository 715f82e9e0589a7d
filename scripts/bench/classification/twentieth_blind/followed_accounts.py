"""Deep Graph Infomax learns vectors of the accounts of a social network without labels: the whole graph on the GPU, GATv2 layers, Adam, exponential decay, then a linear probe."""

import torch
from programs import end_of_step
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import DeepGraphInfomax, GATv2Conv
from torch_geometric.transforms import Compose, NormalizeFeatures, ToUndirected

torch.manual_seed(21)
device = torch.device("cuda")


def network(accounts=1500, follows=6000, words=600, communities=8):
    y = torch.randint(0, communities, (accounts,))
    source = torch.randint(0, accounts, (follows,))
    order = y.argsort()
    start = torch.searchsorted(y[order].contiguous(), torch.arange(communities))
    count = torch.bincount(y, minlength=communities)
    inside = order[
        (start[y[source]] + (torch.rand(follows) * count[y[source]]).long()).clamp(max=accounts - 1)
    ]
    target = torch.where(torch.rand(follows) < 0.8, inside, torch.randint(0, accounts, (follows,)))
    likes = torch.rand(communities, words) * 0.04
    x = torch.bernoulli(likes[y])
    mask = torch.rand(accounts) < 0.1
    return Data(x=x, edge_index=torch.stack([source, target]), y=y, train_mask=mask, test_mask=~mask)


class Encoder(nn.Module):
    def __init__(self, in_channels, hidden=64, heads=4, out=256):
        super().__init__()
        self.conv1 = GATv2Conv(in_channels, hidden, heads=heads, dropout=0.1)
        self.act1 = nn.PReLU(hidden * heads)
        self.conv2 = GATv2Conv(hidden * heads, out, heads=1, dropout=0.1)
        self.act2 = nn.PReLU(out)

    def forward(self, x, edge_index):
        x = self.act1(self.conv1(x, edge_index))
        return self.act2(self.conv2(x, edge_index))


def corruption(x, edge_index):
    return x[torch.randperm(x.size(0), device=x.device)], edge_index


data = Compose([ToUndirected(), NormalizeFeatures()])(network()).to(device)
model = DeepGraphInfomax(
    hidden_channels=256,
    encoder=Encoder(data.num_features),
    summary=lambda z, *args, **kwargs: z.mean(dim=0).sigmoid(),
    corruption=corruption,
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.995)


def train():
    model.train()
    optimizer.zero_grad()
    pos_z, neg_z, summary = model(data.x, data.edge_index)
    loss = model.loss(pos_z, neg_z, summary)
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    z, _, _ = model(data.x, data.edge_index)
    return model.test(
        z[data.train_mask].cpu(),
        data.y[data.train_mask].cpu(),
        z[data.test_mask].cpu(),
        data.y[data.test_mask].cpu(),
        max_iter=20,
    )


for epoch in range(1, 5):
    loss = train()
    scheduler.step()
    if epoch % 2 == 0:
        print(f"{epoch:03d} {loss:.4f} {test():.3f}")
    end_of_step(inputs=[data.x, data.edge_index, data.y, data.train_mask, data.test_mask])
