"""What keeps a block for backward, and what frees it, as a recording of the changed program shows."""

import subprocess
import sys

import pytest

import snapconv
from snapconv.writers.text.explanation import explanation_lines

pytest.importorskip("torch")

PROGRAM = """
import sys
import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Flatten(), nn.Linear(12 * 28 * 28, 300),
    nn.GELU(), nn.Linear(300, 10),
).cuda()
for number in map(int, sys.argv[1:]):
    model[number].requires_grad_(False)
for _ in range(3):
    model(torch.randn(16, 3, 32, 32, device="cuda")).square().mean().backward()
    model.zero_grad()
"""
SHARED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Conv2d(3, 8, 3).requires_grad_(False)
        self.conv = nn.Conv2d(8, 12, 3)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(12 * 28 * 28, 300)
        self.query, self.key = nn.Linear(300, 10), nn.Linear(300, 10)

    def forward(self, x):
        x = self.fc(self.relu(self.conv(self.frozen(x))).flatten(1))
        return self.query(x) * self.key(x)

model = Net().cuda()
for _ in range(3):
    model(torch.randn(16, 3, 32, 32, device="cuda")).square().mean().backward()
    model.zero_grad()
"""
FROM_RELU = 16 * 12 * 28 * 28 * 4
FROM_CONVOLUTION = 16 * 8 * 30 * 30 * 4
FROM_LINEAR = FROM_GELU = 16 * 300 * 4


@pytest.fixture
def kept(tmp_path):
    """Record the program with some layers frozen; return a session and its activations by size."""

    def kept(*frozen, program=PROGRAM):
        (tmp_path / "job.py").write_text(program, encoding="utf-8")
        options = ["--simulate", "--no-compute", "--force", "-o", "job.capture"]
        words = [sys.executable, "-m", "snapconv", "record", *options, "job.py", *frozen]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
        session = snapconv.load(tmp_path / "job.capture")
        (device,) = session.devices
        table = device.allocations
        is_last = device.features.iteration == device.phases.n_iterations - 1
        events = {}
        for size in (FROM_CONVOLUTION, FROM_RELU, FROM_GELU):
            is_kept = is_last & device.features.in_forward & device.features.is_freed_by_engine
            is_kept &= table.requested_bytes == size
            events[size] = table.alloc_event[is_kept].tolist()
        return session, events

    return kept


def explained(session, event):
    explanation = session.explain(f"#{event}")
    return explanation.allocations[0]["kept_for_backward"], "\n".join(
        explanation_lines(explanation)
    )


def test_a_layer_that_keeps_its_input_only_for_its_weight_frees_it_when_frozen(kept):
    session, events = kept()
    (from_convolution,) = events[FROM_CONVOLUTION]
    from_linear, from_gelu = events[FROM_LINEAR]
    ((keeper,), text) = explained(session, from_convolution)
    assert (keeper["module"], keeper["layer"], keeper["freezing"]) == (
        "1",
        "Conv2d",
        "does not free",
    )
    assert "conv2d of 1, for backward; freezing this layer does not free the block" in text
    ((keeper,), text) = explained(session, from_gelu)
    assert (keeper["module"], keeper["layer"], keeper["freezing"]) == ("5", "Linear", "frees")
    assert "linear of 5, for backward; freezing this layer frees the block" in text
    ((keeper,), text) = explained(session, from_linear)
    assert (keeper["layer"], keeper["freezing"]) == ("GELU", None)
    assert "gelu of 4, for backward\n" in f"{text}\n"
    _, events = kept("1", "5")
    assert len(events[FROM_CONVOLUTION]) == 1
    assert len(events[FROM_GELU]) == 1  # what GELU reads; its result is freed in forward


def test_a_layer_frees_nothing_that_another_keeps_and_what_needs_no_gradient_is_not_known(kept):
    session, events = kept(program=SHARED)
    (from_frozen,) = events[FROM_CONVOLUTION]
    (from_relu,) = events[FROM_RELU]
    (from_linear,) = events[FROM_LINEAR]
    # Conv2d keeps its input for the input's gradient as well, and this one has none.
    ((keeper,), text) = explained(session, from_frozen)
    assert (keeper["layer"], keeper["freezing"]) == ("Conv2d", None)
    assert "conv2d of conv, for backward\n" in f"{text}\n"
    ((relu, linear), text) = explained(session, from_relu)
    assert (relu["layer"], relu["freezing"]) == ("ReLU", None)
    assert (linear["layer"], linear["freezing"]) == ("Linear", "does not free")
    (keepers, text) = explained(session, from_linear)
    assert [(keeper["module"], keeper["freezing"]) for keeper in keepers] == [
        ("query", "frees"),
        ("key", "frees"),
    ]
    assert "freezing this layer" not in text
    assert "freezing all of these layers frees the block; one alone does not" in text
