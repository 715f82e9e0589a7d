"""Masks of attention: what advice promises is what the changed program saves."""

import subprocess
import sys

import pytest

import snapconv

pytest.importorskip("torch")

MASKS = """
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(128, {heads}, 256, batch_first=True, dropout=0.0)
model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mask = nn.Transformer.generate_square_subsequent_mask({length}, device="cuda")
padding = torch.zeros(4, {length}, dtype=torch.bool, device="cuda")
for _ in range(3):
    x = torch.randn(4, {length}, 128, device="cuda")
    model(x, {masks}).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BOTH = "mask=mask, is_causal=True, src_key_padding_mask=padding"


@pytest.fixture
def recorded(tmp_path):
    def recorded(program):
        (tmp_path / "job.py").write_text(program, encoding="utf-8")
        options = ["--simulate", "--no-compute", "--warm-up", "0", "--iterations", "3"]
        options += ["--force", "-o", "job.capture"]
        words = [sys.executable, "-m", "snapconv", "record", *options, "job.py"]
        subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=300)
        return snapconv.load(tmp_path / "job.capture")

    return recorded


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (
            "masks",
            MASKS.format(heads=8, length=256, masks=BOTH),
            MASKS.format(heads=8, length=256, masks="mask=mask, is_causal=True"),
        ),
    ],
    ids=["masks"],
)
def test_what_is_promised_is_what_the_changed_program_saves(recorded, kind, before, after):
    (advice,) = recorded(before).advise()
    (changed,) = recorded(after).advise()
    (finding,) = [one for one in advice.findings if one.kind == kind]
    measured = advice.peak.n_bytes - changed.peak.n_bytes
    assert advice.peak.n_bytes - finding.peak.n_bytes == pytest.approx(measured, rel=0.03)
    assert not finding.is_certain
    assert kind not in {one.kind for one in changed.findings}


def test_masks_as_large_as_the_results_of_attention_are_not_told_from_them(recorded):
    (advice,) = recorded(MASKS.format(heads=2, length=64, masks=BOTH)).advise()
    assert "masks" not in {one.kind for one in advice.findings}
