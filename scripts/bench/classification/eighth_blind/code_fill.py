"""A GPT-BigCode is pretrained on code, with parts to fill in: one head of keys for all, Accelerate in bfloat16, checkpoints, perplexity in between."""

import random
from argparse import Namespace

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch.optim import AdamW
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import DataLoader
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, get_scheduler

VOCABULARY, EOS, PREFIX, MIDDLE, SUFFIX = 12000, 0, 1, 2, 3


class ConstantLengthDataset(IterableDataset):
    """Files of code, joined by an end of text and cut in rows of the same length."""

    def __init__(self, seed, seq_length=112, files_of_buffer=40, fim_rate=0.5):
        self.seed, self.seq_length = seed, seq_length
        self.files_of_buffer, self.fim_rate = files_of_buffer, fim_rate

    def permute(self, tokens, rng):
        """The middle goes to the end: prefix, suffix, middle."""
        if rng.random() > self.fim_rate:
            return tokens
        first, second = sorted(rng.sample(range(len(tokens) + 1), 2))
        prefix, middle, suffix = tokens[:first], tokens[first:second], tokens[second:]
        return [PREFIX, *prefix, SUFFIX, *suffix, MIDDLE, *middle]

    def __iter__(self):
        rng = random.Random(self.seed)
        while True:
            all_token_ids = []
            for _ in range(self.files_of_buffer):
                tokens = [rng.randrange(4, VOCABULARY) for _ in range(rng.randrange(60, 500))]
                all_token_ids.extend([*self.permute(tokens, rng), EOS])
            for i in range(0, len(all_token_ids), self.seq_length):
                input_ids = all_token_ids[i : i + self.seq_length]
                if len(input_ids) == self.seq_length:
                    yield torch.tensor(input_ids)


def get_grouped_params(model, args, no_decay=("bias", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
    params_with_wd, params_without_wd = [], []
    for n, p in model.named_parameters():
        if any(nd in n for nd in no_decay):
            params_without_wd.append(p)
        else:
            params_with_wd.append(p)
    return [
        {"params": params_with_wd, "weight_decay": args.weight_decay},
        {"params": params_without_wd, "weight_decay": 0.0},
    ]


def evaluate(model, eval_dataloader, accelerator, args):
    model.eval()
    losses = []
    for step, batch in enumerate(eval_dataloader):
        with torch.no_grad():
            outputs = model(batch, labels=batch)
        loss = outputs.loss.repeat(args.valid_batch_size)
        losses.append(accelerator.gather(loss))
        if args.max_eval_steps > 0 and step + 1 >= args.max_eval_steps:
            break
    loss = torch.mean(torch.cat(losses))
    try:
        perplexity = torch.exp(loss)
    except OverflowError:
        perplexity = torch.tensor(float("inf"))
    model.train()
    return loss.item(), perplexity.item()


args = Namespace(
    train_batch_size=2,
    valid_batch_size=2,
    weight_decay=0.1,
    learning_rate=2e-4,
    num_warmup_steps=2,
    gradient_accumulation_steps=2,
    max_train_steps=5,
    max_eval_steps=1,
    eval_every=2,
    seed=406,
)


def main():
    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    set_seed(args.seed)
    config = GPTBigCodeConfig(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=256,
        n_layer=5,
        n_head=4,
        multi_query=True,
        scale_attention_softmax_in_fp32=True,
        bos_token_id=EOS,
        eos_token_id=EOS,
        use_cache=False,
    )
    model = GPTBigCodeForCausalLM(config)
    model.gradient_checkpointing_enable()
    train_dataloader = DataLoader(ConstantLengthDataset(1), batch_size=args.train_batch_size)
    eval_dataloader = DataLoader(ConstantLengthDataset(2), batch_size=args.valid_batch_size)
    optimizer = AdamW(get_grouped_params(model, args), lr=args.learning_rate, betas=(0.9, 0.95))
    lr_scheduler = get_scheduler(
        name="cosine",
        optimizer=optimizer,
        num_warmup_steps=args.num_warmup_steps,
        num_training_steps=args.max_train_steps,
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    model.train()
    completed_steps = 0
    loss_tracking = 0
    for batch in train_dataloader:
        with accelerator.accumulate(model):
            loss = model(batch, labels=batch, use_cache=False).loss
            avg_loss = accelerator.gather(loss.repeat(args.train_batch_size)).mean()
            loss_tracking += avg_loss.item() / args.gradient_accumulation_steps
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            tell(inputs=batch, activations=[loss, avg_loss])
            continue
        completed_steps += 1
        accelerator.print(f"{completed_steps}: {loss_tracking:.4f}, lr {lr_scheduler.get_last_lr()[0]:.2e}")
        loss_tracking = 0
        end_of_step(inputs=batch, activations=[loss, avg_loss])
        if completed_steps % args.eval_every == 0:
            eval_loss, perplexity = evaluate(model, eval_dataloader, accelerator, args)
            accelerator.print(f"loss/eval {eval_loss:.4f}, perplexity {perplexity:.1f}")
        if completed_steps >= args.max_train_steps:
            break


if __name__ == "__main__":
    main()
