"""word2vec's skip-gram with negative sampling: sparse gradients and SparseAdam."""

import torch
import torch.nn.functional as F
from own_count import print_count
from torch import nn


class SkipGram(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.centre = nn.Embedding(words, size, sparse=True)
        self.context = nn.Embedding(words, size, sparse=True)

    def forward(self, centre, context, negative):
        v = self.centre(centre)
        score = (v * self.context(context)).sum(1)
        noise = torch.bmm(self.context(negative), v.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(score) + F.logsigmoid(-noise).sum(1)).mean()


torch.manual_seed(3)
model = SkipGram(30_000, 100).cuda()
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
for _ in range(6):
    centre, context = torch.randint(0, 30_000, (2, 512)).cuda()
    negative = torch.randint(0, 30_000, (512, 5)).cuda()
    optimizer.zero_grad()
    loss = model(centre, context, negative)
    loss.backward()
    optimizer.step()
    print_count(model, optimizer)
    print(f"{loss.item():.3f}")
