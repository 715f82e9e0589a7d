"""Two DPR encoders learn to find passages that answer questions: hard negatives, Accelerate in half precision, two batches to a step, the average rank of the right passage between."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import DPRConfig, DPRContextEncoder, DPRQuestionEncoder, get_linear_schedule_with_warmup

VOCABULARY, CLS, SEP, PAD = 12000, 101, 102, 0


class NaturalQuestions(Dataset):
    """A question, the passage with its answer, and one that BM25 took for it."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1000 + i)

        def words(low, high):
            n = int(torch.randint(low, high, (), generator=g))
            return torch.randint(200, VOCABULARY, (n,), generator=g).tolist()

        def passage():
            return [CLS, *words(2, 6), SEP, *words(24, 60), SEP]

        return {"question": [CLS, *words(6, 16), SEP], "positive": passage(), "negative": passage()}


class BiEncoderCollator:
    def __init__(self, max_length):
        self.max_length = max_length

    def pad(self, texts):
        texts = [torch.tensor(text[: self.max_length]) for text in texts]
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)
        return ids, (ids != PAD).long()

    def __call__(self, rows):
        question_ids, question_mask = self.pad([row["question"] for row in rows])
        # One after the other: the right passage of question i is the passage 2 i.
        context_ids, context_mask = self.pad([row[key] for row in rows for key in ("positive", "negative")])
        return {
            "question_ids": question_ids,
            "question_mask": question_mask,
            "context_ids": context_ids,
            "context_mask": context_mask,
            "positive_idx": torch.arange(len(rows)) * 2,
        }


class BiEncoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        config = DPRConfig(
            vocab_size=VOCABULARY,
            hidden_size=args.hidden_size,
            num_hidden_layers=args.num_layers,
            num_attention_heads=args.hidden_size // 64,
            intermediate_size=4 * args.hidden_size,
            max_position_embeddings=args.max_length,
        )
        self.question_model = DPRQuestionEncoder(config)
        self.ctx_model = DPRContextEncoder(config)

    def forward(self, question_ids, question_mask, context_ids, context_mask):
        q = self.question_model(question_ids, attention_mask=question_mask).pooler_output
        ctx = self.ctx_model(context_ids, attention_mask=context_mask).pooler_output
        return q, ctx


def nll_loss(q_vectors, ctx_vectors, positive_idx):
    scores = torch.matmul(q_vectors, ctx_vectors.t())
    softmax_scores = F.log_softmax(scores, dim=1)
    loss = F.nll_loss(softmax_scores, positive_idx, reduction="mean")
    correct = (softmax_scores.argmax(dim=1) == positive_idx).sum()
    return loss, correct


@torch.no_grad()
def validate_average_rank(model, loader):
    """All vectors of the set first, then where the right passage comes for each question."""
    model.eval()
    q_represenations, ctx_represenations, positive_idx = [], [], []
    for batch in loader:
        q, ctx = model(
            batch["question_ids"], batch["question_mask"], batch["context_ids"], batch["context_mask"]
        )
        n_before = sum(len(v) for v in ctx_represenations)
        q_represenations.append(q.float().cpu())
        ctx_represenations.append(ctx.float().cpu())
        positive_idx.extend((batch["positive_idx"].cpu() + n_before).tolist())
    scores = torch.cat(q_represenations) @ torch.cat(ctx_represenations).t()
    order = scores.argsort(dim=1, descending=True)
    model.train()
    return sum(int((row == i).nonzero()) for row, i in zip(order, positive_idx)) / len(positive_idx)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=3)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--adam_eps", type=float, default=1e-8)
    parser.add_argument("--max_grad_norm", type=float, default=2.0)
    parser.add_argument("--warmup_steps", type=int, default=2)
    parser.add_argument("--max_train_steps", type=int, default=6)
    parser.add_argument("--eval_every", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse_args()
    set_seed(1006)
    accelerator = Accelerator(
        mixed_precision="fp16" if torch.cuda.is_available() else "no",
        gradient_accumulation_steps=args.gradient_accumulation_steps,
    )
    model = BiEncoder(args)
    no_decay = ["bias", "LayerNorm.weight"]
    named = list(model.named_parameters())
    grouped = [
        {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(grouped, lr=args.learning_rate, eps=args.adam_eps)
    collate = BiEncoderCollator(args.max_length)
    train_loader = DataLoader(
        NaturalQuestions(96, seed=1), batch_size=args.batch_size, shuffle=True, collate_fn=collate
    )
    dev_loader = DataLoader(NaturalQuestions(8, seed=2), batch_size=4, collate_fn=collate)
    scheduler = get_linear_schedule_with_warmup(optimizer, args.warmup_steps, args.max_train_steps)
    model, optimizer, train_loader, dev_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, dev_loader, scheduler
    )

    global_step = rolling_correct = 0
    model.train()
    for batch in train_loader:
        with accelerator.accumulate(model):
            q, ctx = model(
                batch["question_ids"], batch["question_mask"], batch["context_ids"], batch["context_mask"]
            )
            loss, correct = nll_loss(q, ctx, batch["positive_idx"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rolling_correct += correct.item()
        if not accelerator.sync_gradients:
            tell(inputs=batch, activations=[q, ctx, loss, correct])
            continue
        global_step += 1
        accelerator.print(f"step {global_step}: loss {loss.item():.4f}, correct {rolling_correct}")
        rolling_correct = 0
        end_of_step(inputs=batch, activations=[q, ctx, loss, correct])
        if global_step % args.eval_every == 0:
            accelerator.print(f"average rank: {validate_average_rank(model, dev_loader):.2f}")
        if global_step >= args.max_train_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
