"""TinyBERT distillation of an intent classifier: attentions, hidden states and embeddings of a BERT are imitated by a narrower one in float32, Adam with decoupled decay, linear warm-up."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

random.seed(3)
torch.manual_seed(3)
device = "cuda"
INTENTS = 77


class Utterances(Dataset):
    def __init__(self, n):
        self.rows = [
            [101, *(random.randrange(1000, 8000) for _ in range(random.randint(20, 62))), 102]
            for _ in range(n)
        ]
        self.labels = [random.randrange(INTENTS) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], self.labels[i]


def collate(batch):
    length = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (row, _) in enumerate(batch):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}, torch.tensor([label for _, label in batch])


def classifier(hidden, layers, heads, intermediate):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=8000,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=intermediate,
            max_position_embeddings=128,
            num_labels=INTENTS,
            output_hidden_states=True,
            output_attentions=True,
            attn_implementation="eager",
        )
    )


teacher = classifier(384, 8, 8, 1536).to(device).eval().requires_grad_(False)
student = classifier(256, 4, 8, 1024).to(device)
projection = nn.Linear(256, 384).to(device)
layer_of_teacher = [1, 3, 5, 7]

decayed = [p for p in student.parameters() if p.ndim > 1] + [projection.weight]
others = [p for p in student.parameters() if p.ndim <= 1] + [projection.bias]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}], lr=5e-5, eps=1e-6
)
train_loader = DataLoader(Utterances(320), batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)
dev_loader = DataLoader(Utterances(32), batch_size=32, collate_fn=collate)
scheduler = get_linear_schedule_with_warmup(optimizer, 4, len(train_loader) * 2)


def soft_cross_entropy(logits, targets, temperature=1.0):
    return -(F.log_softmax(logits / temperature, -1) * F.softmax(targets / temperature, -1)).sum(-1).mean()


@torch.no_grad()
def agreement():
    student.eval()
    same = total = 0
    for inputs, _ in dev_loader:
        inputs = {k: v.to(device) for k, v in inputs.items()}
        same += (student(**inputs).logits.argmax(-1) == teacher(**inputs).logits.argmax(-1)).sum().item()
        total += inputs["input_ids"].shape[0]
    student.train()
    return same / total


student.train()
print(f"agreement before: {agreement():.3f}")
step = 0
for epoch in range(2):
    for inputs, labels in train_loader:
        inputs = {k: v.to(device) for k, v in inputs.items()}
        labels = labels.to(device)
        with torch.no_grad():
            taught = teacher(**inputs)
        learned = student(**inputs)

        attention_loss = hidden_loss = 0.0
        for i, j in enumerate(layer_of_teacher):
            attention_loss = attention_loss + F.mse_loss(learned.attentions[i], taught.attentions[j])
            hidden_loss = hidden_loss + F.mse_loss(
                projection(learned.hidden_states[i + 1]), taught.hidden_states[j + 1]
            )
        hidden_loss = hidden_loss + F.mse_loss(projection(learned.hidden_states[0]), taught.hidden_states[0])
        soft_loss = soft_cross_entropy(learned.logits, taught.logits)
        hard_loss = F.cross_entropy(learned.logits, labels)
        loss = attention_loss + hidden_loss + soft_loss + 0.5 * hard_loss

        loss.backward()
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step % 2 == 0:
            print(
                f"step {step}: attention {attention_loss.item():.4f} hidden {hidden_loss.item():.4f} soft {soft_loss.item():.4f}"
            )
        end_of_step(
            inputs=[inputs, labels],
            activations=[
                learned.logits,
                list(learned.hidden_states),
                list(learned.attentions),
                attention_loss,
                hidden_loss,
                soft_loss,
                hard_loss,
                loss,
            ],
        )
    print(f"agreement: {agreement():.3f}")
student.save_pretrained("student")
