"""A Pegasus learns to shorten news by AdaLoRA: ranks go where they matter, as in the examples of peft; the loss of others in between."""

import torch
from peft import AdaLoraConfig, TaskType, get_peft_model
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import PegasusConfig, PegasusForConditionalGeneration, get_linear_schedule_with_warmup

device = "cuda" if torch.cuda.is_available() else "cpu"
lr = 1e-3
num_epochs = 3
batch_size = 4
max_source_length, max_target_length = 96, 28
vocab_size, pad_token_id, eos_token_id = 12000, 0, 1


class News(Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            n_words = int(torch.randint(40, max_source_length, (), generator=generator))
            n_summary = int(torch.randint(10, max_target_length, (), generator=generator))
            self.rows.append(
                (
                    torch.randint(5, vocab_size, (n_words,), generator=generator),
                    torch.randint(5, vocab_size, (n_summary,), generator=generator),
                )
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    eos = torch.tensor([eos_token_id])
    sources = [torch.cat((source, eos)) for source, _ in rows]
    targets = [torch.cat((target, eos)) for _, target in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    input_ids = pad(sources, batch_first=True, padding_value=pad_token_id)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != pad_token_id).long(),
        "labels": pad(targets, batch_first=True, padding_value=-100),
    }


torch.manual_seed(402)
train_dataloader = DataLoader(News(16, seed=1), shuffle=True, collate_fn=collate, batch_size=batch_size)
eval_dataloader = DataLoader(News(4, seed=2), collate_fn=collate, batch_size=batch_size)

model = PegasusForConditionalGeneration(
    PegasusConfig(
        vocab_size=vocab_size,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_position_embeddings=256,
        pad_token_id=pad_token_id,
        eos_token_id=eos_token_id,
        decoder_start_token_id=pad_token_id,
    )
)
peft_config = AdaLoraConfig(
    init_r=12,
    target_r=8,
    beta1=0.85,
    beta2=0.85,
    tinit=1,
    tfinal=4,
    deltaT=1,
    lora_alpha=32,
    lora_dropout=0.1,
    target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
    task_type=TaskType.SEQ_2_SEQ_LM,
    inference_mode=False,
    total_step=len(train_dataloader) * num_epochs,
)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()

optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer=optimizer,
    num_warmup_steps=0,
    num_training_steps=(len(train_dataloader) * num_epochs),
)

model = model.to(device)
allocator = model.base_model.rankallocator
global_step = 0
for epoch in range(num_epochs):
    model.train()
    total_loss = 0
    for batch in tqdm(train_dataloader, disable=True):
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        # Update the importance of low-rank matrices and allocate the budget accordingly.
        model.base_model.update_and_allocate(global_step)
        optimizer.zero_grad()
        global_step += 1
        end_of_step(
            inputs=batch,
            activations=[list(outputs.values()), total_loss],
            states=[allocator.ipt, allocator.exp_avg_ipt, allocator.exp_avg_unc],
        )

    model.eval()
    eval_loss = 0
    eval_preds = []
    for batch in tqdm(eval_dataloader, disable=True):
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
    print(f"{epoch=}: {train_ppl=} {train_epoch_loss=} {eval_ppl=} {eval_epoch_loss=}")
