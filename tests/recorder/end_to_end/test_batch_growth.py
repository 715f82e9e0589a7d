"""Another batch: what is promised is what a recording with it needs, also where weights are computed."""

import subprocess
import sys

import pytest

import snapconv
from snapconv.hypotheses.changes import Demand, scaled_batch
from tests.builders import MIB
from tests.drawn_inputs import named

pytest.importorskip("torch")

PROGRAM = """
import contextlib, sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

batch, width = int(sys.argv[1]), 1024
autocast = torch.autocast("cuda", torch.bfloat16)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Standardized(nn.Linear):
    def forward(self, x):
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, weight / weight.std(1, keepdim=True), self.bias)


class Scaled(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * self.in_features**-0.5, self.bias)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(64, 192)

    def forward(self, x):
        parts = self.mix(x).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mask = torch.ones(len(x[0]), len(x[0]), dtype=torch.bool, device=x.device).tril()
        return x + F.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)


def layers(make):
    return nn.Sequential(*[nn.Sequential(make(), nn.GELU()) for _ in range(8)])


shape = (batch, width)
context = contextlib.nullcontext()
{model}
model.cuda()
optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
for _ in range(3):
    with context:
        loss = model(torch.randn(shape, device="cuda")).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LINEAR = "nn.Linear(width, width)"


@pytest.fixture
def recorded(tmp_path):
    def recorded(model, batch):
        (tmp_path / "job.py").write_text(PROGRAM.format(model=model), encoding="utf-8")
        options = ["--simulate", "--no-compute", "--force", "-o", "job.capture"]
        words = [sys.executable, "-m", "snapconv", "record", *options, "job.py", str(batch)]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
        return snapconv.load(tmp_path / "job.capture").devices[0]

    return recorded


MODELS = {
    "copies by autocast": ("model, context = layers(Adapted), autocast", 256, 153, 0.01),
    "parametrization": (
        f"model = layers(lambda: parametrizations.weight_norm({LINEAR}))",
        256,
        160,
        0.01,
    ),
    "standardized": ("model = layers(lambda: Standardized(width, width))", 256, 160, 0.02),
    "scaled": ("model = layers(lambda: Scaled(width, width))", 256, 160, 0.01),
    "masks": ("model, shape = layers(Masked), (batch, 512, 64)", 8, 5, 0.02),
}


@pytest.mark.parametrize(
    ("model", "batch", "smaller", "error"),
    named(MODELS, always=("copies by autocast", "masks")),
)
def test_what_does_not_grow_with_the_batch_stays_as_large_as_a_second_recording_shows(
    recorded, model, batch, smaller, error
):
    before, after = recorded(model, batch), recorded(model, smaller)
    promised = Demand(before).replayed([scaled_batch(before, smaller / batch)]).n_bytes
    measured = after.replay.allocated.peak
    assert before.replay.allocated.peak - measured > MIB
    assert promised == pytest.approx(measured, rel=error)


def test_a_weight_as_long_as_the_batch_is_not_told_from_an_activation(recorded):
    """Where the batch is as long as a side of the weight, a shape proves nothing, and all is as before."""
    device = recorded("model = layers(lambda: Scaled(width, width))", 1024)
    change = scaled_batch(device, 0.5)
    assert device.operations.index("mul") in device.operation_id[change.rows].tolist()
