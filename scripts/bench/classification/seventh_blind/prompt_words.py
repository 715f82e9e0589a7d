"""A Bloom is given words of its own before every complaint, as in the first steps of peft: prompt tuning, nothing else is trained."""

import torch
from peft import PromptTuningConfig, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    default_data_collator,
    get_linear_schedule_with_warmup,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
max_length = 64
lr = 3e-2
num_epochs = 2
batch_size = 8
vocab_size, pad_token_id = 16000, 3
LABELS = {"complaint": [9011, 410], "no complaint": [77, 9011, 410]}


class Tweets(Dataset):
    """'Tweet text : ... Label : ', then the label; padded on the left as a language model wants it."""

    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        names = list(LABELS)
        for _ in range(n):
            words = torch.randint(10, vocab_size, (int(torch.randint(12, 50, (), generator=generator)),))
            label = LABELS[names[int(torch.randint(2, (), generator=generator))]] + [pad_token_id]
            self.rows.append((words.tolist(), label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        words, label = self.rows[i]
        input_ids = words + label
        labels = [-100] * len(words) + label
        missing = max_length - len(input_ids)
        return {
            "input_ids": [pad_token_id] * missing + input_ids,
            "attention_mask": [0] * missing + [1] * len(input_ids),
            "labels": [-100] * missing + labels,
        }


torch.manual_seed(301)
train_dataloader = DataLoader(
    Tweets(24, seed=1),
    shuffle=True,
    collate_fn=default_data_collator,
    batch_size=batch_size,
    pin_memory=False,
)
eval_dataloader = DataLoader(Tweets(16, seed=2), collate_fn=default_data_collator, batch_size=batch_size)

model = BloomForCausalLM(
    BloomConfig(
        vocab_size=vocab_size,
        hidden_size=320,
        n_layer=6,
        n_head=8,
        pad_token_id=pad_token_id,
        use_cache=False,
    )
)
peft_config = PromptTuningConfig(
    task_type=TaskType.CAUSAL_LM, prompt_tuning_init="RANDOM", num_virtual_tokens=20
)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()
model = model.to(device)

optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer=optimizer, num_warmup_steps=0, num_training_steps=len(train_dataloader) * num_epochs
)

for epoch in range(num_epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train_dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        end_of_step(inputs=batch, activations=[outputs.logits, loss, total_loss])

    model.eval()
    eval_loss = 0
    eval_preds = []
    for step, batch in enumerate(eval_dataloader):
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        loss = outputs.loss
        eval_loss += loss.detach().float()
        eval_preds.extend(torch.argmax(outputs.logits, -1).detach().cpu().tolist())

    train_epoch_loss = total_loss / len(train_dataloader)
    eval_epoch_loss = eval_loss / len(eval_dataloader)
    print(f"{epoch=}: {train_epoch_loss=} {eval_epoch_loss=} {len(eval_preds)=}")
