"""Weights and states at the peak are what the program itself holds, counted by its own last lines."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import snapconv
from snapconv.classification.categories import Category

# A block is a multiple of 512 bytes (c10/core/AllocatorConfig.h); nothing here is larger than 1
# MiB, where the rest of a block may be kept.
COUNT = """
def n_bytes(tensors):
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(-(-n // 512) * 512 for n in storages.values())

def count(**groups):
    import json, pathlib
    counted = {name: n_bytes(list(found)) for name, found in groups.items()}
    pathlib.Path("count.json").write_text(json.dumps(counted))
"""
MODEL = """
import copy, torch
from torch import nn
from torch.nn import functional

def batch():
    return torch.randn(64, 300).cuda(), torch.randint(0, 33, (64,)).cuda()

model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 33)).cuda()
"""
AVERAGED = """
average = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters())
best = copy.deepcopy(model.state_dict())
for _ in range(2):
    x, y = batch()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, p in zip(average.parameters(), model.parameters()):
            mean.lerp_(p, 0.1)
states = [s for state in optimizer.state.values() for s in state.values() if s.is_cuda]
count(weight=[*model.parameters(), *average.parameters(), *best.values()], optimizer_state=states)
"""
MASTERS = """
model = model.bfloat16()
masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
for _ in range(2):
    x, y = batch()
    functional.cross_entropy(model(x.bfloat16()).float(), y).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
            p.grad = master.grad = None
states = [s for state in optimizer.state.values() for s in state.values()]
count(weight=[*model.parameters(), *masters], optimizer_state=states)
"""
LOADED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x, y = batch()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
count(weight=model.parameters(), optimizer_state=[])
torch.save(model, "model.pt")
del model, optimizer
model = torch.load("model.pt", weights_only=False)
with torch.no_grad():
    model(x)
"""


@pytest.mark.parametrize(
    ("script", "n_weights"),
    [(AVERAGED, 8), (MASTERS, 8), (LOADED, 4)],
    ids=["averaged", "masters", "loaded again"],
)
def test_weights_and_states_at_the_peak_are_what_the_program_counts(script, n_weights, run):
    done = run(script, before=COUNT + MODEL)
    assert done.code == 0, done.err
    (found,) = snapconv.load(done.folder / "train.capture").devices
    live = found.allocations.live_at(found.peak_event)
    of_category = {
        category: int(
            found.allocations.block_bytes[live & (found.classification.category == category)].sum()
        )
        for category in Category
    }
    counted = json.loads((done.folder / "count.json").read_text(encoding="utf-8"))
    assert of_category[Category.WEIGHT] == counted["weight"]
    assert of_category[Category.OPTIMIZER_STATE] == counted["optimizer_state"]
    assert of_category[Category.UNKNOWN] == 0
    assert len(found.weights.row) == n_weights
    assert len(np.unique(found.weights.row)) == n_weights
