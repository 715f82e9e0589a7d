"""An MPNet learns vectors of sentences: others of the batch are wrong, losses at several widths, Accelerate in bfloat16."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import MPNetConfig, MPNetModel, get_linear_schedule_with_warmup

VOCABULARY, PADDING, WIDTHS = 16000, 1, (256, 128, 64, 32)


class Triplets(Dataset):
    """A question, a sentence that answers it, and one that only seems to."""

    def __init__(self, n):
        self.lengths = torch.randint(8, 64, (n, 3)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return [torch.randint(5, VOCABULARY, (n,)) for n in self.lengths[index]]


def collate(rows):
    columns = []
    for texts in zip(*rows):
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PADDING)
        columns.append({"input_ids": ids, "attention_mask": (ids != PADDING).long()})
    return columns


class SentenceEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = MPNetModel(config, add_pooling_layer=False)

    def forward(self, input_ids, attention_mask):
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        return (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


class MatryoshkaRankingLoss(nn.Module):
    def __init__(self, widths=WIDTHS, scale=20.0):
        super().__init__()
        self.widths, self.scale = widths, scale

    def ranking(self, anchors, candidates):
        scores = self.scale * F.normalize(anchors, dim=1) @ F.normalize(candidates, dim=1).T
        return F.cross_entropy(scores, torch.arange(len(anchors), device=scores.device))

    def forward(self, embeddings):
        anchors, candidates = embeddings[0], torch.cat(embeddings[1:])
        loss = 0.0
        for width in self.widths:
            loss = loss + self.ranking(anchors[:, :width], candidates[:, :width])
        return loss / len(self.widths)


@torch.no_grad()
def evaluate(accelerator, model, loader):
    """How often the right sentence is the nearest one."""
    model.eval()
    hits = n = 0
    for columns in loader:
        questions, answers, _ = (F.normalize(model(**column).float(), dim=1) for column in columns)
        hits += ((questions @ answers.T).argmax(1) == torch.arange(len(answers), device=answers.device)).sum()
        n += len(answers)
    model.train()
    accelerator.print(f"recall@1 {hits.item() / n:.3f}")


def main():
    set_seed(206)
    accelerator = Accelerator(mixed_precision="bf16")
    config = MPNetConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=130,
        pad_token_id=PADDING,
    )
    model, loss_function = SentenceEncoder(config), MatryoshkaRankingLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 100)
    loader = DataLoader(Triplets(96), batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)
    eval_loader = DataLoader(Triplets(16), batch_size=8, collate_fn=collate)
    model, optimizer, loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, loader, eval_loader, scheduler
    )
    model.train()
    for step, columns in enumerate(loader):
        optimizer.zero_grad()
        embeddings = [model(**column) for column in columns]
        loss = loss_function(embeddings)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        accelerator.print(f"step {step}: loss {loss.item():.3f}")
        end_of_step(inputs=columns, activations=[embeddings, loss])
        if step % 2 == 1:
            evaluate(accelerator, model, eval_loader)


if __name__ == "__main__":
    main()
