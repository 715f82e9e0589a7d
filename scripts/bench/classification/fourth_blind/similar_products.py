"""Pictures of the same product come together: pairs are found in a memory of the vectors of earlier batches."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import RegNetConfig, RegNetModel


class Products(Dataset):
    def __init__(self, n, n_classes=40):
        self.labels = torch.randint(0, n_classes, (n // 2,)).repeat_interleave(2)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return torch.randn(3, 96, 96), self.labels[index]


class Embedder(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        config = RegNetConfig(
            embedding_size=32,
            hidden_sizes=[48, 96, 192, 384],
            depths=[1, 2, 3, 1],
            groups_width=24,
            layer_type="y",
        )
        self.backbone = RegNetModel(config)
        self.fc = nn.Linear(384, width)

    def forward(self, images):
        return F.normalize(self.fc(self.backbone(images).pooler_output.flatten(1)), dim=1)


class CrossBatchMemory:
    """The vectors that came last, in a ring."""

    def __init__(self, size, width, device):
        self.features = torch.zeros(size, width, device=device)
        self.labels = torch.full((size,), -1, dtype=torch.long, device=device)
        self.at = self.filled = 0

    def put(self, features, labels):
        n = min(len(features), len(self.features) - self.at)
        self.features[self.at : self.at + n] = features[:n]
        self.labels[self.at : self.at + n] = labels[:n]
        self.at = (self.at + n) % len(self.features)
        self.filled = min(self.filled + n, len(self.features))

    def get(self):
        return self.features[: self.filled], self.labels[: self.filled]


def contrastive_loss(found, labels, others, other_labels, margin=0.5):
    similarity = found @ others.T
    same = labels[:, None] == other_labels[None]
    near = (1 - similarity)[same & (similarity < 1 - 1e-5)].sum()
    far = similarity[~same & (similarity > margin)].sum()
    return (near + far) / len(found)


torch.manual_seed(94)
device = torch.device("cuda", 0)
model = Embedder().to(device)
memory = CrossBatchMemory(4096, 192, device)
optimizer = torch.optim.RMSprop(
    [
        {"params": model.backbone.parameters(), "lr": 3e-5},
        {"params": model.fc.parameters(), "lr": 3e-4},
    ],
    momentum=0.9,
    weight_decay=5e-4,
)
loader = DataLoader(Products(160), batch_size=16, shuffle=True)
model.train()
for step, (images, labels) in enumerate(loader):
    images, labels = images.to(device), labels.to(device)
    found = model(images)
    loss = contrastive_loss(found, labels, found, labels)
    memory.put(found.detach(), labels)
    if step > 0:
        loss = loss + contrastive_loss(found, labels, *memory.get())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}, kept {memory.filled}")
    end_of_step(inputs=[images, labels, memory.features, memory.labels], activations=[found, loss])
