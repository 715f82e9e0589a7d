"""A table of houses is learned by TabM: thirty-two small networks that share most of their weights, numbers in pieces, all on the device, bfloat16."""

import math
from copy import deepcopy
from itertools import pairwise

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import Tensor, nn

N_NUM, CARDINALITIES, K, N_BINS, D_EMBEDDING = 16, (12, 5, 30), 32, 24, 16


class PiecewiseLinearEmbeddings(nn.Module):
    """A number as how far it reaches into every bin, then a linear layer of its own."""

    def __init__(self, bins, d_embedding):
        super().__init__()
        self.register_buffer("left", bins[:, :-1].contiguous())
        self.register_buffer("width", bins.diff(dim=1).clamp_min(1e-6))
        n_features, n_bins = self.left.shape
        self.weight = nn.Parameter(torch.zeros(n_features, n_bins, d_embedding))
        self.linear_weight = nn.Parameter(torch.empty(n_features, d_embedding).uniform_(-1, 1))
        self.linear_bias = nn.Parameter(torch.empty(n_features, d_embedding).uniform_(-1, 1))

    def forward(self, x):
        linear = x[..., None] * self.linear_weight + self.linear_bias
        encoded = (x[..., None] - self.left) / self.width
        inner = encoded[..., 1:-1].clamp(0.0, 1.0)
        encoded = torch.cat([encoded[..., :1].clamp_max(1.0), inner, encoded[..., -1:].clamp_min(0.0)], -1)
        pieces = (encoded.transpose(0, 1) @ self.weight).transpose(0, 1)
        return F.relu(linear + pieces)


class LinearBatchEnsemble(nn.Module):
    def __init__(self, in_features, out_features, k):
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.r = nn.Parameter(torch.randint(2, (k, in_features)).float() * 2 - 1)
        self.s = nn.Parameter(torch.ones(k, out_features))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound).expand(k, -1).clone())

    def forward(self, x: Tensor) -> Tensor:  # (batch, k, in_features)
        x = x * self.r
        x = x @ self.weight.T
        return x * self.s + self.bias


class LinearEnsemble(nn.Module):
    def __init__(self, in_features, out_features, k):
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(k, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(k, out_features).uniform_(-bound, bound))

    def forward(self, x):
        return (x.transpose(0, 1) @ self.weight).transpose(0, 1) + self.bias


class TabM(nn.Module):
    def __init__(self, bins, n_blocks=3, d_block=768, dropout=0.1):
        super().__init__()
        self.num_embeddings = PiecewiseLinearEmbeddings(bins, D_EMBEDDING)
        widths = [N_NUM * D_EMBEDDING + sum(CARDINALITIES)] + [d_block] * n_blocks
        self.blocks = nn.ModuleList(
            nn.Sequential(LinearBatchEnsemble(before, after, K), nn.ReLU(), nn.Dropout(dropout))
            for before, after in pairwise(widths)
        )
        self.output = LinearEnsemble(d_block, 1, K)

    def forward(self, x_num, x_cat):
        one_hot = [F.one_hot(x_cat[:, i], n).to(x_num.dtype) for i, n in enumerate(CARDINALITIES)]
        x = torch.cat([self.num_embeddings(x_num).flatten(1), *one_hot], dim=1)
        x = x[:, None].expand(-1, K, -1)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


def make_table(n):
    x_num = torch.randn(n, N_NUM)
    x_cat = torch.stack([torch.randint(c, (n,)) for c in CARDINALITIES], dim=1)
    y = x_num[:, :4].sum(1).tanh() + 0.3 * (x_cat[:, 1] == 2) + 0.1 * torch.randn(n)
    return {"x_num": x_num, "x_cat": x_cat, "y": y}


torch.manual_seed(408)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
data = {part: make_table(n) for part, n in (("train", 4096), ("val", 512))}
quantiles = torch.linspace(0, 1, N_BINS + 1)
bins = data["train"]["x_num"].quantile(quantiles, dim=0).T.contiguous()
label_mean, label_std = data["train"]["y"].mean().item(), data["train"]["y"].std().item()
for part in data:
    data[part] = {key: value.to(device) for key, value in data[part].items()}
y_train = (data["train"]["y"] - label_mean) / label_std

amp_dtype, gradient_clipping_norm, batch_size, n_epochs, patience = torch.bfloat16, 1.0, 128, 2, 2
model = TabM(bins).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)
best = {"val": -math.inf, "state": deepcopy(model.state_dict()), "epoch": -1}


def apply_model(part: str, idx: Tensor) -> Tensor:
    with torch.autocast(device.type, dtype=amp_dtype):
        return model(data[part]["x_num"][idx], data[part]["x_cat"][idx]).squeeze(-1).float()


def loss_fn(y_pred: Tensor, y_true: Tensor) -> Tensor:
    # Every member of the ensemble is judged for itself.
    return F.mse_loss(y_pred.flatten(0, 1), y_true.repeat_interleave(y_pred.shape[1]))


@torch.inference_mode()
def evaluate(part: str) -> float:
    model.eval()
    y_true = data[part]["y"]
    idx = torch.arange(len(y_true), device=device).split(256)
    y_pred = torch.cat([apply_model(part, i) for i in idx]) * label_std + label_mean
    return -(y_pred.mean(1) - y_true).square().mean().sqrt().item()


print(f"before: {evaluate('val'):.4f}")
remaining_patience = patience
for epoch in range(n_epochs):
    batches = torch.randperm(len(y_train), device=device).split(batch_size)
    for batch_idx in batches:
        model.train()
        optimizer.zero_grad()
        y_pred = apply_model("train", batch_idx)
        y_batch = y_train[batch_idx]
        loss = loss_fn(y_pred, y_batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping_norm)
        optimizer.step()
        end_of_step(
            inputs=[data, y_train, batches, y_batch], activations=[y_pred, loss], weights=best["state"]
        )
    val = evaluate("val")
    print(f"epoch {epoch}: loss {loss.item():.4f}, val {val:.4f}")
    remaining_patience -= 1
    if val > best["val"]:
        best = {"val": val, "state": deepcopy(model.state_dict()), "epoch": epoch}
        remaining_patience = patience
    if remaining_patience < 0:
        break
model.load_state_dict(best["state"])
print(f"best: epoch {best['epoch']}, {best['val']:.4f}")
