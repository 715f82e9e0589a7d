"""With what stands around operation and script on a GPU, stacks say the same."""

import copy
import pickle
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import snapconv
from tests.recorder.driving.conftest import run  # noqa: F401  # a fixture

BENCH = Path(__file__).parents[3] / "scripts" / "bench" / "classification"
SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
    def forward(self, x):
        return x + self.norm(self.convolution(x)).relu()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(8 * 16 * 16, 10)
    def forward(self, x):
        x = checkpoint(self.blocks[0], self.blocks[1](x), use_reentrant=False)
        return self.head(self.blocks[2:](x).flatten(1))

net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())

def step():
    images, labels = torch.randn(8, 8, 16, 16, device="cuda"), torch.randint(10, (8,), device="cuda")
    loss = nn.functional.cross_entropy(net(images), labels)
    (loss * loss.exp()).backward()
    optimizer.step()
    optimizer.zero_grad()

def main():
    for _ in range(3):
        step()
    for _ in range(2):
        net(torch.randn(8, 8, 16, 16, device="cuda"))

main()
"""


def test_readers_find_the_same_without_what_stands_around_them(run, tmp_path, monkeypatch):  # noqa: F811
    """One recording for all: with its metadata and without, whole and cut off."""
    simulated = run(SCRIPT, before="").snapshot
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_stacks

    monkeypatch.delitem(sys.modules, "gpu_stacks")
    surrounded = copy.deepcopy(simulated)
    gpu_stacks.add_surroundings(surrounded)
    for entry in surrounded["device_traces"][0]:
        names = [frame["name"] for frame in entry["frames"]]
        assert names[0] == "torch::unwind::unwind()"
        is_engine = any(name.startswith("torch::autograd::Engine::thread_main") for name in names)
        assert names[-1] == ("__clone3" if is_engine else "_start")
    for is_bare, n_left in product((False, True), (0, 150)):
        found = []
        for number, raw in enumerate((surrounded, simulated)):
            one = {key: value for key, value in raw.items() if not (is_bare and key == "snapconv")}
            one["device_traces"] = [one["device_traces"][0][-n_left:]]
            path = tmp_path / f"{is_bare}-{n_left}-{number}.pickle"
            path.write_bytes(pickle.dumps(one))
            found.append(snapconv.load(path).columns())
        with_them, without = found
        assert len(with_them["category"]) > 50
        assert with_them.keys() == without.keys()
        assert {
            name for name in without if not np.array_equal(with_them[name], without[name])
        } == set()
