"""An XLM-RoBERTa learns which sentences say the same, by VeRA: random matrices that all layers share, two vectors for each; a rate of its own for the head; F1 in between."""

import torch
from peft import TaskType, VeraConfig, get_peft_model
from programs import end_of_step
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import (
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    get_linear_schedule_with_warmup,
)

batch_size = 8
device = "cuda" if torch.cuda.is_available() else "cpu"
num_epochs = 3
rank = 128
max_length = 80
lr_head, lr_vera = 4e-3, 2e-2
bos, pad, eos, vocab_size = 0, 1, 2, 20000
torch.manual_seed(506)


class PAWS(Dataset):
    """Pairs of sentences of the same words, in several languages."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            n_words = int(torch.randint(12, 36, (), generator=g))
            first = torch.randint(5, vocab_size, (n_words,), generator=g)
            second = first[torch.randperm(n_words, generator=g)]
            self.rows.append((first.tolist(), second.tolist(), int(torch.randint(2, (), generator=g))))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        first, second, label = self.rows[i]
        ids = [bos, *first, eos, eos, *second, eos][:max_length]
        return {"input_ids": ids, "labels": label}


def collate_fn(examples):
    longest = max(len(e["input_ids"]) for e in examples)
    input_ids = torch.tensor([e["input_ids"] + [pad] * (longest - len(e["input_ids"])) for e in examples])
    return {
        "input_ids": input_ids,
        "attention_mask": input_ids.ne(pad).long(),
        "labels": torch.tensor([e["labels"] for e in examples]),
    }


class F1:
    def __init__(self):
        self.right = self.guessed = self.wanted = self.same = self.n = 0

    def add_batch(self, predictions, references):
        self.right += int((predictions & references).sum())
        self.guessed += int(predictions.sum())
        self.wanted += int(references.sum())
        self.same += int((predictions == references).sum())
        self.n += len(references)

    def compute(self):
        return {"accuracy": self.same / self.n, "f1": 2 * self.right / max(self.guessed + self.wanted, 1)}


train_dataloader = DataLoader(PAWS(16, seed=1), shuffle=True, collate_fn=collate_fn, batch_size=batch_size)
eval_dataloader = DataLoader(PAWS(8, seed=2), shuffle=False, collate_fn=collate_fn, batch_size=batch_size)

model = XLMRobertaForSequenceClassification(
    XLMRobertaConfig(
        vocab_size=vocab_size,
        hidden_size=320,
        num_hidden_layers=6,
        num_attention_heads=5,
        intermediate_size=1280,
        max_position_embeddings=max_length + 4,
        pad_token_id=pad,
        bos_token_id=bos,
        eos_token_id=eos,
        num_labels=2,
    )
)
peft_config = VeraConfig(
    task_type=TaskType.SEQ_CLS,
    inference_mode=False,
    r=rank,
    projection_prng_key=0xABC,
    d_initial=0.1,
    vera_dropout=0.05,
    target_modules=["query", "key", "value"],
    save_projection=True,
)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()

optimizer = AdamW(
    [
        {"params": [p for n, p in model.named_parameters() if "vera_lambda_" in n], "lr": lr_vera},
        {"params": [p for n, p in model.named_parameters() if "classifier" in n], "lr": lr_head},
    ]
)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer=optimizer,
    num_warmup_steps=0.06 * (len(train_dataloader) * num_epochs),
    num_training_steps=(len(train_dataloader) * num_epochs),
)

model.to(device)
for epoch in range(num_epochs):
    model.train()
    for step, batch in enumerate(tqdm(train_dataloader, disable=True)):
        for key in batch:
            batch[key] = batch[key].to(device)
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        end_of_step(inputs=batch, activations=list(outputs.values()))

    model.eval()
    metric = F1()
    for step, batch in enumerate(tqdm(eval_dataloader, disable=True)):
        for key in batch:
            batch[key] = batch[key].to(device)
        with torch.no_grad():
            outputs = model(**batch)
        predictions = outputs.logits.argmax(dim=-1)
        metric.add_batch(predictions=predictions, references=batch["labels"])
    print(f"epoch {epoch}:", metric.compute())
