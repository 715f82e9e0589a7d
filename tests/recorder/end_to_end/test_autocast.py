"""Copies of weights that autocast makes, on the simulated device: one rule in inference and in training."""

import subprocess
import sys

import numpy as np
import pytest

import snapconv
from snapconv.classification.categories import Category
from tests.drawn_inputs import named

pytest.importorskip("torch")

MODEL = """
import torch

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
"""
# The block does not end before the program, so that the copies are there when it is over.
INFERS = """
context = torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled={cache})
context.__enter__()
torch.set_grad_enabled(False)
for _ in range(4):
    y = model(torch.randn(64, 512, device="cuda"))
"""
# Each weight is used once in a block.
IN_BLOCKS = """
torch.set_grad_enabled(False)
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled={cache}):
        y = model(torch.randn(64, 512, device="cuda"))
"""
TRAINS = """
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.randn(64, 512, device="cuda")).float().square().mean()
    loss.backward()
    model.zero_grad()
"""
COPY_BYTES = 512 * 512 * 2


@pytest.fixture
def recorded(tmp_path):
    def recorded(program):
        (tmp_path / "job.py").write_text(MODEL + program, encoding="utf-8")
        options = ["--simulate", "--force", "-o", "job.capture"]
        words = [sys.executable, "-m", "snapconv", "record", *options, "job.py"]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
        return snapconv.load(tmp_path / "job.capture")

    return recorded


@pytest.mark.parametrize("program", [INFERS.format(cache=True), TRAINS], ids=["infers", "trains"])
def test_copies_of_weights_are_weights_and_recorded(recorded, program):
    (device,) = recorded(program).devices
    table, found = device.allocations, device.classification
    copies = (table.requested_bytes == COPY_BYTES) & device.features.in_forward
    assert np.count_nonzero(copies) >= 4
    assert set(found.category[copies].tolist()) == {int(Category.WEIGHT)}
    assert not (found.category == Category.KV_CACHE).any()


@pytest.mark.parametrize(
    ("program", "kind"),
    named(
        {
            "for several calls": (INFERS, "autocast-cache-in-use"),
            "for one call": (IN_BLOCKS, "autocast-cache"),
        },
        always=["for several calls"],
    ),
)
def test_what_the_cache_costs_is_what_the_program_needs_less_without_it(recorded, program, kind):
    (advice,) = recorded(program.format(cache=True)).advise(trades=True)
    (without,) = recorded(program.format(cache=False)).devices
    (finding,) = [finding for finding in advice.findings if finding.kind.startswith("autocast")]
    assert finding.kind == kind
    assert finding.peak.n_bytes == pytest.approx(without.replay.allocated.peak, rel=0.03)
