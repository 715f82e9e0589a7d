"""Entries that were written when the rules were done: no rule was made or changed for them."""

import copy
from itertools import pairwise

import torch
from language import Transformer, next_word, words
from setups import Iterations, Known, Setup, make_optimizer, states_of
from torch import nn
from torch.nn import functional


class Tower(nn.Module):
    """Recurrent: embedded words to one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(3000, 96), nn.GRU(96, 160, batch_first=True)
        self.out = nn.Linear(160, 64)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return one vector of length 1 per sentence."""
        return functional.normalize(self.out(self.gru(self.words(batch))[1][-1]), dim=-1)


def contrastive(setup: Setup) -> Iterations:
    """Two towers are brought together; vectors of earlier batches are kept in a queue on the device."""
    left, right = Tower().cuda(), Tower().cuda()
    optimizer = make_optimizer(setup, [*left.parameters(), *right.parameters()])
    queue = torch.randn(4096, 64).cuda()
    while True:
        a, b = (torch.randint(0, 3000, (48, 24)).cuda() for _ in range(2))
        x, y = left(a), right(b)
        logits = x @ torch.cat((y, queue)).T / 0.07
        loss = functional.cross_entropy(logits, torch.arange(len(x), device="cuda"))
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        queue = torch.cat((queue[len(y) :], y.detach()))
        yield Known(inputs=(a, b, queue), states=states_of(optimizer))


def distillation(setup: Setup) -> Iterations:
    """A frozen teacher is asked under no_grad, and its student learns to answer alike."""
    teacher, student = Transformer(n_layers=3).cuda().eval(), Transformer(n_layers=1).cuda()
    optimizer = make_optimizer(setup, student.parameters())
    while True:
        (batch,) = words(6, 56)
        with torch.no_grad():
            wanted = (teacher(batch) / 2).softmax(-1)
        answer = (student(batch) / 2).log_softmax(-1)
        loss = functional.kl_div(answer, wanted, reduction="batchmean") + next_word(student, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        yield Known(inputs=(batch,), activations=(wanted, answer), states=states_of(optimizer))


def q_learning(setup: Setup) -> Iterations:
    """A network and a copy that follows it; what it learns from lies on the device all the time."""
    network = nn.Sequential(
        nn.Linear(128, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 12)
    )
    network = network.cuda()
    target = copy.deepcopy(network)
    optimizer = make_optimizer(setup, network.parameters())
    seen, then = torch.randn(3000, 128, device="cuda"), torch.randn(3000, 128, device="cuda")
    done, reward = torch.randint(0, 12, (3000,), device="cuda"), torch.rand(3000, device="cuda")
    while True:
        pick = torch.randint(0, 3000, (700,), device="cuda")
        with torch.no_grad():
            best = reward[pick] + 0.99 * target(then[pick]).max(1).values
        value = network(seen[pick]).gather(1, done[pick, None]).squeeze(1)
        loss = functional.smooth_l1_loss(value, best)
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), network.parameters(), strict=True):
                old.mul_(0.99).add_(new, alpha=0.01)
        yield Known(
            inputs=(seen, then, done, reward, pick),
            weights=tuple(target.parameters()),
            states=states_of(optimizer),
        )


def bare_tensors(setup: Setup) -> Iterations:
    """No module at all: weights are plain tensors, forward is a few functions."""
    sizes = (300, 500, 200, 10)
    weights = [
        (torch.randn(n_in, n_out, device="cuda") / n_in**0.5).requires_grad_()
        for n_in, n_out in pairwise(sizes)
    ]
    optimizer = make_optimizer(setup, weights)
    while True:
        x, y = torch.randn(640, 300).cuda(), torch.randint(0, 10, (640,)).cuda()
        hidden = x
        for weight in weights[:-1]:
            hidden = torch.relu(hidden @ weight)
        loss = functional.cross_entropy(hidden @ weights[-1], y)
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        yield Known(inputs=(x, y), weights=weights, states=states_of(optimizer))


def gradient_penalty(setup: Setup) -> Iterations:
    """A critic whose gradient is part of its loss: backward goes through a backward."""
    critic = nn.Sequential(
        *(nn.Conv2d(3, 24, 4, 2, 1), nn.SiLU(), nn.Conv2d(24, 48, 4, 2, 1), nn.SiLU()),
        *(nn.Flatten(), nn.Linear(48 * 64, 90), nn.SiLU(), nn.Linear(90, 1)),
    ).cuda()
    optimizer = make_optimizer(setup, critic.parameters())
    while True:
        real, fake = (torch.randn(20, 3, 32, 32).cuda() for _ in range(2))
        mixed = (0.5 * real + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss.backward()
        optimizer.step()
        yield Known(inputs=(real, fake, mixed), states=states_of(optimizer))


def validation(setup: Setup) -> Iterations:
    """A step of training, then two batches of validation whose answers are kept to the end of the epoch."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ELU(), nn.MaxPool2d(2), nn.Conv2d(20, 40, 5), nn.ELU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(640, 350), nn.ELU(), nn.Linear(350, 26)),
    ).to("cuda")
    optimizer = make_optimizer(setup, net.parameters())
    criterion = nn.CrossEntropyLoss()
    while True:
        net.train()
        images, labels = (
            torch.randn(36, 1, 28, 28).to("cuda"),
            torch.randint(0, 26, (36,)).to("cuda"),
        )
        optimizer.zero_grad(set_to_none=setup.set_to_none)
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()
        net.eval()
        answers = []
        with torch.no_grad():
            for _ in range(2):
                images = torch.randn(60, 1, 28, 28).to("cuda")
                answers.append(net(images).softmax(1))
        yield Known(inputs=(images, labels), activations=answers, states=states_of(optimizer))
