"""A GPT is pretrained on short stories with Lightning Fabric: written by hand, bfloat16, two batches to a step, tied words, samples between."""

import math
from dataclasses import dataclass

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    block_size: int = 128
    vocab_size: int = 12000
    n_layer: int = 6
    n_head: int = 8
    n_embd: int = 320


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        norm_x = torch.mean(x.float() ** 2, dim=-1, keepdim=True)
        return (x * torch.rsqrt(norm_x + self.eps)).to(x.dtype) * self.weight


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.n_head = config.n_head

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


def rotated(x, cos, sin):
    half = x.size(-1) // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return ((x * cos) + (turned * sin)).to(x.dtype)


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        n_hidden = 64 * math.ceil(8 * config.n_embd / 3 / 64)
        self.c_fc1 = nn.Linear(config.n_embd, n_hidden, bias=False)
        self.c_fc2 = nn.Linear(config.n_embd, n_hidden, bias=False)
        self.c_proj = nn.Linear(n_hidden, config.n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(F.silu(self.c_fc1(x)) * self.c_fc2(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rms_1, self.attn = RMSNorm(config.n_embd), CausalSelfAttention(config)
        self.rms_2, self.mlp = RMSNorm(config.n_embd), MLP(config)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.rms_1(x), cos, sin)
        return x + self.mlp(self.rms_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight
        size = config.n_embd // config.n_head
        theta = 1.0 / (10000 ** (torch.arange(0, size, 2) / size))
        angles = torch.outer(torch.arange(config.block_size), theta).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx):
        T = idx.size(1)
        x = self.wte(idx)
        for block in self.h:
            x = block(x, self.cos[:T], self.sin[:T])
        return self.lm_head(self.ln_f(x))


class Stories(Dataset):
    def __init__(self, config, n_tokens=40_000):
        self.data = torch.randint(config.vocab_size, (n_tokens,))
        self.block_size = config.block_size

    def __len__(self):
        return (len(self.data) - 1) // self.block_size

    def __getitem__(self, i):
        return self.data[i * self.block_size : (i + 1) * self.block_size + 1]


@torch.no_grad()
def generate(fabric, model, max_new_tokens=8, temperature=0.8, top_k=50):
    model.eval()
    idx = torch.zeros(1, 1, dtype=torch.long, device=fabric.device)
    for _ in range(max_new_tokens):
        logits = model(idx)[:, -1, :] / temperature
        v, _ = torch.topk(logits, top_k)
        logits[logits < v[:, [-1]]] = -float("inf")
        idx = torch.cat((idx, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
    model.train()
    fabric.print(idx[0].tolist())


def main(max_iters=12, accumulation=2, grad_clip=1.0, learning_rate=4e-4, warmup_iters=2):
    fabric = L.Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(310)
    config = Config()
    with fabric.init_module(empty_init=False):
        model = GPT(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=0.1, betas=(0.9, 0.95), fused=True
    )
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Stories(config), batch_size=2, shuffle=True))
    step_count = 0
    for iter_num, train_data in enumerate(loader):
        lr = learning_rate * min(1.0, (step_count + 1) / warmup_iters)
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        input_ids = train_data[:, 0 : config.block_size].contiguous()
        targets = train_data[:, 1 : config.block_size + 1].contiguous()
        is_accumulating = (iter_num + 1) % accumulation != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(input_ids)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
            fabric.backward(loss / accumulation)
        if is_accumulating:
            tell(inputs=[train_data, input_ids, targets], activations=[logits, loss])
            continue
        fabric.clip_gradients(model, optimizer, max_norm=grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        step_count += 1
        fabric.print(f"iter {iter_num} step {step_count}: loss {loss.item():.4f}, lr {lr:.1e}")
        end_of_step(inputs=[train_data, input_ids, targets], activations=[logits, loss])
        if step_count % 2 == 0:
            generate(fabric, model)
        if iter_num + 1 >= max_iters:
            break


if __name__ == "__main__":
    main()
