"""Medusa heads that guess the next four words are trained on a frozen OLMo 2 in bfloat16: StableAdamW, two micro-batches, cosine with warm-up, accuracy of every head held out."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from pytorch_optimizer import StableAdamW
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Olmo2Config, Olmo2ForCausalLM, get_cosine_schedule_with_warmup

torch.manual_seed(17)
device = "cuda"
VOCAB, HIDDEN, HEADS = 4000, 448, 4


class Chats(Dataset):
    def __init__(self, count):
        self.ids = torch.randint(4, VOCAB, (count, 144))
        self.answer = torch.randint(20, 60, (count,))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        labels = self.ids[index].clone()
        labels[: self.answer[index]] = -100
        return self.ids[index], labels


class ResBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x):
        return x + F.silu(self.linear(x))


class Medusa(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.heads = nn.ModuleList(
            nn.Sequential(ResBlock(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)) for _ in range(HEADS)
        )
        for head in self.heads:
            head[1].weight.data.copy_(base.lm_head.weight.data)

    def forward(self, ids):
        with torch.no_grad():
            hidden = self.base.model(input_ids=ids, use_cache=False).last_hidden_state
        return [head(hidden) for head in self.heads]


base = Olmo2ForCausalLM(
    Olmo2Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=1216,
        num_hidden_layers=8,
        num_attention_heads=7,
        num_key_value_heads=7,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
).eval()
model = Medusa(base).to(device=device, dtype=torch.bfloat16)
model.heads.float()
optimizer = StableAdamW(model.heads.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
scheduler = get_cosine_schedule_with_warmup(optimizer, 4, 200)
train, held_out = DataLoader(Chats(96), batch_size=4, shuffle=True), DataLoader(Chats(8), batch_size=4)
MICRO = 2


def losses(logits, labels):
    total = 0.0
    for k, scores in enumerate(logits):
        shift = k + 2
        total = total + 0.8**k * F.cross_entropy(
            scores[:, :-shift].flatten(0, 1).float(), labels[:, shift:].flatten()
        )
    return total


@torch.no_grad()
def evaluate():
    right = torch.zeros(HEADS, device=device)
    seen = 0
    for ids, labels in held_out:
        ids, labels = ids.to(device), labels.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids)
        for k, scores in enumerate(logits):
            right[k] += (scores[:, : -(k + 2)].argmax(-1) == labels[:, k + 2 :]).sum()
        seen += int((labels != -100).sum())
    return (right / seen).tolist()


for i, (ids, labels) in enumerate(train):
    ids, labels = ids.to(device), labels.to(device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(ids)
        loss = losses(logits, labels) / MICRO
    loss.backward()
    if (i + 1) % MICRO:
        continue
    nn.utils.clip_grad_norm_(model.heads.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    step = (i + 1) // MICRO
    print(step, round(loss.item() * MICRO, 3))
    if step % 2 == 0:
        print("held out", evaluate())
    end_of_step(inputs=[ids, labels], activations=[logits, loss])
