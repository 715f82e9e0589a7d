"""A small ERNIE learns from what a larger one thinks of its answers (on-policy distillation, GKD): half of the answers are drawn by the student itself, a divergence between both at every word, a frozen teacher in bfloat16, a fused AdamW."""

import argparse
import random

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, Dataset
from transformers import Ernie4_5Config, Ernie4_5ForCausalLM, get_constant_schedule_with_warmup

VOCABULARY, PAD, BOS, EOS = 16000, 0, 1, 2


class Prompts(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = [
            (
                [BOS] + [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(10, 40))],
                [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(8, 32))] + [EOS],
            )
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    """Prompts end, and completions begin, at the same place in all rows."""
    longest = max(len(prompt) for prompt, _ in rows)
    prompts = torch.tensor([[PAD] * (longest - len(p)) + p for p, _ in rows])
    completions = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(c) for _, c in rows], batch_first=True, padding_value=PAD
    )
    return {"prompts": prompts, "input_ids": torch.cat([prompts, completions], dim=1)}


def build(hidden, layers, heads):
    return Ernie4_5ForCausalLM(
        Ernie4_5Config(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=64,
            max_position_embeddings=256,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )


def generalized_jsd_loss(student_logits, teacher_logits, mask, beta=0.5, temperature=1.0):
    student = F.log_softmax(student_logits / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
    beta = torch.tensor(beta, dtype=student.dtype, device=student.device)
    mixture = torch.logsumexp(torch.stack([student + torch.log1p(-beta), teacher + torch.log(beta)]), dim=0)
    kl_teacher = F.kl_div(mixture, teacher, reduction="none", log_target=True)
    kl_student = F.kl_div(mixture, student, reduction="none", log_target=True)
    jsd = beta * kl_teacher + (1 - beta) * kl_student
    return jsd[mask].sum() / mask.sum()


def tell_of_cache(module, args, output):
    cache = output.past_key_values
    if cache is not None:
        tell(caches=[(layer.keys, layer.values) for layer in cache.layers])


@torch.no_grad()
def generate_on_policy(model, prompts, args):
    model.eval()
    hook = model.register_forward_hook(tell_of_cache)
    generated = model.generate(
        prompts,
        attention_mask=(prompts != PAD).long(),
        max_new_tokens=args.max_new_tokens,
        do_sample=True,
        temperature=args.temperature,
        top_k=0,
        use_cache=True,
        pad_token_id=PAD,
    )
    hook.remove()
    model.train()
    return generated


@torch.no_grad()
def evaluate(student, loader, device):
    """Perplexity of the answers in the data."""
    student.eval()
    loss = n = 0
    for batch in loader:
        input_ids = batch["input_ids"].to(device)
        start = batch["prompts"].shape[1]
        logits = student(input_ids, attention_mask=(input_ids != PAD).long(), use_cache=False).logits
        labels = input_ids[:, start:]
        words = F.cross_entropy(
            logits[:, start - 1 : -1].flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=PAD,
            reduction="sum",
        )
        loss, n = loss + words.item(), n + (labels != PAD).sum().item()
    student.train()
    return torch.tensor(loss / n).exp().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lmbda", type=float, default=0.5, help="part of batches the student answers")
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--temperature", type=float, default=0.9)
    parser.add_argument("--max_new_tokens", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--max_grad_norm", type=float, default=1.0)
    parser.add_argument("--eval_steps", type=int, default=2)
    args = parser.parse_args()

    random.seed(1108)
    torch.manual_seed(1108)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teacher = build(hidden=448, layers=6, heads=6).to(device, torch.bfloat16).eval()
    teacher.requires_grad_(False)
    student = build(hidden=320, layers=4, heads=4).to(device).train()
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    scheduler = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=2)
    train_loader = DataLoader(Prompts(40, 1), args.batch_size, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(Prompts(4, 2), args.batch_size, collate_fn=collate)

    for step, batch in enumerate(train_loader, 1):
        batch = {key: value.to(device) for key, value in batch.items()}
        input_ids, on_policy = batch["input_ids"], random.random() <= args.lmbda
        if on_policy:
            input_ids = generate_on_policy(student, batch["prompts"], args)
        attention_mask = (input_ids != PAD).long()
        start = batch["prompts"].shape[1]
        mask = attention_mask[:, start:].bool()

        with torch.autocast(device.type, dtype=torch.bfloat16):
            student_logits = student(input_ids, attention_mask=attention_mask, use_cache=False).logits
        with torch.no_grad():
            teacher_logits = teacher(input_ids, attention_mask=attention_mask, use_cache=False).logits
        loss = generalized_jsd_loss(
            student_logits[:, start - 1 : -1].float(),
            teacher_logits[:, start - 1 : -1].float(),
            mask,
            beta=args.beta,
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), args.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"{step}: loss {loss.item():.4f}, {'its own' if on_policy else 'given'} answers")
        end_of_step(
            inputs=[batch, input_ids, attention_mask, mask],
            activations=[student_logits, teacher_logits, loss],
        )
        if step % args.eval_steps == 0:
            print(f"{step}: perplexity {evaluate(student, eval_loader, device):.1f}")


if __name__ == "__main__":
    main()
