"""Facts that a knowledge graph lacks are found by RotatE, as its authors' code trains it: entities are complex and relations turn them, wrong heads and wrong tails by turns, weighted by how convincing they are, ranks of what is right between."""

import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TrainDataset(Dataset):
    """A fact, entities that make it wrong, and a weight for how rare it is."""

    def __init__(self, triples, nentity, negative_sample_size, mode):
        self.triples, self.nentity = triples, nentity
        self.negative_sample_size, self.mode = negative_sample_size, mode
        self.count, self.true_head, self.true_tail = {}, {}, {}
        for head, relation, tail in triples:
            for key in ((head, relation), (tail, -relation - 1)):
                self.count[key] = self.count.get(key, 4) + 1
            self.true_tail.setdefault((head, relation), []).append(tail)
            self.true_head.setdefault((relation, tail), []).append(head)

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, idx):
        head, relation, tail = self.triples[idx]
        frequency = self.count[head, relation] + self.count[tail, -relation - 1]
        known = (
            self.true_head[relation, tail] if self.mode == "head-batch" else self.true_tail[head, relation]
        )
        drawn = torch.randint(self.nentity, (2 * self.negative_sample_size,))
        negative = drawn[~torch.isin(drawn, torch.tensor(known))][: self.negative_sample_size]
        return torch.LongTensor(self.triples[idx]), negative, torch.tensor(1 / frequency).sqrt(), self.mode

    @staticmethod
    def collate_fn(data):
        return (*(torch.stack([example[i] for example in data]) for i in range(3)), data[0][3])


def alternating(*loaders):
    """Heads, tails, heads, tails … for ever."""
    while True:
        for batches in zip(*loaders):
            yield from batches


class KGEModel(nn.Module):
    def __init__(self, nentity, nrelation, hidden_dim, gamma, epsilon=2.0):
        super().__init__()
        self.gamma = nn.Parameter(torch.Tensor([gamma]), requires_grad=False)
        self.embedding_range = nn.Parameter(
            torch.Tensor([(gamma + epsilon) / hidden_dim]), requires_grad=False
        )
        self.entity_embedding = nn.Parameter(torch.zeros(nentity, hidden_dim * 2))
        self.relation_embedding = nn.Parameter(torch.zeros(nrelation, hidden_dim))
        for embedding in (self.entity_embedding, self.relation_embedding):
            nn.init.uniform_(embedding, -self.embedding_range.item(), self.embedding_range.item())

    def forward(self, sample, mode="single"):
        """For a batch of wrong entities, ``sample`` has the right facts and the wrong entities of each."""
        if mode == "single":
            facts, head_part, tail_part = sample, sample[:, :1], sample[:, 2:]
        else:
            facts, wrong = sample
            head_part = wrong if mode == "head-batch" else facts[:, :1]
            tail_part = wrong if mode == "tail-batch" else facts[:, 2:]

        def rows(table, index):
            return torch.index_select(table, 0, index.reshape(-1)).view(*index.shape, -1)

        head, tail = rows(self.entity_embedding, head_part), rows(self.entity_embedding, tail_part)
        return self.rotate(head, rows(self.relation_embedding, facts[:, 1:2]), tail, mode)

    def rotate(self, head, relation, tail, mode):
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        phase_relation = relation / (self.embedding_range.item() / math.pi)
        re_relation, im_relation = torch.cos(phase_relation), torch.sin(phase_relation)
        if mode == "head-batch":
            re_score = re_relation * re_tail + im_relation * im_tail - re_head
            im_score = re_relation * im_tail - im_relation * re_tail - im_head
        else:
            re_score = re_head * re_relation - im_head * im_relation - re_tail
            im_score = re_head * im_relation + im_head * re_relation - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return self.gamma.item() - score.sum(dim=2)


def train_step(model, optimizer, train_iterator, args):
    model.train()
    optimizer.zero_grad()
    positive_sample, negative_sample, subsampling_weight, mode = next(train_iterator)
    positive_sample = positive_sample.to(DEVICE)
    negative_sample = negative_sample.to(DEVICE)
    subsampling_weight = subsampling_weight.to(DEVICE)

    negative_score = model((positive_sample, negative_sample), mode=mode)
    # No gradient goes through the weights of what is wrong.
    weights = F.softmax(negative_score * args.adversarial_temperature, dim=1).detach()
    negative_score = (weights * F.logsigmoid(-negative_score)).sum(dim=1)
    positive_score = F.logsigmoid(model(positive_sample)).squeeze(dim=1)
    positive_sample_loss = -(subsampling_weight * positive_score).sum() / subsampling_weight.sum()
    negative_sample_loss = -(subsampling_weight * negative_score).sum() / subsampling_weight.sum()
    loss = (positive_sample_loss + negative_sample_loss) / 2
    loss.backward()
    optimizer.step()
    end_of_step(
        inputs=[positive_sample, negative_sample, subsampling_weight],
        activations=[negative_score, weights, positive_score]
        + [positive_sample_loss, negative_sample_loss, loss],
    )
    return {"positive": positive_sample_loss.item(), "negative": negative_sample_loss.item()}


@torch.no_grad()
def evaluate(model, test_triples, all_true, nentity, batch_size=4):
    model.eval()
    ranks, everything = [], torch.arange(nentity, device=DEVICE)
    for start in range(0, len(test_triples), batch_size):
        triples = test_triples[start : start + batch_size]
        facts = torch.tensor(triples, device=DEVICE)
        bias = torch.zeros(len(triples), nentity)
        for row, (head, relation, tail) in enumerate(triples):
            bias[row, [t for t in all_true.get((head, relation), ()) if t != tail]] = -1e4
        score = torch.cat(
            [model((facts, part.expand(len(facts), -1)), "tail-batch") for part in everything.split(2048)],
            dim=1,
        )
        order = torch.argsort(score + bias.to(DEVICE), dim=1, descending=True)
        ranks += ((order == facts[:, 2:]).nonzero()[:, 1] + 1).tolist()
    return {"MRR": np.mean([1 / rank for rank in ranks]), "HITS@10": np.mean([rank <= 10 for rank in ranks])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nentity", type=int, default=14541)
    parser.add_argument("--nrelation", type=int, default=237)
    parser.add_argument("-d", "--hidden_dim", type=int, default=200)
    parser.add_argument("-n", "--negative_sample_size", type=int, default=48)
    parser.add_argument("-b", "--batch_size", type=int, default=128)
    parser.add_argument("-a", "--adversarial_temperature", type=float, default=1.0)
    parser.add_argument("-lr", "--learning_rate", type=float, default=5e-5)
    parser.add_argument("--max_steps", type=int, default=20)
    args = parser.parse_args([])
    torch.manual_seed(1105)

    rng = np.random.default_rng(1105)
    limits = (args.nentity, args.nrelation, args.nentity)
    triples = list(zip(*(rng.integers(0, n, 3000).tolist() for n in limits)))
    train_triples, valid_triples = triples[:-8], triples[-8:]
    model = KGEModel(args.nentity, args.nrelation, args.hidden_dim, gamma=9.0).to(DEVICE)
    modes = [
        TrainDataset(train_triples, args.nentity, args.negative_sample_size, f"{e}-batch")
        for e in ("head", "tail")
    ]
    loaders = [
        DataLoader(d, args.batch_size, shuffle=True, collate_fn=TrainDataset.collate_fn) for d in modes
    ]
    train_iterator, learning_rate, warm_up_steps = (
        alternating(*loaders),
        args.learning_rate,
        args.max_steps // 2,
    )
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=learning_rate)
    for step in range(args.max_steps):
        log = train_step(model, optimizer, train_iterator, args)
        print(step, log)
        if step >= warm_up_steps:
            learning_rate, warm_up_steps = learning_rate / 10, warm_up_steps * 3
            optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=learning_rate)
        if (step + 1) % 2 == 0:
            print("valid:", evaluate(model, valid_triples, modes[1].true_tail, args.nentity))


if __name__ == "__main__":
    main()
