"""A SPLADE learns to find passages by weighted words: a DistilBERT in half precision with a scaler, margins of a teacher that were scored before, words cost something."""

import argparse
import random

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import DistilBertConfig, DistilBertForMaskedLM, get_linear_schedule_with_warmup

VOCABULARY, CLS, SEP, PAD = 10000, 101, 102, 0


class Triplets(Dataset):
    """MS MARCO with scores of a cross-encoder: (question, right passage, wrong passage, margin)."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def text(self, least, most):
        return [CLS, *random.choices(range(1000, VOCABULARY), k=random.randint(least, most)), SEP]

    def __getitem__(self, i):
        return self.text(4, 12), self.text(20, 40), self.text(20, 40), random.gauss(4.0, 3.0)


def pad(texts, max_length):
    longest = min(max_length, max(map(len, texts)))
    ids = torch.full((len(texts), longest), PAD)
    for row, text in zip(ids, texts):
        row[: min(len(text), longest)] = torch.tensor(text[:longest])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def collate_fn(rows):
    queries, positives, negatives, margins = zip(*rows)
    return {
        "q": pad(queries, 32),
        "pos": pad(positives, 64),
        "neg": pad(negatives, 64),
        "margin": torch.tensor(margins),
    }


class Splade(nn.Module):
    def __init__(self, transformer):
        super().__init__()
        self.transformer = transformer

    def forward(self, **tokens):
        out = self.transformer(**tokens).logits
        values, _ = torch.max(torch.log(1 + torch.relu(out)) * tokens["attention_mask"].unsqueeze(-1), dim=1)
        return values


class FLOPS:
    """How many products an inverted index would need; the weight grows with the square of time."""

    def __init__(self, lambda_, T):
        self.lambda_, self.T, self.t = lambda_, T, 0

    def step(self):
        self.t = min(self.t + 1, self.T)
        return self.lambda_ * (self.t / self.T) ** 2

    def __call__(self, representations):
        return torch.sum(torch.mean(torch.abs(representations), dim=0) ** 2)


def to(batch, device):
    return {
        key: to(value, device) if isinstance(value, dict) else value.to(device)
        for key, value in batch.items()
    }


@torch.no_grad()
def mrr(model, loader, device):
    """Each question against all passages of the batch."""
    model.eval()
    ranks, length = [], 0.0
    for batch in loader:
        batch = to(batch, device)
        q = model(**batch["q"])
        d = torch.cat((model(**batch["pos"]), model(**batch["neg"])))
        scores = q @ d.T
        rank = (scores > scores.diagonal().unsqueeze(1)).sum(1) + 1
        ranks += rank.tolist()
        length += (d > 0).sum(1).float().mean().item()
    model.train()
    return sum(1 / r for r in ranks) / len(ranks), length / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nb_iterations", type=int, default=5)
    parser.add_argument("--lambda_q", type=float, default=3e-3)
    parser.add_argument("--lambda_d", type=float, default=1e-3)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--fp16", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    random.seed(503)
    torch.manual_seed(503)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    config = DistilBertConfig(
        vocab_size=VOCABULARY, dim=256, n_layers=4, n_heads=4, hidden_dim=1024, max_position_embeddings=128
    )
    mlm = DistilBertForMaskedLM(config)
    nn.init.constant_(mlm.vocab_projector.bias, -1.0)  # few words count from the start
    model = Splade(mlm).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, 1, args.nb_iterations)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, enabled=args.fp16)
    reg_q, reg_d = FLOPS(args.lambda_q, 3), FLOPS(args.lambda_d, 3)
    train_loader = DataLoader(
        Triplets(args.batch_size * args.nb_iterations), args.batch_size, collate_fn=collate_fn
    )
    val_loader = DataLoader(Triplets(4), batch_size=4, collate_fn=collate_fn)

    moving_avg = None
    for i, batch in enumerate(train_loader):
        model.train()
        batch = to(batch, device)
        with torch.amp.autocast(device.type, dtype=torch.float16, enabled=args.fp16):
            q_rep, d_pos, d_neg = model(**batch["q"]), model(**batch["pos"]), model(**batch["neg"])
            pos_scores = torch.sum(q_rep * d_pos, dim=-1)
            neg_scores = torch.sum(q_rep * d_neg, dim=-1)
            ranking = F.mse_loss((pos_scores - neg_scores).float(), batch["margin"])
            flops_q = reg_q(q_rep) * reg_q.step()
            flops_d = (reg_d(d_pos) * reg_d.step() + reg_d(d_neg) * reg_d.step()) / 2
            loss = ranking + flops_q + flops_d
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        moving_avg = loss.item() if moving_avg is None else 0.99 * moving_avg + 0.01 * loss.item()
        end_of_step(
            inputs=batch,
            activations=[q_rep, d_pos, d_neg, pos_scores, neg_scores, ranking, flops_q, flops_d, loss],
        )
        if i % 2 == 1:
            found, length = mrr(model, val_loader, device)
            print(f"{i}: loss {moving_avg:.3f}, MRR {found:.3f}, {length:.0f} words in a passage")


if __name__ == "__main__":
    main()
