"""Two towers retrieve films for people: embeddings of ids and histories, a softmax over the batch, Adagrad, an index of all."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_USERS, N_ITEMS, N_GENRES, LONGEST = 24000, 16000, 40, 30


class Views(Dataset):
    def __init__(self, n):
        self.users = torch.randint(N_USERS, (n,))
        self.items = torch.randint(1, N_ITEMS, (n,))
        self.histories = [
            torch.randint(1, N_ITEMS, (int(k),)) for k in torch.randint(3, LONGEST, (n,))
        ]

    def __len__(self):
        return len(self.users)

    def __getitem__(self, index):
        return self.users[index], self.histories[index], self.items[index]


def collate(rows):
    users, histories, items = zip(*rows)
    offsets = torch.tensor([0, *(len(h) for h in histories[:-1])]).cumsum(0)
    return torch.stack(users), torch.cat(histories), offsets, torch.stack(items)


def mlp(*widths):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


class TwoTowers(nn.Module):
    def __init__(self, genres, dim=48, out=64, temperature=0.07):
        super().__init__()
        self.register_buffer("genres", genres)
        self.user_id = nn.Embedding(N_USERS, dim)
        self.history = nn.EmbeddingBag(N_ITEMS, dim, mode="mean")
        self.item_id = nn.Embedding(N_ITEMS, dim)
        self.genre = nn.Embedding(N_GENRES, 16)
        self.user_tower = mlp(dim * 2, 256, 128, out)
        self.item_tower = mlp(dim + 16, 256, 128, out)
        self.temperature = temperature

    def of_users(self, users, histories, offsets):
        x = torch.cat((self.user_id(users), self.history(histories, offsets)), dim=1)
        return F.normalize(self.user_tower(x), dim=1)

    def of_items(self, items):
        x = torch.cat((self.item_id(items), self.genre(self.genres[items])), dim=1)
        return F.normalize(self.item_tower(x), dim=1)

    def forward(self, users, histories, offsets, items, log_q):
        scores = (
            self.of_users(users, histories, offsets) @ self.of_items(items).T / self.temperature
        )
        scores = scores - log_q[items]
        # Another person's film that is the same one is no wrong answer.
        same = items[:, None] == items[None, :]
        same.fill_diagonal_(False)
        return scores.masked_fill(same, torch.finfo(scores.dtype).min)


@torch.no_grad()
def recall(model, batch, k=100, chunk=4000):
    model.eval()
    index = torch.cat(
        [model.of_items(part) for part in torch.arange(N_ITEMS, device="cuda").split(chunk)]
    )
    users, histories, offsets, items = batch
    found = (model.of_users(users, histories, offsets) @ index.T).topk(k, dim=1).indices
    model.train()
    return (found == items[:, None]).any(1).float().mean().item()


def main(n_epochs=2, batch_size=512):
    torch.manual_seed(116)
    model = TwoTowers(torch.randint(N_GENRES, (N_ITEMS,))).cuda()
    log_q = torch.log_softmax(torch.randn(N_ITEMS), 0).cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05, initial_accumulator_value=0.1)
    loader = DataLoader(Views(2048), batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    model.train()
    for epoch in range(n_epochs):
        for number, batch in enumerate(loader):
            batch = [part.cuda(non_blocking=True) for part in batch]
            optimizer.zero_grad(set_to_none=False)
            scores = model(*batch, log_q)
            loss = F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch}, batch {number}: {loss.item():.3f}")
            end_of_step(inputs=[batch, log_q], activations=[scores, loss])
        print(f"epoch {epoch}: recall {recall(model, batch):.4f}")


if __name__ == "__main__":
    main()
