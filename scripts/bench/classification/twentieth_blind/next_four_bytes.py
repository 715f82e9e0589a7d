"""A byte-level transformer is pretrained to predict the next four bytes at once: all bytes on the GPU, heads one after another with a detached trunk, Lion, bfloat16 autocast, an EMA of the weights."""

import torch
import torch.nn.functional as F
from pytorch_optimizer import Lion
from programs import end_of_step, tell
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(23)
device = torch.device("cuda")
WIDTH, CONTEXT, AHEAD, BATCH = 384, 192, 4, 4


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, width, heads=6):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * 1024, bias=False), nn.Linear(1024, width, bias=False)

    def forward(self, x, cos, sin):
        b, t, w = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        gate, up = self.gate_up(self.before_mlp(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class ManyBytes(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.trunk = nn.ModuleList(Block(WIDTH) for _ in range(layers))
        self.heads = nn.ModuleList(Block(WIDTH) for _ in range(AHEAD))
        self.norm, self.unembedding = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        angles = torch.arange(CONTEXT)[:, None] * 10000.0 ** (-torch.arange(0, 32) / 32)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def read(self, ids):
        x = self.embedding(ids)
        for block in self.trunk:
            x = block(x, self.cos, self.sin)
        return x

    def guess(self, x, k):
        return self.unembedding(self.norm(self.heads[k](x, self.cos, self.sin)))


corpus = torch.randint(0, 256, (4_000_000,), dtype=torch.uint8).to(device)
model = ManyBytes().to(device)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.995))
optimizer = Lion(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.3)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500),
    ],
    milestones=[5],
)
offsets = torch.arange(CONTEXT + AHEAD, device=device)
for step in range(5):
    start = torch.randint(0, len(corpus) - CONTEXT - AHEAD, (BATCH, 1), device=device)
    window = corpus[start + offsets].long()
    total = 0.0
    with torch.autocast("cuda", dtype=torch.bfloat16):
        trunk = model.read(window[:, :CONTEXT])
    leaf = trunk.detach().requires_grad_()
    for k in range(AHEAD):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model.guess(leaf, k)
            loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1 + k : 1 + k + CONTEXT].flatten())
        loss.backward()
        tell(gradients=[leaf.grad])
        total += loss.item()
    trunk.backward(gradient=leaf.grad)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    average.update_parameters(model)
    print(step, round(total / AHEAD, 3), round(norm.item(), 3))
    end_of_step(
        inputs=[corpus, offsets, window, start], activations=[trunk, logits, loss], gradients=[leaf.grad]
    )
