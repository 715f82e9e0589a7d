"""TIGER recommends furniture: a T5 writes the semantic codes of the next item after a shopper's history; accelerate in bf16, AdamW, inverse square root, two batches a step."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import T5Config, T5ForConditionalGeneration

LEVELS, CODES, ITEMS, USERS = 4, 256, 6000, 2000
PAD, END = 0, 1
FIRST_USER = 2 + LEVELS * CODES
HISTORY = 20


class Histories(Dataset):
    """Twenty items that a shopper looked at, each as four codes of a residual quantizer, then the next one."""

    def __init__(self, length, seed):
        rng = torch.Generator().manual_seed(17)
        codes = torch.randint(CODES, (ITEMS, LEVELS), generator=rng)
        self.codes = codes + 2 + torch.arange(LEVELS) * CODES
        rng = torch.Generator().manual_seed(seed)
        self.items = torch.randint(ITEMS, (length, HISTORY + 1), generator=rng)
        self.lengths = torch.randint(5, HISTORY + 1, (length,), generator=rng)
        self.users = torch.randint(USERS, (length,), generator=rng)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        n = int(self.lengths[index])
        ids = torch.full((1 + HISTORY * LEVELS + 1,), PAD)
        ids[0] = FIRST_USER + self.users[index]
        ids[1 : 1 + n * LEVELS] = self.codes[self.items[index, :n]].flatten()
        ids[1 + n * LEVELS] = END
        labels = torch.cat([self.codes[self.items[index, n]], torch.tensor([END])])
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


@torch.no_grad()
def recall_at(model, loader, accelerator, k=10):
    model.eval()
    plain = accelerator.unwrap_model(model)
    hits = seen = 0
    for batch in loader:
        found = plain.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            num_beams=k,
            num_return_sequences=k,
            max_new_tokens=LEVELS,
        )
        found = found[:, 1 : 1 + LEVELS].view(-1, k, LEVELS)
        hits += (found == batch["labels"][:, None, :LEVELS]).all(-1).any(-1).sum().item()
        seen += len(found)
    model.train()
    return hits / seen


def main():
    set_seed(3)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=FIRST_USER + USERS,
            d_model=192,
            d_kv=32,
            d_ff=768,
            num_layers=4,
            num_decoder_layers=4,
            num_heads=6,
            dropout_rate=0.1,
            feed_forward_proj="relu",
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
        )
    )
    loader = DataLoader(Histories(20000, 1), batch_size=24, shuffle=True, drop_last=True)
    held_out = DataLoader(Histories(480, 2), batch_size=24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.035)
    warmup = 1000
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / warmup, (warmup / (n + 1)) ** 0.5)
    )
    model, optimizer, loader, held_out, scheduler = accelerator.prepare(
        model, optimizer, loader, held_out, scheduler
    )
    model.train()
    step = 0
    for epoch in range(10):
        for batch in loader:
            with accelerator.accumulate(model):
                output = model(**batch, use_cache=False)
                accelerator.backward(output.loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            tell(inputs=batch, activations=[output.loss, output.logits])
            if accelerator.sync_gradients:
                step += 1
                if step % 50 == 0:
                    accelerator.print(f"{step}: {output.loss.item():.3f}")
                end_of_step(
                    inputs=batch, activations=[output.loss, output.logits, output.encoder_last_hidden_state]
                )
        accelerator.print(f"epoch {epoch}: recall at 10 {recall_at(model, held_out, accelerator):.4f}")


if __name__ == "__main__":
    main()
