"""A TabNet tells kinds of forest from maps: sparsemax masks, ghost batch norm, large batches, Adam with steps, clipped gradients, a sparsity penalty."""

import torch
import torch.nn.functional as F
from entmax import sparsemax
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)
device = torch.device("cuda")
NUMERIC, SOILS, AREAS, CLASSES = 44, 40, 4, 7


class GhostNorm(nn.Module):
    def __init__(self, width, virtual=256, momentum=0.02):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=momentum)
        self.virtual = virtual

    def forward(self, x):
        if not self.training:
            return self.norm(x)
        return torch.cat([self.norm(chunk) for chunk in x.chunk(max(1, len(x) // self.virtual))])


class GatedLayer(nn.Module):
    def __init__(self, inside, outside, shared=None):
        super().__init__()
        self.linear = shared if shared is not None else nn.Linear(inside, 2 * outside, bias=False)
        self.norm = GhostNorm(2 * outside)

    def forward(self, x):
        return F.glu(self.norm(self.linear(x)))


class FeatureTransformer(nn.Module):
    def __init__(self, inside, width, shared):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                GatedLayer(inside, width, shared[0]),
                GatedLayer(width, width, shared[1]),
                GatedLayer(width, width),
                GatedLayer(width, width),
            ]
        )

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = (x + layer(x)) * 0.5**0.5
        return x


class TabNet(nn.Module):
    def __init__(self, decision=64, attention=64, steps=4, gamma=1.5):
        super().__init__()
        self.soil = nn.Embedding(SOILS, 8)
        self.area = nn.Embedding(AREAS, 3)
        inside, width = NUMERIC + 11, decision + attention
        self.decision, self.gamma = decision, gamma
        self.first_norm = nn.BatchNorm1d(inside, momentum=0.01)
        shared = nn.ModuleList(
            [nn.Linear(inside, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)]
        )
        self.transformers = nn.ModuleList(FeatureTransformer(inside, width, shared) for _ in range(steps + 1))
        self.attentive = nn.ModuleList(
            nn.Sequential(nn.Linear(attention, inside, bias=False), GhostNorm(inside)) for _ in range(steps)
        )
        self.head = nn.Linear(decision, CLASSES, bias=False)

    def forward(self, numeric, categories):
        x = self.first_norm(torch.cat([numeric, self.soil(categories[:, 0]), self.area(categories[:, 1])], 1))
        attended = self.transformers[0](x)[:, self.decision :]
        prior, total, penalty = torch.ones_like(x), 0, 0
        for attentive, transformer in zip(self.attentive, self.transformers[1:]):
            mask = sparsemax(attentive(attended) * prior, dim=-1)
            penalty = penalty - (mask * (mask + 1e-15).log()).sum(1).mean()
            prior = prior * (self.gamma - mask)
            hidden = transformer(mask * x)
            total = total + F.relu(hidden[:, : self.decision])
            attended = hidden[:, self.decision :]
        return self.head(total), penalty / len(self.attentive)


def cells(count):
    categories = torch.stack([torch.randint(0, SOILS, (count,)), torch.randint(0, AREAS, (count,))], 1)
    return TensorDataset(torch.randn(count, NUMERIC), categories, torch.randint(0, CLASSES, (count,)))


train = DataLoader(cells(8192), batch_size=2048, shuffle=True, drop_last=True, pin_memory=True)
held_out = DataLoader(cells(2048), batch_size=2048)
model = TabNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)

for epoch in range(3):
    model.train()
    for batch in train:
        numeric, categories, kinds = (t.to(device, non_blocking=True) for t in batch)
        logits, penalty = model(numeric, categories)
        loss = F.cross_entropy(logits, kinds) + 1e-3 * penalty
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        running = loss.item()
        end_of_step(inputs=[numeric, categories, kinds], activations=[logits, penalty, loss])
    scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(n.to(device), c.to(device))[0].argmax(1).cpu() == k).sum().item() for n, c, k in held_out
        )
    print(epoch, running, right)
