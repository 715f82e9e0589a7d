"""A ViLT answers questions about photos by choosing among frequent answers, as the guide of transformers does it: soft labels of ten people, bytes that are normalized on the device, Accelerate in half precision, two batches to a step, VQA's own accuracy between."""

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import ViltConfig, ViltForQuestionAnswering, get_scheduler

N_ANSWERS, VOCAB_SIZE, PAD, CLS, SEP = 1200, 16000, 0, 101, 102
IMAGE_SIZE = 96
SCORES = (0.3, 0.6, 0.9, 1.0)


class VQADataset(Dataset):
    """Photos of two shapes, with a question and how many of ten people gave each answer."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            height, width = (IMAGE_SIZE, 80) if i % 2 else (80, IMAGE_SIZE)
            length = int(torch.randint(5, 18, (), generator=g))
            n_given = int(torch.randint(1, 4, (), generator=g))
            self.items.append(
                {
                    "image": torch.randint(256, (3, height, width), generator=g, dtype=torch.uint8),
                    "question": torch.randint(1000, VOCAB_SIZE, (length,), generator=g),
                    "labels": torch.randperm(N_ANSWERS, generator=g)[:n_given],
                    "scores": torch.tensor(SCORES)[torch.randint(4, (n_given,), generator=g)],
                }
            )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate_fn(items):
    longest = max(len(item["question"]) for item in items) + 2
    batch = {
        "input_ids": torch.full((len(items), longest), PAD),
        "image": torch.zeros(len(items), 3, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.uint8),
        "pixel_mask": torch.zeros(len(items), IMAGE_SIZE, IMAGE_SIZE, dtype=torch.long),
        "labels": torch.zeros(len(items), N_ANSWERS),
    }
    for i, item in enumerate(items):
        words = torch.tensor([CLS, *item["question"].tolist(), SEP])
        batch["input_ids"][i, : len(words)] = words
        _, height, width = item["image"].shape
        batch["image"][i, :, :height, :width] = item["image"]
        batch["pixel_mask"][i, :height, :width] = 1
        batch["labels"][i, item["labels"]] = item["scores"]
    batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def with_pixels(batch):
    """From bytes to numbers around zero; what is padded stays zero."""
    batch = dict(batch)
    image = batch.pop("image")
    pixel_values = image.float().div_(127.5).sub_(1.0)
    batch["pixel_values"] = pixel_values.mul_(batch["pixel_mask"][:, None])
    return batch


def get_model():
    config = ViltConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=320,
        num_hidden_layers=4,
        num_attention_heads=5,
        intermediate_size=1280,
        image_size=IMAGE_SIZE,
        patch_size=16,
        max_position_embeddings=40,
        hidden_dropout_prob=0.1,
        num_labels=N_ANSWERS,
        id2label={i: f"answer {i}" for i in range(N_ANSWERS)},
        label2id={f"answer {i}": i for i in range(N_ANSWERS)},
    )
    return ViltForQuestionAnswering(config)


def grouped_parameters(model, lr, weight_decay, head_factor=10.0):
    """The head is new and learns faster; no decay of biases and norms."""
    groups = {}
    for name, p in model.named_parameters():
        head, plain = name.startswith("classifier"), p.ndim < 2
        group = groups.setdefault(
            (head, plain),
            {
                "params": [],
                "lr": lr * (head_factor if head else 1.0),
                "weight_decay": 0.0 if plain else weight_decay,
            },
        )
        group["params"].append(p)
    return list(groups.values())


@torch.no_grad()
def evaluate(model, loader, accelerator):
    model.eval()
    given = []
    for batch in loader:
        batch = with_pixels(batch)
        labels = batch.pop("labels")
        best = model(**batch).logits.argmax(-1, keepdim=True)
        given.append(accelerator.gather_for_metrics(labels.gather(1, best)))
    model.train()
    return torch.cat(given).mean().item()


def main():
    lr, weight_decay, batch_size, accumulation, epochs = 5e-5, 1e-2, 4, 2, 3
    mixed_precision = "fp16" if torch.cuda.is_available() else "no"
    accelerator = Accelerator(mixed_precision=mixed_precision, gradient_accumulation_steps=accumulation)
    set_seed(1204)
    train_loader = DataLoader(
        VQADataset(16, 1), batch_size, shuffle=True, collate_fn=collate_fn, drop_last=True
    )
    eval_loader = DataLoader(VQADataset(4, 2), batch_size, collate_fn=collate_fn)
    model = get_model()
    optimizer = torch.optim.AdamW(grouped_parameters(model, lr, weight_decay), betas=(0.9, 0.98))
    n_steps = epochs * math.ceil(len(train_loader) / accumulation)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=1, num_training_steps=n_steps)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    model.train()
    step = 0
    for epoch in range(epochs):
        for batch in train_loader:
            with accelerator.accumulate(model):
                inputs = with_pixels(batch)
                outputs = model(**inputs)
                accelerator.backward(outputs.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            known = {"inputs": [batch, inputs], "activations": [outputs.loss, outputs.logits]}
            if not accelerator.sync_gradients:
                tell(**known)
                continue
            step += 1
            accelerator.print(f"epoch {epoch} step {step}: {outputs.loss.item():.3f}")
            end_of_step(**known)
        accuracy = evaluate(model, eval_loader, accelerator)
        accelerator.print(f"epoch {epoch}: accuracy {100 * accuracy:.2f}")


if __name__ == "__main__":
    main()
