"""A prior-fitted network for small tables learns to classify in context: random tables drawn on the device, attention over columns and rows, AdEMAMix, bf16 autocast, checkpointed blocks."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from pytorch_optimizer import AdEMAMix
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.checkpoint import checkpoint

device = torch.device("cuda")
torch.manual_seed(17)

TABLES, ROWS, COLUMNS, CLASSES = 4, 128, 10, 10


@torch.no_grad()
def draw_tables():
    """Tables from random networks of causes: some of the nodes are shown as columns, one is cut into classes."""
    width, depth = 32, int(torch.randint(2, 5, ()))
    nodes = []
    x = torch.randn(TABLES, ROWS, width, device=device)
    for _ in range(depth):
        mixing = torch.randn(TABLES, width, width, device=device) / math.sqrt(width)
        mixing = mixing * (torch.rand_like(mixing) < 0.6)
        x = torch.tanh(x @ mixing) + 0.05 * torch.randn_like(x)
        nodes.append(x)
    nodes = torch.cat(nodes, -1)
    shown = torch.rand(TABLES, nodes.shape[-1], device=device).argsort(-1)[:, : COLUMNS + 1]
    table = nodes.gather(-1, shown[:, None].expand(-1, ROWS, -1))
    columns, cause = table[..., :-1], table[..., -1]
    classes = int(torch.randint(2, CLASSES + 1, ()))
    cuts = cause[:, torch.randperm(ROWS, device=device)[: classes - 1]].sort(-1).values
    labels = torch.searchsorted(cuts, cause.contiguous())
    shuffled = torch.randperm(CLASSES, device=device)
    return columns.contiguous(), shuffled[labels]


class Cells(nn.Module):
    """Every cell of the table becomes a vector; the label is one more column, empty where it is asked for."""

    def __init__(self, width):
        super().__init__()
        self.value = nn.Linear(1, width)
        self.label = nn.Embedding(CLASSES + 1, width)
        self.column = nn.Linear(width // 4, width)
        self.width = width

    def forward(self, columns, labels, known):
        mean = columns[:, :known].mean(1, keepdim=True)
        deviation = columns[:, :known].std(1, keepdim=True) + 1e-6
        columns = ((columns - mean) / deviation).clamp(-100, 100)
        marks = torch.randn(columns.shape[2], self.width // 4, device=columns.device)
        cells = self.value(columns.unsqueeze(-1)) + self.column(marks)
        asked = torch.full_like(labels[:, known:], CLASSES)
        target = self.label(torch.cat((labels[:, :known], asked), 1))
        return torch.cat((cells, target.unsqueeze(2)), 2)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.between_columns = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)}
        )
        self.between_rows = nn.ModuleDict(
            {"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)}
        )
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, parts, x, known=None):
        b, n, d = x.shape
        q, k, v = parts["qkv"](x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if known is not None:
            k, v = k[:, :, :known], v[:, :, :known]
        y = F.scaled_dot_product_attention(q, k, v)
        return parts["out"](y.transpose(1, 2).reshape(b, n, d))

    def forward(self, x, known):
        b, r, c, d = x.shape
        x = x + self.attend(self.between_columns, self.norms[0](x).view(b * r, c, d)).view(b, r, c, d)
        by_column = self.norms[1](x).transpose(1, 2).reshape(b * c, r, d)
        x = x + self.attend(self.between_rows, by_column, known).view(b, c, r, d).transpose(1, 2)
        return x + self.mlp(self.norms[2](x))


class InContextTables(nn.Module):
    def __init__(self, width=192, heads=6, depth=4):
        super().__init__()
        self.cells = Cells(width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.decoder = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, CLASSES)
        )

    def forward(self, columns, labels, known):
        x = self.cells(columns, labels, known)
        for block in self.blocks:
            x = checkpoint(block, x, known, use_reentrant=False) if self.training else block(x, known)
        return self.decoder(x[:, known:, -1])


@torch.inference_mode()
def auc_on_a_real_table(model):
    model.eval()
    data, target = load_breast_cancer(return_X_y=True)
    seen, asked, seen_y, asked_y = train_test_split(
        data[:, :COLUMNS], target, train_size=90, test_size=38, random_state=0
    )
    columns = torch.tensor(np.concatenate([seen, asked])[None], dtype=torch.float32, device=device)
    labels = torch.tensor(np.concatenate([seen_y, asked_y])[None], device=device)
    tell(inputs=[columns, labels])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(columns, labels, len(seen))
    model.train()
    return roc_auc_score(asked_y, logits[0, :, :2].float().softmax(-1)[:, 1].cpu())


model = InContextTables().to(device)
optimizer = AdEMAMix(
    model.parameters(),
    lr=3e-4,
    betas=(0.9, 0.999, 0.9999),
    alpha=5.0,
    weight_decay=1e-2,
    weight_decouple=True,
)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=500),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20_000),
    ],
    [500],
)

for step in range(1000):
    known = int(torch.randint(ROWS // 2, ROWS - 20, ()))
    columns, labels = draw_tables()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(columns, labels, known)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels[:, known:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}, norm {norm.item():.2f}")
    if step % 100 == 1:
        print(f"step {step}: AUC on breast cancer {auc_on_a_real_table(model):.3f}")
    end_of_step(inputs=[columns, labels], activations=[logits, loss])
