"""A LayoutLMv3 reads receipts: words, where they stand and a picture of the page; pictures are normalized on the device, F1 in between."""

import argparse
from collections import Counter

import torch
from programs import end_of_step
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from transformers import LayoutLMv3Config, LayoutLMv3ForTokenClassification

LABELS = ["O"] + [f"{p}-{f}" for f in ("MENU.NM", "MENU.PRICE", "TOTAL", "TAX", "DATE") for p in "BI"]
VOCABULARY, PAD, LENGTH, SIZE = 12000, 1, 96, 96


class Receipts(Dataset):
    """What a LayoutLMv3Processor makes of scans, with pictures as bytes."""

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.n_words = torch.randint(40, LENGTH - 2, (n,), generator=generator).tolist()
        self.scans = torch.randint(0, 256, (n, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)

    def __len__(self):
        return len(self.n_words)

    def __getitem__(self, index):
        n = self.n_words[index]
        input_ids = torch.full((LENGTH,), PAD)
        input_ids[0], input_ids[1 : n + 1], input_ids[n + 1] = 0, torch.randint(5, VOCABULARY, (n,)), 2
        corners = torch.randint(0, 900, (n, 2))
        bbox = torch.zeros(LENGTH, 4, dtype=torch.long)
        bbox[1 : n + 1] = torch.cat((corners, corners + torch.randint(8, 100, (n, 2))), dim=1)
        labels = torch.full((LENGTH,), -100)
        labels[1 : n + 1] = torch.randint(0, len(LABELS), (n,))
        labels[1 : n + 1][torch.rand(n) < 0.3] = -100  # only the first piece of a word counts
        return {
            "input_ids": input_ids,
            "attention_mask": (input_ids != PAD).long(),
            "bbox": bbox,
            "labels": labels,
            "pixel_values": self.scans[index],
        }


def get_model():
    config = LayoutLMv3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=LENGTH + 8,
        coordinate_size=44,
        shape_size=40,
        input_size=SIZE,
        patch_size=16,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
    )
    return LayoutLMv3ForTokenClassification(config)


def to_device(batch, device):
    batch = {key: value.to(device) for key, value in batch.items()}
    batch["pixel_values"] = batch["pixel_values"].float().div_(255).sub_(0.5).div_(0.5)
    return batch


def f1(predictions, references):
    """Of single words, by kind of field; seqeval would look at whole fields."""
    right, guessed, wanted = Counter(), 0, 0
    for guess, truth in zip(predictions, references):
        guessed += guess != 0
        wanted += truth != 0
        if guess == truth != 0:
            right[LABELS[truth][2:]] += 1
    precision, recall = sum(right.values()) / max(guessed, 1), sum(right.values()) / max(wanted, 1)
    return 2 * precision * recall / max(precision + recall, 1e-9)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    predictions, references, losses = [], [], 0.0
    for batch in loader:
        batch = to_device(batch, device)
        outputs = model(**batch)
        losses += outputs.loss.item()
        is_word = batch["labels"] != -100
        predictions += outputs.logits.argmax(-1)[is_word].cpu().tolist()
        references += batch["labels"][is_word].cpu().tolist()
    model.train()
    return losses / len(loader), f1(predictions, references)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-norm", type=float, default=1.0)
    args = parser.parse_args()
    device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(405)

    train_dataloader = DataLoader(Receipts(6, seed=1), batch_size=args.batch_size, shuffle=True)
    test_dataloader = DataLoader(Receipts(4, seed=2), batch_size=2)
    model = get_model()
    model.to(device)
    no_decay = ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    optimizer = AdamW(
        [
            {"params": [p for n, p in named if not n.endswith(no_decay)], "weight_decay": 0.01},
            {"params": [p for n, p in named if n.endswith(no_decay)], "weight_decay": 0.0},
        ],
        lr=args.lr,
    )
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=1)

    best = -1.0
    model.train()
    for epoch in range(args.epochs):
        running = 0.0
        for batch in train_dataloader:
            batch = to_device(batch, device)
            outputs = model(**batch)
            loss = outputs.loss
            running += loss.item()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            optimizer.step()
            end_of_step(inputs=batch, activations=[loss, outputs.logits])
        val_loss, score = evaluate(model, test_dataloader, device)
        scheduler.step(score)
        best = max(best, score)
        print(
            f"epoch {epoch}: train {running / len(train_dataloader):.4f}, val {val_loss:.4f}, F1 {score:.3f}"
        )
    print(f"best F1 {best:.3f}")


if __name__ == "__main__":
    main()
