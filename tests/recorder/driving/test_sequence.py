"""Recording changes no allocation: the same script with and without it makes the same events.

Both runs are simulated, so this is relative to the simulation's own modes; tests/gpu/ has the same on a GPU.
"""

from itertools import groupby

import pytest

torch = pytest.importorskip("torch")

from snapconv.simulation import SimulationOptions, simulated  # noqa: E402  # needs torch to be of use

CNN = """
import torch
from torch import nn

features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
model = nn.Sequential(features, nn.Flatten(), nn.Linear(8 * 9, 5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

def step():
    optimizer.zero_grad()
    out = model(torch.randn(4, 3, 8, 8, device="cuda"))
    criterion(out, torch.zeros(4, dtype=torch.long, device="cuda")).backward()
    optimizer.step()
"""

TRANSFORMER = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.block(self.embedding(tokens))
        return self.head(checkpoint(self.block, hidden, use_reentrant=False))

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())

def step():
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(torch.zeros(2, 16, dtype=torch.long, device="cuda"))
            loss = out.float().logsumexp(-1).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

LSTM = """
import torch
from torch import nn

model = nn.LSTM(16, 32, num_layers=2, batch_first=True).cuda()
optimizer = torch.optim.Adam(model.parameters())

def step():
    out, _ = model(torch.randn(4, 10, 16, device="cuda"))
    (gradient,) = torch.autograd.grad(out.sum(), [model.weight_ih_l0], retain_graph=True)
    (out.square().mean() + gradient.sum() * 0).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

# Two iterations, which is as long as the memory of a script is recorded by default.
ITERATIONS = "\nfor _ in range(2):\n    step()\n"


def sequence(snapshot):
    """The events of a trace, with all that an allocation is; not when and from where.

    Frees without an allocation between them are sorted: autocast drops its cache of weights in the order
    of a hash table of pointers, which differs between any two runs.
    """
    (trace,) = snapshot["device_traces"]
    events = [(e["action"], e["size"], e["addr"], e["stream"]) for e in trace if e["action"] != "snapshot"]
    runs = groupby(events, key=lambda event: event[0].startswith("free"))
    return [event for is_free, run in runs for event in (sorted(run) if is_free else run)]


def alone(script):
    """The events of a script that nobody watches but torch's own history."""
    with simulated(SimulationOptions()):
        torch.cuda.memory._record_memory_history(stacks="python")
        space = {"__name__": "__main__"}
        exec(compile(script, "train.py", "exec"), space)
        return sequence(torch.cuda.memory._snapshot())


@pytest.mark.parametrize("script", [CNN, TRANSFORMER, LSTM], ids=["cnn", "transformer", "lstm"])
def test_recording_leaves_the_sequence_of_allocations_as_it_is(run, script):
    expected = alone(script + ITERATIONS)
    assert len(expected) > 50
    done = run(ITERATIONS, before=script, options=["--stacks", "python"])
    assert done.code == 0, done.err
    recorded = sequence(done.snapshot)
    # The snapshot is taken at the end of optimizer.step; after it the scripts above only let things go.
    last = max(i for i, event in enumerate(expected) if event[0] == "alloc")
    assert recorded[: last + 1] == expected[: last + 1]
    assert not any(event[0] == "alloc" for event in recorded[last + 1 :])


@pytest.mark.parametrize("script", [CNN, TRANSFORMER, LSTM], ids=["cnn", "transformer", "lstm"])
def test_nothing_of_the_recording_stays_behind_in_the_later_iterations(run, script):
    peak = "torch.cuda.reset_peak_memory_stats(); step(); print(torch.cuda.max_memory_allocated())"
    lines = run(f"\nfor _ in range(7):\n    {peak}\n", before=script).out.splitlines()
    # 0 warm-up, 1 memory, 2 and 3 timed, 4 to 6 on its own.
    assert len(set(lines[1:])) == 1, lines
