"""Topics of parliamentary debates: a ProdLDA in Pyro, stochastic variational inference with clipped Adam, all counts on the GPU."""

import pyro
import pyro.distributions as dist
import torch
from programs import end_of_step
from pyro.infer import SVI, TraceMeanField_ELBO
from torch import nn
from torch.nn import functional as F

torch.manual_seed(9)
pyro.set_rng_seed(9)
device = torch.device("cuda")

VOCABULARY, SPEECHES, TOPICS = 6000, 1600, 40


class Encoder(nn.Module):
    def __init__(self, vocabulary, topics, hidden, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.fc1 = nn.Linear(vocabulary, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fcmu = nn.Linear(hidden, topics)
        self.fclv = nn.Linear(hidden, topics)
        self.bnmu = nn.BatchNorm1d(topics, affine=False)
        self.bnlv = nn.BatchNorm1d(topics, affine=False)

    def forward(self, inputs):
        h = F.softplus(self.fc1(inputs))
        h = self.drop(F.softplus(self.fc2(h)))
        return self.bnmu(self.fcmu(h)), (0.5 * self.bnlv(self.fclv(h))).exp()


class Decoder(nn.Module):
    def __init__(self, vocabulary, topics, dropout):
        super().__init__()
        self.beta = nn.Linear(topics, vocabulary, bias=False)
        self.bn = nn.BatchNorm1d(vocabulary, affine=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, inputs):
        return F.softmax(self.bn(self.beta(self.drop(inputs))), dim=1)


class ProdLDA(nn.Module):
    def __init__(self, vocabulary, topics, hidden=400, dropout=0.2):
        super().__init__()
        self.topics = topics
        self.encoder = Encoder(vocabulary, topics, hidden, dropout)
        self.decoder = Decoder(vocabulary, topics, dropout)

    def model(self, speeches):
        pyro.module("decoder", self.decoder)
        with pyro.plate("documents", speeches.shape[0]):
            mean = speeches.new_zeros((speeches.shape[0], self.topics))
            scale = speeches.new_ones((speeches.shape[0], self.topics))
            theta = F.softmax(pyro.sample("logtheta", dist.Normal(mean, scale).to_event(1)), -1)
            counts = self.decoder(theta)
            pyro.sample("obs", dist.Multinomial(int(speeches.sum(-1).max()), counts), obs=speeches)

    def guide(self, speeches):
        pyro.module("encoder", self.encoder)
        with pyro.plate("documents", speeches.shape[0]):
            mean, scale = self.encoder(speeches)
            pyro.sample("logtheta", dist.Normal(mean, scale).to_event(1))


words = torch.multinomial(
    1 / torch.arange(1, VOCABULARY + 1).float().repeat(SPEECHES, 1), 150, replacement=True
)
counts = torch.zeros(SPEECHES, VOCABULARY).scatter_add_(1, words, torch.ones(words.shape)).to(device)

pyro.clear_param_store()
prodlda = ProdLDA(VOCABULARY, TOPICS).to(device)
optimizer = pyro.optim.ClippedAdam({"lr": 1e-3, "betas": (0.95, 0.999), "clip_norm": 10.0, "lrd": 0.9999})
svi = SVI(prodlda.model, prodlda.guide, optimizer, loss=TraceMeanField_ELBO())

for epoch in range(4):
    prodlda.train()
    running = 0.0
    order = torch.randperm(SPEECHES)
    for start in range(0, SPEECHES, 400):
        batch = counts[order[start : start + 400].to(device)]
        running += svi.step(batch) / batch.size(0)
        end_of_step(inputs=[counts, batch])
    print(f"epoch {epoch}: {running:.1f}")
