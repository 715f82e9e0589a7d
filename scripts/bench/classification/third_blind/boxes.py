"""Boxes are a set: a transformer after convolutions, predictions matched with the truth, a loss of every layer."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

N_CLASSES, N_QUERIES = 20, 40


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.ones(n))
        self.register_buffer("bias", torch.zeros(n))
        self.register_buffer("running_mean", torch.zeros(n))
        self.register_buffer("running_var", torch.ones(n))

    def forward(self, x):
        w, b, mean, var = (
            v.reshape(1, -1, 1, 1) for v in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        scale = w * (var + 1e-5).rsqrt()
        return x * scale + (b - mean * scale)


def conv_bn(n_in, n_out, stride=2):
    conv = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
    return nn.Sequential(conv, FrozenBatchNorm2d(n_out), nn.ReLU(inplace=True))


class MLP(nn.Module):
    def __init__(self, width, n_out):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, n_out)]
        )

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class SetOfBoxes(nn.Module):
    def __init__(self, width=192, n_heads=6, n_layers=3):
        super().__init__()
        self.backbone = nn.Sequential(
            conv_bn(3, 32), conv_bn(32, 64), conv_bn(64, 96, 1), conv_bn(96, 128), conv_bn(128, 256)
        )
        self.input_proj = nn.Conv2d(256, width, 1)
        layer = nn.TransformerEncoderLayer(width, n_heads, 768, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers)
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(width, n_heads, 768, 0.1, batch_first=True) for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.query_embed = nn.Embedding(N_QUERIES, width)
        self.row_embed, self.col_embed = nn.Embedding(32, width // 2), nn.Embedding(32, width // 2)
        self.class_embed, self.bbox_embed = nn.Linear(width, N_CLASSES + 1), MLP(width, 4)

    def positions(self, h, w, device):
        rows = self.row_embed(torch.arange(h, device=device)).unsqueeze(1).repeat(1, w, 1)
        cols = self.col_embed(torch.arange(w, device=device)).unsqueeze(0).repeat(h, 1, 1)
        return torch.cat([rows, cols], -1).flatten(0, 1)

    def forward(self, images):
        src = self.input_proj(self.backbone(images))
        pos = self.positions(*src.shape[-2:], src.device)
        memory = self.encoder(src.flatten(2).transpose(1, 2) + pos)
        x = self.query_embed.weight.unsqueeze(0).expand(len(images), -1, -1)
        found = []
        for layer in self.decoder:
            x = layer(x, memory)
            hs = self.norm(x)
            found.append({"logits": self.class_embed(hs), "boxes": self.bbox_embed(hs).sigmoid()})
        return found


def to_corners(boxes):
    center, size = boxes.split(2, -1)
    return torch.cat([center - size / 2, center + size / 2], -1)


def giou(a, b):
    area_a, area_b = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b))
    inner = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    outer = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = area_a + area_b - inner
    return inner / union - (outer - union) / outer


@torch.no_grad()
def match(output, targets):
    """The cheapest pairs first, on the host: near enough to the best assignment."""
    pairs = []
    for logits, boxes, target in zip(output["logits"], output["boxes"], targets):
        cost = -logits.softmax(-1)[:, target["labels"]] + 5 * torch.cdist(boxes, target["boxes"], p=1)
        cost -= 2 * giou(to_corners(boxes)[:, None], to_corners(target["boxes"])[None])
        cost = cost.cpu()
        rows, columns = [], []
        for _ in range(cost.shape[1]):
            row, column = divmod(int(cost.argmin()), cost.shape[1])
            rows.append(row)
            columns.append(column)
            cost[row], cost[:, column] = float("inf"), float("inf")
        pairs.append((torch.tensor(rows), torch.tensor(columns)))
    return pairs


def losses(output, targets, empty_weight):
    pairs = match(output, targets)
    n_boxes = sum(len(t["labels"]) for t in targets)
    which = torch.cat([torch.full_like(rows, i) for i, (rows, _) in enumerate(pairs)])
    rows = torch.cat([rows for rows, _ in pairs])
    classes = torch.full(output["logits"].shape[:2], N_CLASSES, device=output["logits"].device)
    classes[which, rows] = torch.cat([t["labels"][columns] for t, (_, columns) in zip(targets, pairs)])
    wanted = torch.cat([t["boxes"][columns] for t, (_, columns) in zip(targets, pairs)])
    boxes = output["boxes"][which, rows]
    return {
        "ce": F.cross_entropy(output["logits"].transpose(1, 2), classes, empty_weight),
        "bbox": F.l1_loss(boxes, wanted, reduction="none").sum() / n_boxes,
        "giou": (1 - giou(to_corners(boxes), to_corners(wanted))).sum() / n_boxes,
    }


torch.manual_seed(67)
device = torch.device("cuda")
model = SetOfBoxes().to(device)
empty_weight = torch.ones(N_CLASSES + 1)
empty_weight[-1] = 0.1
empty_weight = empty_weight.to(device)
weights = {"ce": 1, "bbox": 5, "giou": 2}
groups = [
    {"params": [p for n, p in model.named_parameters() if "backbone" not in n]},
    {"params": [p for n, p in model.named_parameters() if "backbone" in n], "lr": 1e-5},
]
optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=1e-4)
model.train()
for step in range(5):
    samples = torch.randn(3, 3, 160, 160 + 32 * (step % 2)).to(device)
    targets = [
        {"labels": torch.randint(0, N_CLASSES, (n,)), "boxes": 0.2 + 0.5 * torch.rand(n, 4)}
        for n in (7, 3, 5)
    ]
    targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
    outputs = model(samples)
    by_layer = [losses(output, targets, empty_weight) for output in outputs]
    loss = sum(weights[k] * v for found in by_layer for k, v in found.items())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    print({k: round(v.item(), 3) for k, v in by_layer[-1].items()})
    end_of_step(inputs=[samples, targets, empty_weight], activations=[outputs, by_layer, loss])
