"""A ModernBERT ranks passages for a question, right one against wrong ones: half precision, a scaler, and RAdam."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    get_cosine_schedule_with_warmup,
)

N_PASSAGES = 4

torch.manual_seed(82)
device = torch.device("cuda")
config = ModernBertConfig(
    vocab_size=5000,
    hidden_size=256,
    intermediate_size=384,
    num_hidden_layers=5,
    num_attention_heads=4,
    max_position_embeddings=256,
    local_attention=64,
    num_labels=1,
    pad_token_id=0,
    bos_token_id=1,
    cls_token_id=1,
    eos_token_id=2,
    sep_token_id=2,
    classifier_pooling="mean",
)
model = ModernBertForSequenceClassification(config).to(device)
optimizer = torch.optim.RAdam(model.parameters(), lr=2e-5, weight_decay=0.01, decoupled_weight_decay=True)
scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=20)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)


def make_batch(n_questions=2):
    """The first passage of every question answers it."""
    longest = int(torch.randint(112, 144, ()))
    ids = torch.randint(3, 5000, (n_questions * N_PASSAGES, longest))
    for row, length in zip(ids, torch.randint(70, longest + 1, (len(ids),)).tolist()):
        row[length:] = 0
    return {"input_ids": ids, "attention_mask": ids.ne(0).long()}


model.train()
for step in range(6):
    batch = {name: value.to(device, non_blocking=True) for name, value in make_batch().items()}
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        scores = model(**batch).logits.view(-1, N_PASSAGES)
        labels = torch.zeros(len(scores), dtype=torch.long, device=device)
        loss = F.cross_entropy(scores, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(f"step {step}: loss {loss.item():.3f}, first {(scores.argmax(1) == 0).float().mean().item():.2f}")
    end_of_step(inputs=[batch, labels], activations=[scores, loss])
