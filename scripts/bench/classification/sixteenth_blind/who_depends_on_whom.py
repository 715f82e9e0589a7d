"""A biaffine dependency parser on DeBERTa is trained on a treebank: Lightning Fabric in bf16-mixed, NAdam with two rates, exponential decay."""

import random
from collections import Counter

import conllu
import lightning as L
import torch
from programs import end_of_step
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import DebertaV2Config, DebertaV2Model

RELATIONS = """root nsubj obj iobj csubj ccomp xcomp obl vocative expl dislocated advcl advmod discourse aux cop mark nmod
appos nummod acl amod det clf case conj cc fixed flat compound list parataxis orphan goeswith reparandum punct dep""".split()
RELATION_IDS = {name: index for index, name in enumerate(RELATIONS)}
TAGS = ["NOUN", "VERB", "ADJ", "ADV", "DET", "ADP", "PRON", "PROPN", "CCONJ", "PUNCT"]
VOCABULARY = 9000
CLS, PAD = 1, 0


def treebank(sentences, seed):
    """CoNLL-U text with random (projective enough) trees over made-up words."""
    rng = random.Random(seed)
    blocks = []
    for number in range(sentences):
        length = rng.randint(12, 48)
        root = rng.randint(1, length)
        lines = [f"# sent_id = {seed}-{number}"]
        for position in range(1, length + 1):
            form = "".join(rng.choices("abcdefghilmnoprstuv", k=rng.randint(2, 11)))
            if position == root:
                head, relation = 0, "root"
            else:
                near = [
                    p for p in range(max(1, position - 4), min(length, position + 4) + 1) if p != position
                ]
                head, relation = rng.choice([*near, root]), rng.choice(RELATIONS[1:])
            lines.append(f"{position}\t{form}\t{form}\t{rng.choice(TAGS)}\t_\t_\t{head}\t{relation}\t_\t_")
        blocks.append("\n".join(lines))
    return conllu.parse("\n\n".join(blocks) + "\n\n")


def pieces(word):
    """A hashed tokenizer: a word is cut into pieces of at most four letters."""
    cut = [word[i : i + 4] for i in range(0, len(word), 4)]
    return [2 + sum(ord(c) * 31**k for k, c in enumerate(piece)) % (VOCABULARY - 2) for piece in cut]


def collate(sentences):
    rows = []
    for sentence in sentences:
        ids, words = [CLS], [0]
        for token in sentence:
            words.append(len(ids))
            ids += pieces(token["form"])
        heads = [-100] + [token["head"] for token in sentence]
        relations = [-100] + [RELATION_IDS[token["deprel"]] for token in sentence]
        rows.append((ids, words, heads, relations))

    def padded(column, value):
        tensors = [torch.tensor(row[column]) for row in rows]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    ids = padded(0, PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "words": padded(1, 0),
        "word_mask": padded(2, -1) != -1,
        "heads": padded(2, -100),
        "relations": padded(3, -100),
    }


class Biaffine(nn.Module):
    def __init__(self, size, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, size + 1, size + 1))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, dependents, heads):
        dependents = F.pad(dependents, (0, 1), value=1.0)
        heads = F.pad(heads, (0, 1), value=1.0)
        return torch.einsum("bxi,oij,byj->boxy", dependents, self.weight, heads)


def projection(size, out):
    return nn.Sequential(nn.Linear(size, out), nn.LeakyReLU(0.1), nn.Dropout(0.33))


class Parser(nn.Module):
    def __init__(self, encoder, arc_size=400, relation_size=128):
        super().__init__()
        size = encoder.config.hidden_size
        self.encoder = encoder
        self.dropout = nn.Dropout(0.33)
        self.arc_dependent, self.arc_head = projection(size, arc_size), projection(size, arc_size)
        self.relation_dependent, self.relation_head = (
            projection(size, relation_size),
            projection(size, relation_size),
        )
        self.arcs = Biaffine(arc_size, 1)
        self.relations = Biaffine(relation_size, len(RELATIONS))

    def forward(self, input_ids, attention_mask, words, word_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        hidden = hidden.gather(1, words.unsqueeze(-1).expand(-1, -1, hidden.size(-1)))
        hidden = self.dropout(hidden)
        arcs = self.arcs(self.arc_dependent(hidden), self.arc_head(hidden)).squeeze(1)
        relations = self.relations(self.relation_dependent(hidden), self.relation_head(hidden)).permute(
            0, 2, 3, 1
        )
        return arcs.masked_fill(~word_mask.unsqueeze(1), -1e4), relations


def loss_of(arcs, relations, heads, gold):
    arc_loss = F.cross_entropy(arcs.flatten(0, 1), heads.flatten(), ignore_index=-100)
    index = heads.clamp(min=0)[:, :, None, None].expand(-1, -1, 1, relations.size(-1))
    of_gold_arcs = relations.gather(2, index).squeeze(2)
    return arc_loss + F.cross_entropy(of_gold_arcs.flatten(0, 1), gold.flatten(), ignore_index=-100)


@torch.no_grad()
def evaluate(fabric, parser, loader):
    parser.eval()
    counts = Counter()
    for batch in loader:
        heads, gold = batch.pop("heads"), batch.pop("relations")
        arcs, relations = parser(**batch)
        found = arcs.argmax(-1)
        labels = (
            relations.gather(2, found[:, :, None, None].expand(-1, -1, 1, relations.size(-1)))
            .squeeze(2)
            .argmax(-1)
        )
        counts["uas"] += ((found == heads) & (heads != -100)).sum().item()
        counts["las"] += ((found == heads) & (labels == gold) & (heads != -100)).sum().item()
        counts["all"] += (heads != -100).sum().item()
    fabric.print(f"UAS {counts['uas'] / counts['all']:.3f} LAS {counts['las'] / counts['all']:.3f}")
    parser.train()


def main():
    fabric = L.Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.seed_everything(8, verbose=False)
    fabric.launch()

    train_loader = DataLoader(treebank(80, 1), batch_size=8, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(treebank(12, 2), batch_size=6, collate_fn=collate)
    train_loader, dev_loader = fabric.setup_dataloaders(train_loader, dev_loader)

    config = DebertaV2Config(
        vocab_size=VOCABULARY,
        hidden_size=384,
        num_hidden_layers=3,
        num_attention_heads=6,
        intermediate_size=1536,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=128,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
    )
    parser = Parser(DebertaV2Model(config))
    pretrained = list(parser.encoder.parameters())
    new = [p for name, p in parser.named_parameters() if not name.startswith("encoder.")]
    optimizer = torch.optim.NAdam(
        [{"params": pretrained, "lr": 5e-5}, {"params": new, "lr": 1e-3}], betas=(0.9, 0.9), eps=1e-12
    )
    parser, optimizer = fabric.setup(parser, optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.75 ** (1 / 5000))

    step = 0
    best = float("inf")
    for epoch in range(2):
        for batch in train_loader:
            heads, gold = batch["heads"], batch["relations"]
            arcs, relations = parser(
                batch["input_ids"], batch["attention_mask"], batch["words"], batch["word_mask"]
            )
            loss = loss_of(arcs, relations, heads, gold)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(parser, optimizer, max_norm=5.0)
            optimizer.step()
            scheduler.step()
            step += 1
            best = min(best, loss.item())
            if step % 2 == 0:
                fabric.print(f"epoch {epoch} step {step} loss {loss.item():.3f} best {best:.3f}")
                evaluate(fabric, parser, dev_loader)
            end_of_step(inputs=batch, activations=[arcs, relations, loss])
        fabric.save("parser.ckpt", {"parser": parser, "optimizer": optimizer, "step": step})


if __name__ == "__main__":
    main()
