"""Training in the shape of nanoGPT: globals as settings, `--key=value` to change them, the next batch fetched early.

python train.py --compile=True --dtype=float16
"""

import math
import os
import sys
import time
from ast import literal_eval
from contextlib import nullcontext

import numpy as np
import torch
from model import GPT, GPTConfig
from own_count import print_count

# settings
out_dir = "nanogpt-out"
eval_interval = 4
eval_iters = 2
always_save_checkpoint = True
gradient_accumulation_steps = 2
batch_size = 6
block_size = 128
n_layer, n_head, n_embd = 4, 4, 128
dropout = 0.0
bias = False
learning_rate, min_lr = 6e-4, 6e-5
max_iters = 5
weight_decay = 1e-1
beta1, beta2 = 0.9, 0.95
grad_clip = 1.0
warmup_iters, lr_decay_iters = 2, 5
device = "cuda"
dtype = "bfloat16"
compile = False
for arg in sys.argv[1:]:
    key, value = arg.removeprefix("--").split("=")
    assert key in globals(), f"unknown setting {key}"
    try:
        globals()[key] = literal_eval(value)
    except (ValueError, SyntaxError):
        globals()[key] = value

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

# data: a file of tokens, read through a memory map anew for every batch
rng = np.random.default_rng(0)
for split, n in (("train", 50_000), ("val", 5_000)):
    rng.integers(0, 512, n).astype(np.uint16).tofile(os.path.join(out_dir, f"{split}.bin"))


def get_batch(split):
    data = np.memmap(os.path.join(out_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
    if device_type == "cuda":
        x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    else:
        x, y = x.to(device), y.to(device)
    return x, y


model_args = dict(
    n_layer=n_layer,
    n_head=n_head,
    n_embd=n_embd,
    block_size=block_size,
    bias=bias,
    vocab_size=512,
    dropout=dropout,
)
model = GPT(GPTConfig(**model_args))
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
optimizer = model.configure_optimizers(weight_decay, learning_rate, (beta1, beta2), device_type)
checkpoint = None
if compile:
    print("compiling the model...")
    unoptimized_model = model
    model = torch.compile(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min((it - warmup_iters) / (lr_decay_iters - warmup_iters), 1)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


X, Y = get_batch("train")
t0 = time.time()
iter_num = 0
best_val_loss = 1e9
raw_model = unoptimized_model if compile else model
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            if iter_num > 0:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                }
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        # fetch the next batch while the model is busy with the forward pass on the GPU
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    print_count(raw_model, optimizer, is_autocast=True)
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    print(
        f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {(t1 - t0) * 1000:.0f}ms"
    )
    t0 = t1
    iter_num += 1
    if iter_num > max_iters:
        break
