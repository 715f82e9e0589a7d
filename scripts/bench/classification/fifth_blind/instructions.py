"""A Qwen3 learns to follow instructions by DoRA: frozen bfloat16, checkpoints, two micro-batches, Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, get_cosine_schedule_with_warmup

VOCABULARY, PADDING = 16000, 0


class Conversations(Dataset):
    """A prompt, of which nothing is learned, and its answer."""

    def __init__(self, n):
        self.lengths = torch.randint(24, 72, (n, 2)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        prompt, answer = self.lengths[index]
        ids = torch.randint(4, VOCABULARY, (prompt + answer,))
        labels = ids.clone()
        labels[:prompt] = -100
        return ids, labels


def collate(rows, multiple=8):
    longest = -(-max(len(ids) for ids, _ in rows) // multiple) * multiple
    batch = {"input_ids": [], "attention_mask": [], "labels": []}
    for ids, labels in rows:
        pad = (0, longest - len(ids))
        batch["input_ids"].append(torch.nn.functional.pad(ids, pad, value=PADDING))
        batch["labels"].append(torch.nn.functional.pad(labels, pad, value=-100))
        batch["attention_mask"].append(torch.nn.functional.pad(torch.ones_like(ids), pad))
    return {key: torch.stack(parts) for key, parts in batch.items()}


def main():
    set_seed(102)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=PADDING,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    adapter = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules="all-linear",
        use_dora=True,
    )
    model = get_peft_model(model, adapter)
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, 50)
    loader = DataLoader(Conversations(128), batch_size=4, shuffle=True, collate_fn=collate)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    model.train()
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"batch {number}, loss {loss.detach().float().item():.3f}")
            end_of_step()
        if number == 9:
            break


if __name__ == "__main__":
    main()
