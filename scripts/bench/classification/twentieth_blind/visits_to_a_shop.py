"""GRU4Rec recommends the next product within a visit to a shop: visits side by side with carried hidden states, shared negatives, BPR-max, Adagrad."""

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn

torch.manual_seed(2)
device = "cuda"
PRODUCTS, BATCH, NEGATIVES, WIDTH = 24000, 192, 2048, 224


class Visits:
    """Visits in parallel: when one ends, another takes its place in the batch."""

    def __init__(self, count=3000, seed=0):
        generator = np.random.default_rng(seed)
        self.clicks = [generator.zipf(1.3, size=generator.integers(2, 15)) % PRODUCTS for _ in range(count)]

    def __iter__(self):
        order = np.random.permutation(len(self.clicks))
        current, following = list(order[:BATCH]), BATCH
        position = [0] * BATCH
        fresh = np.ones(BATCH, bool)
        while True:
            now = np.array([self.clicks[v][p] for v, p in zip(current, position)])
            after = np.array([self.clicks[v][p + 1] for v, p in zip(current, position)])
            yield torch.from_numpy(now), torch.from_numpy(after), torch.from_numpy(fresh.copy())
            fresh[:] = False
            for slot in range(BATCH):
                position[slot] += 1
                if position[slot] + 1 >= len(self.clicks[current[slot]]):
                    if following >= len(order):
                        return
                    current[slot], position[slot], fresh[slot] = order[following], 0, True
                    following += 1


class GRU4Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.products = nn.Embedding(PRODUCTS, WIDTH)
        self.bias = nn.Embedding(PRODUCTS, 1)
        self.drop_in, self.drop_hidden = nn.Dropout(0.1), nn.Dropout(0.3)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2)
        nn.init.uniform_(self.products.weight, -0.05, 0.05)
        nn.init.zeros_(self.bias.weight)

    def forward(self, now, hidden, candidates):
        x = self.drop_in(self.products(now))
        out, hidden = self.gru(x[None], hidden)
        scores = self.drop_hidden(out[0]) @ self.products(candidates).T + self.bias(candidates).T
        return scores, hidden


def bpr_max(scores, regularization=0.5):
    positive = scores.diagonal()[:, None]
    own = torch.eye(len(scores), scores.shape[1], device=scores.device, dtype=torch.bool)
    weight = F.softmax(scores.masked_fill(own, float("-inf")), dim=1)
    better = (weight * torch.sigmoid(positive - scores)).sum(1)
    return (-torch.log(better + 1e-24) + regularization * (weight * scores**2).sum(1)).mean()


visits = Visits()
popularity = np.bincount(np.concatenate(visits.clicks), minlength=PRODUCTS).astype(np.float64) ** 0.5
cumulative = torch.from_numpy(np.cumsum(popularity) / popularity.sum()).float()
model = GRU4Rec().to(device)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.07, eps=1e-6)
cumulative = cumulative.to(device)

hidden = torch.zeros(2, BATCH, WIDTH, device=device)
losses = []
for now, after, fresh in visits:
    now, after, fresh = now.to(device), after.to(device), fresh.to(device)
    sampled = torch.searchsorted(cumulative, torch.rand(NEGATIVES, device=device)).clamp_(max=PRODUCTS - 1)
    candidates = torch.cat([after, sampled])
    hidden = hidden.masked_fill(fresh[None, :, None], 0.0)
    scores, hidden = model(now, hidden, candidates)
    loss = bpr_max(scores)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hidden = hidden.detach()
    losses.append(loss.item())
    end_of_step(
        inputs=[now, after, fresh, sampled, candidates, cumulative], activations=[scores, loss, hidden]
    )
print(sum(losses) / len(losses))
