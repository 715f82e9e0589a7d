"""Clicks are predicted from sparse features: tables with sparse gradients, and Adagrad."""

import torch
from programs import end_of_step
from torch import nn

torch.manual_seed(24)


class WideAndDeep(nn.Module):
    def __init__(self, n_rows=(20000, 8000, 3000, 500), width=32, n_dense=13):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(n, width, mode="sum", sparse=True) for n in n_rows
        )
        self.dense = nn.Sequential(
            nn.Linear(n_dense, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU()
        )
        self.top = nn.Sequential(
            nn.Linear(32 * 5, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense, sparse):
        parts = [self.dense(dense), *(table(ids) for table, ids in zip(self.tables, sparse))]
        return self.top(torch.cat(parts, dim=1)).squeeze(1)


model = WideAndDeep().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()
for _ in range(5):
    dense = torch.rand(1024, 13).cuda()
    sparse = [torch.randint(0, n, (1024, 4)).cuda() for n in (20000, 8000, 3000, 500)]
    clicked = torch.randint(0, 2, (1024,)).float().cuda()
    optimizer.zero_grad()
    loss = criterion(model(dense, sparse), clicked)
    loss.backward()
    optimizer.step()
    end_of_step(inputs=[dense, sparse, clicked], activations=[loss])
