"""A Nomic BERT learns which answers of a help page fit a question, vectors that may be cut short (Matryoshka): a frozen, larger guide says which others of the batch are no wrong answers (GIST), half precision with a scaler, an own Lion, nDCG at every length between."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset
from transformers import MPNetConfig, MPNetModel, NomicBertConfig, NomicBertModel

VOCAB_SIZE, PAD, CLS, SEP = 12000, 0, 101, 102
MATRYOSHKA_DIMS = (320, 192, 128, 64)
QUERY_PREFIX, DOCUMENT_PREFIX = [300, 301, 302], [310, 311, 302]
use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")


class HelpPages(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)

        def text(low, high):
            length = int(torch.randint(low, high, (), generator=g))
            return torch.randint(400, VOCAB_SIZE, (length,), generator=g).tolist()

        self.pairs = [(text(4, 20), text(20, 70)) for _ in range(n)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def tokenize(texts, prefix, max_length=64):
    rows = [[CLS, *prefix, *text][: max_length - 1] + [SEP] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def smart_batching_collate(pairs):
    questions, answers = zip(*pairs, strict=True)
    return tokenize(questions, QUERY_PREFIX), tokenize(answers, DOCUMENT_PREFIX)


def batch_to_device(features):
    return {key: value.to(device) for key, value in features.items()}


def mean_pooling(model, features):
    hidden = model(**features).last_hidden_state
    mask = features["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


class Lion(torch.optim.Optimizer):
    """Only the sign of an interpolated momentum moves a weight."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = exp_avg.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class GISTEmbedLoss(torch.nn.Module):
    def __init__(self, guide, temperature=0.05):
        super().__init__()
        self.guide, self.temperature = guide, temperature

    @torch.no_grad()
    def guided(self, question, answer):
        """Similarities as the guide sees them; whatever is closer than the right pair is left out."""
        q = F.normalize(mean_pooling(self.guide, question), dim=-1)
        a = F.normalize(mean_pooling(self.guide, answer), dim=-1)
        between = q @ a.T
        right = between.diagonal()[:, None]
        return [between > right, q @ q.T > right, a @ a.T > right]

    def forward(self, questions, answers, left_out):
        pairs = ((questions, answers), (questions, questions), (answers, answers))
        scores = []
        for (x, y), mask in zip(pairs, left_out, strict=True):
            similarity = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T
            if x is y:
                mask = mask | torch.eye(len(x), dtype=torch.bool, device=x.device)
            scores.append(similarity.float().masked_fill(mask, -torch.inf) / self.temperature)
        return F.cross_entropy(torch.cat(scores, dim=1), torch.arange(len(questions), device=device))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    questions, answers = [], []
    for question, answer in loader:
        with torch.autocast(device.type, dtype=torch.float16, enabled=use_cuda):
            questions.append(mean_pooling(model, batch_to_device(question)).float())
            answers.append(mean_pooling(model, batch_to_device(answer)).float())
    questions, answers = torch.cat(questions), torch.cat(answers)
    found = {}
    for dim in MATRYOSHKA_DIMS:
        scores = F.normalize(questions[:, :dim], dim=-1) @ F.normalize(answers[:, :dim], dim=-1).T
        rank = (scores > scores.diagonal()[:, None]).sum(1) + 1
        found[dim] = round((1 / torch.log2(rank + 1.0)).mean().item(), 3)
    model.train()
    return found


def main():
    torch.manual_seed(1306)
    model = NomicBertModel(
        NomicBertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=320,
            intermediate_size=960,
            num_hidden_layers=5,
            num_attention_heads=5,
            max_position_embeddings=128,
        ),
        add_pooling_layer=False,
    ).to(device)
    guide = MPNetModel(
        MPNetConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=4,
            num_attention_heads=6,
            max_position_embeddings=130,
            pad_token_id=PAD,
        ),
        add_pooling_layer=False,
    )
    guide = guide.to(device, torch.float16 if use_cuda else torch.float32).eval().requires_grad_(False)
    loss_model = GISTEmbedLoss(guide)
    train_loader = DataLoader(
        HelpPages(48, 1), batch_size=8, shuffle=True, collate_fn=smart_batching_collate, drop_last=True
    )
    dev_loader = DataLoader(HelpPages(8, 2), batch_size=4, collate_fn=smart_batching_collate)
    optimizer = Lion(model.parameters(), lr=2e-5, weight_decay=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=use_cuda)
    model.train()
    step = 0
    for epoch in range(2):
        for question, answer in train_loader:
            question, answer = batch_to_device(question), batch_to_device(answer)
            with torch.autocast(device.type, dtype=torch.float16, enabled=use_cuda):
                left_out = loss_model.guided(question, answer)
                q, a = mean_pooling(model, question), mean_pooling(model, answer)
                losses = [loss_model(q[:, :d], a[:, :d], left_out) for d in MATRYOSHKA_DIMS]
                loss = torch.stack(losses).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
            print(f"epoch {epoch} step {step}: {loss.item():.3f}")
            end_of_step(inputs=[question, answer, left_out], activations=[q, a, losses, loss])
            if step % 2 == 0:
                print(f"  nDCG {evaluate(model, dev_loader)}")


if __name__ == "__main__":
    main()
