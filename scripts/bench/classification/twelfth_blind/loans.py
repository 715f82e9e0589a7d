"""Which loans will not be paid back is learned from a table by an FT-Transformer: every column becomes a token, half of the columns of a row are swapped first to learn without labels, then a head learns, half precision with a scaler, clipped gradients, AUC between."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

N_NUM, CARDINALITIES = 14, [5000, 900, 60, 12, 7, 3]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_table(n, rng):
    num = rng.normal(size=(n, N_NUM)) * rng.gamma(2, 2, N_NUM)
    cat = np.stack([(rng.random(n) ** 2 * c).astype(int) for c in CARDINALITIES], axis=1)
    risk = 0.3 * num[:, 0] - 0.2 * num[:, 1] * (cat[:, 4] > 2) + 0.5 * (cat[:, 3] == 1)
    y = rng.random(n) < 1 / (1 + np.exp(2 - risk))
    ranks = num.argsort(0).argsort(0)
    return torch.tensor(ranks / n * 2 - 1, dtype=torch.float32), torch.tensor(cat), torch.tensor(y).float()


class FeatureTokenizer(nn.Module):
    def __init__(self, d_token):
        super().__init__()
        offsets = torch.tensor([0] + CARDINALITIES[:-1]).cumsum(0)
        self.register_buffer("category_offsets", offsets)
        self.category_embeddings = nn.Embedding(sum(CARDINALITIES), d_token)
        self.weight = nn.Parameter(torch.empty(N_NUM + 1, d_token))
        self.bias = nn.Parameter(torch.empty(N_NUM + len(CARDINALITIES), d_token))
        for parameter in (self.category_embeddings.weight, self.weight, self.bias):
            nn.init.uniform_(parameter, -1 / math.sqrt(d_token), 1 / math.sqrt(d_token))

    def forward(self, x_num, x_cat):
        x_num = torch.cat([torch.ones(len(x_cat), 1, device=x_cat.device), x_num], dim=1)
        x = self.weight[None] * x_num[:, :, None]
        x = torch.cat([x, self.category_embeddings(x_cat + self.category_offsets[None])], dim=1)
        bias = torch.cat([torch.zeros(1, self.bias.shape[1], device=x.device), self.bias])
        return x + bias[None]


class Block(nn.Module):
    def __init__(self, d, n_heads, first, dropout=0.2):
        super().__init__()
        self.norm0, self.norm1 = nn.Identity() if first else nn.LayerNorm(d), nn.LayerNorm(d)
        self.n_heads, hidden = n_heads, int(d * 4 / 3)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.linear0, self.linear1 = nn.Linear(d, 2 * hidden), nn.Linear(hidden, d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.qkv(self.norm0(x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        attended = self.dropout(scores.softmax(-1)) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        value, gate = self.linear0(self.norm1(x)).chunk(2, dim=-1)  # reglu
        return x + self.linear1(self.dropout(value * F.relu(gate)))


class FTTransformer(nn.Module):
    def __init__(self, d_token=192, n_layers=3, n_heads=8):
        super().__init__()
        self.tokenizer = FeatureTokenizer(d_token)
        self.blocks = nn.ModuleList(Block(d_token, n_heads, i == 0) for i in range(n_layers))
        self.norm = nn.LayerNorm(d_token)
        self.head = nn.Linear(d_token, 1)
        self.replaced = nn.Linear(d_token, 1)

    def forward(self, x_num, x_cat, pretrain=False):
        x = self.tokenizer(x_num, x_cat)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x))
        return (self.replaced(x[:, 1:]) if pretrain else self.head(x[:, 0])).squeeze(-1)


def swap_columns(x_num, x_cat, share=0.3):
    """Some values of a row come from another row of the batch; which ones is to be found out."""
    mask = torch.rand(len(x_num), N_NUM + len(CARDINALITIES), device=x_num.device) < share
    other = torch.randperm(len(x_num), device=x_num.device)
    corrupted_num = torch.where(mask[:, :N_NUM], x_num[other], x_num)
    corrupted_cat = torch.where(mask[:, N_NUM:], x_cat[other], x_cat)
    return corrupted_num, corrupted_cat, mask.float()


def parameter_groups(model, weight_decay):
    def is_spared(name):
        return any(part in name for part in ("tokenizer", "norm", ".bias"))

    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if not is_spared(name)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if is_spared(name)], "weight_decay": 0.0},
    ]


@torch.inference_mode()
def auc_of(model, loader):
    model.eval()
    metric = BinaryAUROC().to(device)
    for x_num, x_cat, y in loader:
        metric.update(model(x_num.to(device), x_cat.to(device)).float(), y.to(device).long())
    model.train()
    return metric.compute().item()


def main(batch_size=64):
    torch.manual_seed(1207)
    rng = np.random.default_rng(1207)
    train = DataLoader(
        TensorDataset(*make_table(512, rng)), batch_size, shuffle=True, drop_last=True, pin_memory=False
    )
    valid = DataLoader(TensorDataset(*make_table(256, rng)), 256)
    model = FTTransformer().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-5), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")

    def minimize(loss):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    for i, (x_num, x_cat, _) in enumerate(train):
        x_num, x_cat = x_num.to(device), x_cat.to(device)
        swapped_num, swapped_cat, mask = swap_columns(x_num, x_cat)
        with torch.autocast(device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
            found = model(swapped_num, swapped_cat, pretrain=True)
            loss = F.binary_cross_entropy_with_logits(found, mask)
        minimize(loss)
        end_of_step(inputs=[x_num, x_cat, swapped_num, swapped_cat, mask], activations=[found, loss])
        if i == 1:
            break
    print(f"pretrained: {loss.item():.4f}, {((found > 0) == mask.bool()).float().mean().item():.3f} found")

    for epoch in range(3):
        for x_num, x_cat, y in train:
            x_num, x_cat, y = x_num.to(device), x_cat.to(device), y.to(device)
            with torch.autocast(device.type, dtype=torch.float16, enabled=scaler.is_enabled()):
                logits = model(x_num, x_cat)
                loss = F.binary_cross_entropy_with_logits(logits, y)
            minimize(loss)
            end_of_step(
                inputs=[x_num, x_cat, y, swapped_num, swapped_cat, mask], activations=[logits, loss, found]
            )
        print(f"epoch {epoch}: loss {loss.item():.4f}, AUC {auc_of(model, valid):.3f}")


if __name__ == "__main__":
    main()
