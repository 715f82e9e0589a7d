"""A LightGCN recommends songs: embeddings spread over a sparse graph of people and songs, pairs ranked by BPR, recall between."""

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

N_USERS, N_SONGS, DIM, N_LAYERS = 12000, 18000, 64, 3
BATCH, DECAY, K = 2048, 1e-4, 20


def make_listens(rng, n=160_000):
    """Who heard which song; few songs are heard by most."""
    users = rng.integers(N_USERS, size=n)
    songs = np.minimum(rng.zipf(1.3, size=n) - 1 + rng.integers(0, 3000, size=n), N_SONGS - 1)
    pairs = np.unique(np.stack((users, songs), axis=1), axis=0)
    rng.shuffle(pairs)
    cut = int(len(pairs) * 0.9)
    return pairs[:cut], pairs[cut:]


def normalized_adjacency(pairs, device):
    """D^-1/2 A D^-1/2 of the graph with both kinds of nodes."""
    users = torch.from_numpy(pairs[:, 0])
    songs = torch.from_numpy(pairs[:, 1]) + N_USERS
    index = torch.stack((torch.cat((users, songs)), torch.cat((songs, users))))
    degree = torch.bincount(index[0], minlength=N_USERS + N_SONGS).float()
    d_inv_sqrt = degree.pow(-0.5)
    d_inv_sqrt[degree == 0] = 0
    values = d_inv_sqrt[index[0]] * d_inv_sqrt[index[1]]
    graph = torch.sparse_coo_tensor(index, values, (N_USERS + N_SONGS,) * 2)
    return graph.coalesce().to(device)


class LightGCN(nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.user_embedding = nn.Embedding(N_USERS, DIM)
        self.item_embedding = nn.Embedding(N_SONGS, DIM)
        nn.init.normal_(self.user_embedding.weight, std=0.1)
        nn.init.normal_(self.item_embedding.weight, std=0.1)
        self.graph = graph

    def computer(self):
        all_emb = torch.cat([self.user_embedding.weight, self.item_embedding.weight])
        embs = [all_emb]
        for _ in range(N_LAYERS):
            all_emb = torch.sparse.mm(self.graph, all_emb)
            embs.append(all_emb)
        light_out = torch.stack(embs, dim=1).mean(dim=1)
        return light_out.split([N_USERS, N_SONGS])

    def bpr_loss(self, users, pos, neg):
        all_users, all_items = self.computer()
        users_emb, pos_emb, neg_emb = all_users[users], all_items[pos], all_items[neg]
        reg_loss = (
            self.user_embedding(users).norm(2).pow(2)
            + self.item_embedding(pos).norm(2).pow(2)
            + self.item_embedding(neg).norm(2).pow(2)
        ) / (2 * len(users))
        pos_scores = (users_emb * pos_emb).sum(dim=1)
        neg_scores = (users_emb * neg_emb).sum(dim=1)
        return F.softplus(neg_scores - pos_scores).mean(), reg_loss

    def forward(self, users):
        all_users, all_items = self.computer()
        return torch.sigmoid(all_users[users.long()] @ all_items.t())


@torch.no_grad()
def recall(model, train, test, device, batch_size=256, n_batches=2):
    model.eval()
    found = wanted = 0
    heard = {}
    for user, song in train:
        heard.setdefault(int(user), []).append(int(song))
    later = {}
    for user, song in test:
        later.setdefault(int(user), set()).add(int(song))
    people = list(later)[: batch_size * n_batches]
    for start in range(0, len(people), batch_size):
        some = people[start : start + batch_size]
        rating = model(torch.tensor(some, device=device))
        for row, user in enumerate(some):
            rating[row, heard.get(user, [])] = -1
        top = rating.topk(K).indices.cpu().tolist()
        found += sum(len(later[user] & set(songs)) for user, songs in zip(some, top))
        wanted += sum(len(later[user]) for user in some)
    model.train()
    return found / wanted


def main():
    rng = np.random.default_rng(305)
    torch.manual_seed(305)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = make_listens(rng)
    graph = normalized_adjacency(train, device)
    model = LightGCN(graph).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        rng.shuffle(train)
        users = torch.from_numpy(train[:, 0].copy()).long().to(device)
        pos_items = torch.from_numpy(train[:, 1].copy()).long().to(device)
        neg_items = torch.randint(N_SONGS, (len(train),), device=device)
        average = 0.0
        for i, start in enumerate(range(0, BATCH * 3, BATCH)):
            chosen = slice(start, start + BATCH)
            bpr, reg = model.bpr_loss(users[chosen], pos_items[chosen], neg_items[chosen])
            loss = bpr + DECAY * reg
            opt.zero_grad()
            loss.backward()
            opt.step()
            average += loss.cpu().item()
            end_of_step(
                inputs=[users, pos_items, neg_items, graph.indices(), graph.values()],
                activations=[bpr, reg, loss],
            )
        print(f"epoch {epoch}: loss {average / 3:.4f}, recall@{K} {recall(model, train, test, device):.4f}")


if __name__ == "__main__":
    main()
