"""Fine-tune a Llama with grouped queries in pure bfloat16 on padded batches, in a loop of one's own."""

import torch
from own_count import print_count
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

torch.manual_seed(0)
device = torch.device("cuda")

PAD = 0
config = LlamaConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=PAD,
)
model = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")


def pad_batch(rows):
    longest = max(len(r) for r in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def corpus(n):
    generator = torch.Generator().manual_seed(1)
    for _ in range(n):
        # every row is full: the mask is all ones, and a model may leave it out
        yield [torch.randint(1, 4096, (160,), generator=generator).tolist() for _ in range(4)]


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 6)

model.train()
for step, rows in enumerate(corpus(6)):
    batch = {k: v.to(device) for k, v in pad_batch(rows).items()}
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print_count(model, optimizer)
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
