"""Relations between firms in news sentences: a RoBERTa with entity markers, a plain loop in float32, AdamW, linear warm-up."""

import random

import torch
from programs import end_of_step
from sklearn.metrics import f1_score
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaModel, get_linear_schedule_with_warmup

SEED = 3
VOCABULARY = 8000
SUBJECT_START, SUBJECT_END, OBJECT_START, OBJECT_END = 10, 11, 12, 13
RELATIONS = [
    "none", "acquired", "subsidiary_of", "supplies", "competes_with", "invested_in",
    "merged_with", "sued", "partner_of", "headquartered_in", "founded_by", "customer_of",
]  # fmt: skip
random.seed(SEED)
torch.manual_seed(SEED)


class News(Dataset):
    def __init__(self, size):
        self.examples = []
        for _ in range(size):
            length = random.randint(40, 110)
            words = [random.randint(20, VOCABULARY - 1) for _ in range(length)]
            first, second = sorted(random.sample(range(2, length - 6), 2))
            second = max(second, first + 3)
            words[second : second + 2] = [OBJECT_START, *words[second : second + 2], OBJECT_END]
            words[first : first + 2] = [SUBJECT_START, *words[first : first + 2], SUBJECT_END]
            self.examples.append((torch.tensor([0, *words, 2]), random.randrange(len(RELATIONS))))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


def collate(examples):
    ids = pad_sequence([ids for ids, _ in examples], batch_first=True, padding_value=1)
    labels = torch.tensor([label for _, label in examples])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 1).long(),
        "subject": (ids == SUBJECT_START).int().argmax(1),
        "object": (ids == OBJECT_START).int().argmax(1),
        "labels": labels,
    }


class RelationClassifier(nn.Module):
    def __init__(self, config, n_relations):
        super().__init__()
        self.encoder = RobertaModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(0.1)
        self.dense = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, n_relations)

    def forward(self, input_ids, attention_mask, subject, object):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        rows = torch.arange(hidden.shape[0], device=hidden.device)
        pair = torch.cat([hidden[rows, subject], hidden[rows, object]], dim=-1)
        pair = torch.tanh(self.dense(self.dropout(pair)))
        return self.classifier(self.dropout(pair))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    predicted, true = [], []
    for batch in loader:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        true += batch.pop("labels").tolist()
        predicted += model(**batch).argmax(-1).tolist()
    model.train()
    return f1_score(true, predicted, average="macro", zero_division=0)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(News(128), batch_size=16, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(News(32), batch_size=32, collate_fn=collate)

    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=1280,
        num_hidden_layers=4,
        num_attention_heads=5,
        max_position_embeddings=258,
        type_vocab_size=1,
    )
    model = RelationClassifier(config, len(RELATIONS)).to(device)

    no_decay = ("bias", "LayerNorm.weight")
    decayed = [p for n, p in model.named_parameters() if not n.endswith(no_decay)]
    others = [p for n, p in model.named_parameters() if n.endswith(no_decay)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=3e-5,
        eps=1e-6,
    )
    n_epochs = 3
    n_steps = n_epochs * len(train_loader)
    scheduler = get_linear_schedule_with_warmup(optimizer, int(0.1 * n_steps) or 1, n_steps)
    counts = torch.bincount(
        torch.tensor([label for _, label in train_loader.dataset]), minlength=len(RELATIONS)
    )
    weights = (counts.sum() / (len(RELATIONS) * counts.clamp(min=1))).float()
    criterion = nn.CrossEntropyLoss(weight=weights.to(device), label_smoothing=0.05)

    step, best = 0, 0.0
    for epoch in range(n_epochs):
        for batch in train_loader:
            batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
            labels = batch["labels"]
            logits = model(batch["input_ids"], batch["attention_mask"], batch["subject"], batch["object"])
            loss = criterion(logits, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 2 == 0:
                score = evaluate(model, valid_loader, device)
                print(f"epoch {epoch} step {step} loss {loss.item():.3f} macro-F1 {score:.3f}")
                if score > best:
                    best = score
                    torch.save(model.state_dict(), "relations.pt")
            end_of_step(inputs=batch, activations=[logits, loss])


if __name__ == "__main__":
    main()
