"""Pretraining of a small Qwen3 with experts on chess games written in letters: all tokens on the GPU, Muon for the matrices and AdamW for the rest, bfloat16 autocast, trapezoidal rates, balanced experts."""

import math

import torch
import torch.nn as nn
from programs import end_of_step
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.manual_seed(64)
device = "cuda"
BATCH, LENGTH, ACCUMULATE, STEPS = 4, 256, 2, 40

tokens = torch.randint(0, 96, (6_000_000,), dtype=torch.uint8).to(device)
held_out = torch.randint(0, 96, (500_000,), dtype=torch.uint8).to(device)
window = torch.arange(LENGTH, device=device)


def batch_of(data):
    starts = torch.randint(0, len(data) - LENGTH, (BATCH, 1), device=device)
    return data[starts + window].long()


model = Qwen3MoeForCausalLM(
    Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=256,
        intermediate_size=768,
        moe_intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        num_experts_per_tok=2,
        mlp_only_layers=[0],
        norm_topk_prob=True,
        output_router_logits=True,
        router_aux_loss_coef=0.01,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        experts_implementation="eager",
        use_cache=False,
    )
).to(device)

matrices = [
    p
    for n, p in model.named_parameters()
    if p.ndim == 2 and not any(k in n for k in ("embed", "lm_head", "gate.weight"))
]
chosen = {id(p) for p in matrices}
rest = [p for p in model.parameters() if id(p) not in chosen]
muon = torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
adamw = torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
optimizers = [muon, adamw]


def rate(step):
    if step < 4:
        return (step + 1) / 4
    return min(1.0, (STEPS - step) / (0.4 * STEPS))


schedulers = [torch.optim.lr_scheduler.LambdaLR(o, rate) for o in optimizers]


@torch.no_grad()
def evaluate():
    model.eval()
    losses = []
    for _ in range(2):
        ids = batch_of(held_out)
        with torch.autocast("cuda", torch.bfloat16):
            losses.append(model(ids, labels=ids, output_router_logits=False).loss.item())
    model.train()
    return sum(losses) / len(losses)


model.train()
for step in range(STEPS):
    total = 0.0
    for _ in range(ACCUMULATE):
        ids = batch_of(tokens)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = model(ids, labels=ids)
        (outputs.loss / ACCUMULATE).backward()
        total += outputs.loss.item() / ACCUMULATE
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, scheduler in zip(optimizers, schedulers):
        optimizer.step()
        scheduler.step()
    model.zero_grad(set_to_none=True)
    print(f"step {step}: loss {total:.3f} ({math.exp(total):.1f}), norm {norm.item():.2f}")
    end_of_step(
        inputs=[tokens, held_out, window, ids],
        activations=[outputs.loss, outputs.aux_loss, outputs.logits, list(outputs.router_logits)],
    )
    if step % 2 == 1:
        print(f"held out: {evaluate():.3f}")
