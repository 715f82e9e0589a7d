"""Leaks of all sorts planted in a training script, and scripts without one, recorded on a simulated GPU."""

import pytest

pytest.importorskip("torch")

import snapconv  # after the skip

# ``keep`` is what a case does at the end of a step, ``in_forward`` in the model. The line that is
# to be found has a comment.
TRAINING = """
import gc, random
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.seen = None
        self.hooks_saw = []
    def forward(self, x):
        {in_forward}
        return self.b(torch.relu(self.a(x)))

class Node: pass

def train(n):
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    kept, by_step, window = [], {{}}, []
    for step in range(n):
        x = torch.randn({rows}, 256, device="cuda")
        y = net(x)
        loss = (y ** 2).mean()
        loss.backward({backward})
        optimizer.step()
        optimizer.zero_grad()
        {keep}

train(16)
"""
STEP_BYTES = 64 * 256 * 4  # the output of a step


def case(name, *, keep="pass", in_forward="pass", rows="64", backward="", **expected):
    source = TRAINING.format(keep=keep, in_forward=in_forward, rows=rows, backward=backward)
    return pytest.param(source, *expected.values(), id=name)


LEAKS = [
    case(
        "a list of outputs",
        keep="kept.append(y.detach().clone())  # here",
        per_iteration=STEP_BYTES,
    ),
    case(
        "a dictionary by step",
        keep="by_step[step] = y.detach().clone()  # here",
        per_iteration=STEP_BYTES,
    ),
    case(
        "a hook more in every step",
        # Sums of 1, 2, 3 … outputs; the last iteration, with the most, does not count.
        keep=(
            "net.a.register_forward_hook(lambda m, i, o: "
            "net.hooks_saw.append(o.detach().clone()))  # here"
        ),
        per_iteration=None,
    ),
    case(
        "a cache that is replaced by a larger one",
        in_forward=(
            "s = self.seen; self.seen = x[:1].clone() if s is None else torch.cat([s, "
            "x[:1]])  # here"
        ),
        per_iteration=256 * 4,
    ),
    case(
        "every third step",
        keep="by_step.update({step: y.detach().clone()} if step % 3 == 0 else {})  # here",
        per_iteration=STEP_BYTES // 3,
    ),
    case("losses that are tensors", keep="kept.append(loss)", per_iteration=512),
    case(
        "losses that keep their graph: what autograd saved stays with them",
        keep="kept.append(loss)",
        backward="retain_graph=True",
        per_iteration=None,
    ),
]
NONE = [
    case("plain training"),
    case("losses that are numbers", keep="kept.append(loss.item())"),
    case("a window of three", keep="window.append(y.detach().clone()); window[:-3] = []"),
    case(
        "a cache filled in the first steps",
        keep="if step < 3: by_step[step] = torch.empty(1 << (18 - 2 * step), device='cuda')",
    ),
    case(
        "batches of random lengths",
        rows="random.Random(step).randrange(8, 200)",
        keep="kept[:] = [y.detach().clone()]",
    ),
    case(
        "a list that the end of the program frees",
        keep="kept.append(y.detach().clone())\n        if step == 11: kept.clear()",
    ),
]


@pytest.fixture
def growth_of(run):
    """Record the memory of twelve iterations, and find what grows."""

    def growth_of(source):
        done = run(source, before="", options=["--no-compute", "-q", "--iterations", "12"])
        assert done.code == 0, done.err
        return snapconv.load(done.folder / "train.capture").report().growth

    return growth_of


@pytest.mark.parametrize(("source", "per_iteration"), LEAKS)
def test_a_planted_leak_is_found_at_its_line(growth_of, source, per_iteration):
    found = growth_of(source)
    lines = {row.line.line_number for row in found}
    here = [number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# here")]
    assert found
    assert set(here) <= lines
    assert all(row.last_iteration >= 10 for row in found)
    if per_iteration is not None:
        assert sum(row.bytes_per_iteration for row in found) == per_iteration


@pytest.mark.parametrize("source", NONE)
def test_what_only_looks_like_a_leak_is_none(growth_of, source):
    assert [row.line for row in growth_of(source)] == []
