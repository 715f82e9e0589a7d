"""Text is written in any order by a diffusion of masks, as in LLaDA: a transformer by hand that looks both ways, weights by how much was hidden, bfloat16 by autocast, two batches to a step, an EMA that writes between."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@dataclass
class ModelArgs:
    dim: int = 320
    n_layers: int = 6
    n_heads: int = 5
    vocab_size: int = 10000
    block_size: int = 128
    norm_eps: float = 1e-5

    @property
    def mask_id(self):
        return self.vocab_size - 1


# what a run is told on the command line elsewhere
batch_size = 4
gradient_accumulation_steps = 2
learning_rate, min_lr, grad_clip = 4e-4, 4e-5, 1.0
warmup_iters, max_iters, sample_interval = 2, 8, 2
device = "cuda" if torch.cuda.is_available() else "cpu"
ctx = torch.autocast(device_type=device, dtype=torch.bfloat16)


def rope_table(args):
    half = args.dim // args.n_heads // 2
    freqs = 1.0 / (10000 ** (torch.arange(half) / half))
    angles = torch.outer(torch.arange(args.block_size), freqs)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads = args.n_heads
        self.wqkv = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))


class FeedForward(nn.Module):
    def __init__(self, args):
        super().__init__()
        hidden = 64 * math.ceil(8 * args.dim / 3 / 64)
        self.w1 = nn.Linear(args.dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention, self.feed_forward = Attention(args), FeedForward(args)
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class MaskPredictor(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(Block(args) for _ in range(args.n_layers))
        self.norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        cos, sin = rope_table(args)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        T = tokens.shape[1]
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.cos[:T], self.sin[:T])
        return self.output(self.norm(h))


def forward_process(input_ids, mask_id, eps=1e-3):
    b, l = input_ids.shape  # noqa: E741
    t = torch.rand(b, device=input_ids.device)
    p_mask = ((1 - eps) * t + eps)[:, None].repeat(1, l)
    masked = torch.rand((b, l), device=input_ids.device) < p_mask
    return torch.where(masked, mask_id, input_ids), masked, p_mask


@torch.no_grad()
def generate(model, prompt, args, steps=4, gen_length=32):
    """All is hidden at first; what the model is surest of is written down, step by step."""
    x = torch.full((prompt.shape[0], prompt.shape[1] + gen_length), args.mask_id, device=prompt.device)
    x[:, : prompt.shape[1]] = prompt
    for _ in range(steps):
        with ctx:
            logits = model(x)
        probs, x0 = F.softmax(logits.float(), dim=-1)[..., : args.mask_id].max(dim=-1)
        confidence = probs.masked_fill(x != args.mask_id, -torch.inf)
        index = confidence.topk(gen_length // steps, dim=-1).indices
        x.scatter_(1, index, x0.gather(1, index))
    return x[:, prompt.shape[1] :]


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


torch.manual_seed(1202)
args = ModelArgs()
data = torch.randint(0, args.mask_id, (40_000,))


def get_batch():
    ix = torch.randint(len(data) - args.block_size, (batch_size,))
    return torch.stack([data[i : i + args.block_size] for i in ix]).to(device)


model = MaskPredictor(args).to(device)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
    lr=learning_rate,
    betas=(0.9, 0.95),
)
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        input_ids = get_batch()
        noisy, masked, p_mask = forward_process(input_ids, args.mask_id)
        with ctx:
            logits = model(noisy)
        token_loss = F.cross_entropy(logits[masked].float(), input_ids[masked], reduction="none")
        loss = (token_loss / p_mask[masked]).sum() / input_ids.numel()
        (loss / gradient_accumulation_steps).backward()
        tell(inputs=[input_ids, noisy, masked, p_mask], activations=[logits, token_loss, loss])
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    ema.update_parameters(model)
    print(f"iter {iter_num}: loss {loss.item():.3f}, norm {norm.item():.2f}")
    end_of_step(
        inputs=[input_ids, noisy, masked, p_mask],
        activations=[logits, token_loss, loss, norm],
        weights=[list(ema.parameters()), list(ema.buffers())],
    )
    if (iter_num + 1) % sample_interval == 0:
        ema.eval()
        print(generate(ema, input_ids[:2, :16], args)[0].tolist())
