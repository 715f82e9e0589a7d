"""A ColBERT learns to find passages word by word: a frozen cross-encoder in half precision says how good they are, autocast and a scaler."""

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    get_linear_schedule_with_warmup,
)

VOCABULARY, PAD, CLS, SEP, MASK, Q_MARK, D_MARK = 14000, 0, 101, 102, 103, 1, 2
PUNCTUATION = list(range(110, 142))
QUERY, NWAY = 20, 3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ColBERT(BertPreTrainedModel):
    def __init__(self, config, dim=128):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.linear = nn.Linear(config.hidden_size, dim, bias=False)
        self.register_buffer("skiplist", torch.tensor([PAD, *PUNCTUATION]), persistent=False)
        self.post_init()

    def query(self, input_ids, attention_mask):
        Q = self.linear(self.bert(input_ids, attention_mask=attention_mask)[0])
        return F.normalize(Q, p=2, dim=2)

    def doc(self, input_ids, attention_mask):
        D = self.linear(self.bert(input_ids, attention_mask=attention_mask)[0])
        mask = ~torch.isin(input_ids, self.skiplist)
        return F.normalize(D, p=2, dim=2) * mask.unsqueeze(2), mask

    def forward(self, Q, D):
        Q = self.query(*Q)
        D, D_mask = self.doc(*D)
        Q_duplicated = Q.repeat_interleave(NWAY, dim=0).contiguous()
        scores = self.score(Q_duplicated, D, D_mask)
        return scores, self.compute_ib_loss(Q, D, D_mask)

    @staticmethod
    def score(Q, D, D_mask):
        scores = D @ Q.permute(0, 2, 1)
        scores = scores.masked_fill(~D_mask.unsqueeze(2), -9999)
        return scores.max(1).values.sum(-1)

    def compute_ib_loss(self, Q, D, D_mask):
        """Passages of the other queries are wrong."""
        scores = (D.unsqueeze(0) @ Q.permute(0, 2, 1).unsqueeze(1)).flatten(0, 1)
        scores = scores.masked_fill(~D_mask.repeat(Q.size(0), 1).unsqueeze(2), -9999)
        scores = scores.max(1).values.sum(-1).view(Q.size(0), -1)
        wanted = torch.arange(0, Q.size(0), device=scores.device) * NWAY
        others = torch.ones_like(scores, dtype=torch.bool)
        for row in range(Q.size(0)):
            others[row, row * NWAY + 1 : (row + 1) * NWAY] = False
        return F.cross_entropy(scores.masked_fill(~others, -9999), wanted)


class Triples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        query = torch.randint(200, VOCABULARY, (int(torch.randint(4, 12, ())),))
        passages = [torch.randint(105, VOCABULARY, (int(n),)) for n in torch.randint(24, 56, (NWAY,))]
        return query, passages


def tensorize(rows):
    """Queries are filled with [MASK], which are attended to; the teacher reads both in one."""
    queries = torch.full((len(rows), QUERY), MASK)
    pairs, passages = [], []
    for row, (query, found) in enumerate(rows):
        marked = torch.cat((torch.tensor([CLS, Q_MARK]), query, torch.tensor([SEP])))
        queries[row, : len(marked)] = marked
        for passage in found:
            passages.append(torch.cat((torch.tensor([CLS, D_MARK]), passage, torch.tensor([SEP]))))
            pairs.append(
                torch.cat((torch.tensor([CLS]), query, torch.tensor([SEP]), passage, torch.tensor([SEP])))
            )
    passages = nn.utils.rnn.pad_sequence(passages, batch_first=True, padding_value=PAD)
    pairs = nn.utils.rnn.pad_sequence(pairs, batch_first=True, padding_value=PAD)
    return (queries, torch.ones_like(queries)), (passages, (passages != PAD).long()), pairs


def bert_config(width, n_layers, **others):
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=n_layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=96,
        **others,
    )


def main(n_steps=6, lr=1e-5):
    torch.manual_seed(404)
    colbert = ColBERT(bert_config(256, 4)).to(DEVICE)
    teacher = BertForSequenceClassification(bert_config(128, 3, num_labels=1)).half().eval().to(DEVICE)
    teacher.requires_grad_(False)
    colbert.train()
    optimizer = torch.optim.AdamW(colbert.parameters(), lr=lr, eps=1e-8)
    optimizer.zero_grad()
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=n_steps)
    scaler = torch.amp.GradScaler(DEVICE.type)
    reader = DataLoader(Triples(), batch_size=3, collate_fn=tensorize, drop_last=True)
    train_loss = None
    for batch_idx, (queries, passages, pairs) in zip(range(n_steps), reader):
        queries = [each.to(DEVICE, non_blocking=True) for each in queries]
        passages = [each.to(DEVICE, non_blocking=True) for each in passages]
        pairs = pairs.to(DEVICE, non_blocking=True)
        with torch.inference_mode():
            target_scores = teacher(pairs, attention_mask=(pairs != PAD).long()).logits.view(-1, NWAY)
            target_scores = F.log_softmax(target_scores.float(), dim=-1)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            scores, ib_loss = colbert(queries, passages)
            log_scores = F.log_softmax(scores.view(-1, NWAY), dim=-1)
            loss = F.kl_div(log_scores, target_scores.clone(), reduction="batchmean", log_target=True)
            loss = loss + ib_loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(colbert.parameters(), 2.0, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        this_loss = loss.item()
        train_loss = this_loss if train_loss is None else 0.999 * train_loss + 0.001 * this_loss
        print(f"#> {batch_idx} {train_loss:.4f} (this {this_loss:.4f}, in-batch {ib_loss.item():.4f})")
        end_of_step(
            inputs=[queries, passages, pairs, target_scores],
            activations=[scores, log_scores, ib_loss, loss],
        )


if __name__ == "__main__":
    main()
