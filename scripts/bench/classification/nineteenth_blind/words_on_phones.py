"""Federated next-word prediction on phones, simulated on one GPU: an LSTM is copied to four clients a round, each trains with SGD, the server averages their changes and steps with Adam."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(17)
device = "cuda"
VOCABULARY, ROUNDS, PER_ROUND = 10_004, 20, 4


class NextWord(nn.Module):
    """The recurrent model of the federated Stack Overflow benchmark."""

    def __init__(self, embedding=96, hidden=670):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True)
        self.bottleneck = nn.Linear(hidden, embedding)
        self.output = nn.Linear(embedding, VOCABULARY)

    def forward(self, words):
        states, _ = self.lstm(self.embedding(words))
        return self.output(self.bottleneck(states))


class Phone:
    def __init__(self, number):
        generator = torch.Generator().manual_seed(number)
        n = int(torch.randint(40, 100, (1,), generator=generator))
        words = torch.randint(4, VOCABULARY, (n, 21), generator=generator)
        lengths = torch.randint(8, 21, (n, 1), generator=generator)
        words[torch.arange(21)[None] > lengths] = 0
        self.loader = DataLoader(TensorDataset(words), batch_size=16, shuffle=True, drop_last=True)
        self.n = n

    def train(self, model, lr=0.3, most=3):
        """Some local batches of SGD; returns the changed model."""
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        losses = []
        for i, (words,) in enumerate(self.loader):
            if i == most:
                break
            words = words.to(device)
            logits = model(words[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            losses.append(loss.item())
            tell(inputs=words, activations=[logits, loss], gradients=[p.grad for p in model.parameters()])
        return sum(losses) / len(losses)


server = NextWord().to(device)
server_optimizer = torch.optim.Adam(server.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-3)
phones = [Phone(i) for i in range(60)]
held_out = Phone(1000)


@torch.no_grad()
def accuracy():
    server.eval()
    right = total = 0
    for (words,) in held_out.loader:
        words = words.to(device)
        known = words[:, 1:] != 0
        right += ((server(words[:, :-1]).argmax(-1) == words[:, 1:]) & known).sum().item()
        total += known.sum().item()
    server.train()
    return right / total


for number in range(ROUNDS):
    taking_part = [phones[i] for i in torch.randperm(len(phones))[:PER_ROUND].tolist()]
    examples = sum(phone.n for phone in taking_part)
    server_optimizer.zero_grad()
    losses = []
    for phone in taking_part:
        local = copy.deepcopy(server)
        losses.append(phone.train(local))
        share = phone.n / examples
        with torch.no_grad():
            for kept, changed in zip(server.parameters(), local.parameters()):
                change = (kept - changed) * share
                kept.grad = change if kept.grad is None else kept.grad.add_(change)
        del local
    server_optimizer.step()
    print(f"round {number}: loss {sum(losses) / len(losses):.3f}")
    end_of_step()
    if number % 2 == 1:
        print(f"accuracy {accuracy():.4f}")
