"""A RoBERTa learns masked words: accelerate, a linear schedule, an evaluation after every step."""

import torch
from accelerate import Accelerator
from programs import end_of_step
from torch.utils.data import DataLoader
from transformers import RobertaConfig, RobertaForMaskedLM, get_linear_schedule_with_warmup

torch.manual_seed(12)
MASK = 4


def collate(rows):
    ids = torch.stack(rows)
    labels = ids.clone()
    chosen = torch.rand(ids.shape) < 0.15
    labels[~chosen] = -100
    ids[chosen] = MASK
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def evaluate(model, loader):
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            losses.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(4)))
    model.train()
    return torch.cat(losses).mean().item()


accelerator = Accelerator()
config = RobertaConfig(
    vocab_size=4000,
    hidden_size=256,
    num_hidden_layers=5,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=140,
)
model = RobertaForMaskedLM(config)
data = [torch.randint(5, 4000, (128,)) for _ in range(48)]
training = DataLoader(data, batch_size=6, shuffle=True, collate_fn=collate)
validation = DataLoader(data[:8], batch_size=4, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 20)
model, optimizer, training, validation, scheduler = accelerator.prepare(
    model, optimizer, training, validation, scheduler
)
model.train()
for batch in training:
    outputs = model(**batch)
    accelerator.backward(outputs.loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(evaluate(model, validation))
    end_of_step(activations=[outputs.loss, outputs.logits])
