"""With what stands around operation and script, stacks are as deep as a GPU's, and say the same."""

import copy
import pickle
import statistics
import sys
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
# Of the snapshots of real GPUs with C++ frames that were at hand, by what happens and whether there are
# Python frames: the least and the greatest median of a file; and the most frames of any stack.
REAL = {
    ("alloc", True): (41, 81),
    ("alloc", False): (31, 32),
    ("free_requested", True): (27, 63),
    ("free_requested", False): (17, 21),
}
MOST = 131


@pytest.fixture
def simulated(run):  # noqa: F811
    return run(SCRIPT, before="").snapshot


@pytest.fixture
def snapshot(simulated, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_stacks

    raw = copy.deepcopy(simulated)
    gpu_stacks.add_surroundings(raw)
    monkeypatch.delitem(sys.modules, "gpu_stacks")
    return raw


def events(snapshot, action, *, has_python):
    for entry in snapshot["device_traces"][0]:
        is_python = any(frame["filename"].endswith(".py") for frame in entry["frames"])
        if entry["action"] == action and is_python == has_python:
            yield entry["frames"]


@pytest.mark.parametrize(("action", "has_python"), REAL)
def test_stacks_are_as_deep_as_those_of_a_gpu(snapshot, action, has_python):
    depths = [len(frames) for frames in events(snapshot, action, has_python=has_python)]
    low, high = REAL[action, has_python]
    assert 0.8 * low <= statistics.median(depths) <= 1.2 * high
    assert max(depths) <= MOST


def test_all_stacks_begin_with_the_walk_and_end_where_a_thread_begins(snapshot):
    for entry in snapshot["device_traces"][0]:
        names = [frame["name"] for frame in entry["frames"]]
        assert names[0] == "torch::unwind::unwind()"
        assert names[-1] in ("_start", "__clone3")
        is_engine = any(name.startswith("torch::autograd::Engine::thread_main") for name in names)
        assert is_engine == (names[-1] == "__clone3")


@pytest.mark.parametrize("is_bare", [False, True], ids=["capture", "bare"])
@pytest.mark.parametrize("n_left", [None, 150], ids=["whole", "late"])
def test_readers_find_the_same_without_them(snapshot, simulated, tmp_path, is_bare, n_left):
    found = []
    for number, raw in enumerate((snapshot, simulated)):
        one = {key: value for key, value in raw.items() if not (is_bare and key == "snapconv")}
        if n_left:
            one["device_traces"] = [one["device_traces"][0][-n_left:]]
        path = tmp_path / f"{number}.pickle"
        path.write_bytes(pickle.dumps(one))
        found.append(snapconv.load(path).columns())
    with_them, without = found
    assert len(with_them["category"]) > 50
    assert with_them.keys() == without.keys()
    assert {name for name in without if not np.array_equal(with_them[name], without[name])} == set()
