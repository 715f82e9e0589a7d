"""A DistilBERT learns sentiments: two batches add up their gradients, the rate warms up, every epoch is validated."""

import torch
from programs import end_of_step, tell
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    get_linear_schedule_with_warmup,
)

ACCUMULATE = 2


class Reviews(Dataset):
    def __init__(self, n):
        self.texts = [torch.randint(5, 4000, (int(length),)) for length in torch.randint(40, 128, (n,))]
        self.labels = torch.randint(0, 2, (n,))

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.labels[index]


def collate(rows):
    texts, labels = zip(*rows)
    ids = pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.stack(labels)}


def get_optimizer(model):
    no_decay = ("bias", "LayerNorm.weight", "layer_norm.weight")
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)],
            "weight_decay": 0.01,
        },
        {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=5e-5, eps=1e-8)


def evaluate(model, loader, device):
    model.eval()
    n_right, n_seen = 0, 0
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            logits = model(**batch).logits
        n_right += (logits.argmax(dim=-1) == batch["labels"]).sum().item()
        n_seen += len(logits)
    return n_right / n_seen


def main():
    torch.manual_seed(61)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = DistilBertConfig(
        vocab_size=4000, dim=256, n_layers=4, n_heads=4, hidden_dim=1024, max_position_embeddings=128
    )
    model = DistilBertForSequenceClassification(config)
    model.to(device)
    train_loader = DataLoader(Reviews(32), batch_size=8, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(Reviews(24), batch_size=12, collate_fn=collate)
    optimizer = get_optimizer(model)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=10)
    for epoch in range(5):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_loader):
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss / ACCUMULATE
            loss.backward()
            total_loss += loss.item()
            tell(inputs=batch, activations=[outputs.loss, outputs.logits, loss])
            if (step + 1) % ACCUMULATE == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                end_of_step(inputs=batch, activations=[outputs.loss, outputs.logits, loss])
        accuracy = evaluate(model, valid_loader, device)
        print(f"epoch {epoch}: loss {total_loss:.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
