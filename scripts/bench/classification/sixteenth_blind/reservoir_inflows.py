"""TimesFM 2.5 tuned on daily inflows of reservoirs with LoRA and accelerate: bfloat16, two batches for a step, clipped, cosine."""

import numpy as np
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import (
    TimesFm2_5Config,
    TimesFm2_5ModelForPrediction,
    get_cosine_schedule_with_warmup,
    set_seed,
)

set_seed(5)
CONTEXT, HORIZON = 512, 128


class Inflows(Dataset):
    """Random windows of the histories of many reservoirs."""

    def __init__(self, reservoirs=40, days=4000, windows=512):
        generator = np.random.default_rng(1)
        days_ = np.arange(days)
        season = 1 + np.sin(2 * np.pi * (days_ / 365 + generator.random((reservoirs, 1))))
        storms = np.abs(generator.standard_gamma(0.3, (reservoirs, days)))
        self.series = (20 * season + 8 * storms).astype(np.float32)
        self.windows = windows

    def __len__(self):
        return self.windows

    def __getitem__(self, index):
        series = self.series[index % len(self.series)]
        start = np.random.randint(0, len(series) - CONTEXT - HORIZON)
        window = torch.from_numpy(series[start : start + CONTEXT + HORIZON])
        return {"past": window[:CONTEXT], "future": window[CONTEXT:]}


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)

config = TimesFm2_5Config(
    hidden_size=512,
    intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=64,
    context_length=CONTEXT,
    horizon_length=HORIZON,
    output_quantile_len=256,
)
model = TimesFm2_5ModelForPrediction(config)
model = get_peft_model(
    model,
    LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        bias="none",
    ),
)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.01)
loader = DataLoader(Inflows(), batch_size=4, shuffle=True, drop_last=True)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 200)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

model.train()
losses = []
for epoch in range(2):
    for batch in loader:
        with accelerator.accumulate(model):
            outputs = model(
                past_values=list(batch["past"]),
                future_values=batch["future"],
                forecast_context_len=CONTEXT,
            )
            accelerator.backward(outputs.loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(outputs.loss.detach().item())
        if accelerator.sync_gradients:
            print(f"loss {np.mean(losses[-2:]):.4f}, lr {scheduler.get_last_lr()[0]:.2e}")
            end_of_step(inputs=batch, activations=outputs)
