"""An mT5 learns to name the mood of financial news by (IA)3, as in the notebooks of peft: three vectors in every layer, a plain loop, a loss and perplexity of others after each epoch."""

import torch
from peft import IA3Config, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    get_linear_schedule_with_warmup,
    set_seed,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
max_length = 96
lr = 8e-3
num_epochs = 3
batch_size = 8
vocab_size, pad, eos = 24000, 0, 1
set_seed(1003)

model = MT5ForConditionalGeneration(
    MT5Config(
        vocab_size=vocab_size,
        d_model=256,
        d_kv=32,
        d_ff=640,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=6,
        pad_token_id=pad,
        eos_token_id=eos,
        decoder_start_token_id=pad,
    )
)
peft_config = IA3Config(task_type=TaskType.SEQ_2_SEQ_LM, inference_mode=False)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()

# The words of "negative", "neutral" and "positive".
classes = [[2841, 11, eos], [9024, eos], [417, 3, eos]]


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n):
        length = int(torch.randint(12, 60, (), generator=g))
        found.append(
            {
                "sentence": torch.randint(20, vocab_size, (length,), generator=g).tolist(),
                "label": int(torch.randint(len(classes), (), generator=g)),
            }
        )
    return found


def preprocess_function(example):
    input_ids = [*example["sentence"], eos][:max_length]
    room = max_length - len(input_ids)
    target = classes[example["label"]]
    return {
        "input_ids": input_ids + [pad] * room,
        "attention_mask": [1] * len(input_ids) + [0] * room,
        "labels": target + [-100] * (3 - len(target)),
    }


def default_data_collator(rows):
    return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


train_dataset = [preprocess_function(example) for example in sentences(24, seed=1)]
eval_dataset = [preprocess_function(example) for example in sentences(8, seed=2)]
train_dataloader = DataLoader(
    train_dataset, shuffle=True, collate_fn=default_data_collator, batch_size=batch_size
)
eval_dataloader = DataLoader(eval_dataset, collate_fn=default_data_collator, batch_size=batch_size)

optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer=optimizer,
    num_warmup_steps=0,
    num_training_steps=(len(train_dataloader) * num_epochs),
)

model = model.to(device)
for epoch in range(num_epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(tqdm(train_dataloader, disable=True)):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        end_of_step(
            inputs=batch,
            activations=[list(outputs.values()), total_loss],
        )

    model.eval()
    eval_loss = 0
    eval_preds = []
    for step, batch in enumerate(tqdm(eval_dataloader, disable=True)):
        batch = {k: v.to(device) for k, v in batch.items()}
        with torch.no_grad():
            outputs = model(**batch)
        loss = outputs.loss
        eval_loss += loss.detach().float()
        eval_preds.extend(torch.argmax(outputs.logits, -1).detach().cpu().tolist())

    eval_epoch_loss = eval_loss / len(eval_dataloader)
    eval_ppl = torch.exp(eval_epoch_loss)
    train_epoch_loss = total_loss / len(train_dataloader)
    train_ppl = torch.exp(train_epoch_loss)
    correct = sum(
        classes[example["label"]] == pred[: len(classes[example["label"]])]
        for pred, example in zip(eval_preds, sentences(8, seed=2))
    )
    print(f"{epoch=}: {train_ppl=} {train_epoch_loss=} {eval_ppl=} {eval_epoch_loss=}")
    print(f"accuracy={correct / len(eval_dataset) * 100} %")
