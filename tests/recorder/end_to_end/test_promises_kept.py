"""Advice about attention: what it promises is what the changed program saves."""

import subprocess
import sys
from functools import cache

import pytest

import snapconv
from tests.drawn_inputs import named

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
OWN = """
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 128)
        self.attention = nn.MultiheadAttention(128, 8, dropout={dropout}, batch_first=True)

    def forward(self, x, mask):
        y = self.norm(x)
        q, k, v = self.qkv(y).view(4, 256, 3, 8, 16).permute(2, 0, 3, 1, 4)
        {attend}
        return x + self.out(mixed)


def joined(mixed):
    return mixed.transpose(1, 2).reshape(4, 256, 128)


layers = nn.ModuleList(Layer() for _ in range(6)).to("cuda")
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
mask = is_read = torch.rand(4, 1, 256, 256, device="cuda") < 0.9
{before}
kept = []
for _ in range(3):
    kept.clear()
    x = torch.randn(4, 256, 128, device="cuda")
    read = 0
    for layer in layers:
        x = layer(x, mask)
    (x.square().mean() + read).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODULE = "mixed, weights = self.attention(y, y, y{})"
FUSED = "mixed = joined(F.scaled_dot_product_attention(q, k, v{}))"
OWN_DROPOUT = "mixed = joined(F.dropout((q @ k.transpose(-2, -1) / 4).softmax(-1), 0.1) @ v)"
ONCE = "mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)"


def own(attend: str, *, dropout: float = 0.0, before: str = "") -> str:
    return OWN.format(attend=attend, dropout=dropout, before=before)


@pytest.fixture(scope="module")
def advice_on(tmp_path_factory):
    """Record a program once for all tests, and advise on it."""

    @cache
    def recorded(program):
        folder = tmp_path_factory.mktemp("job")
        (folder / "job.py").write_text(program, encoding="utf-8")
        words = [sys.executable, "-m", "snapconv", "record", "--simulate", "--no-compute"]
        words += ["--warm-up", "0", "--iterations", "3", "-o", "job.capture", "job.py"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=300)
        return snapconv.load(folder / "job.capture")

    def advice_on(program):
        (advice,) = recorded(program).advise()
        return advice

    return advice_on


PROGRAMS = {
    "masks": (
        "masks",
        MASKS.format(heads=8, length=256, masks=BOTH),
        MASKS.format(heads=8, length=256, masks="mask=mask, is_causal=True"),
        0,
    ),
    "copies of a mask": (
        "mask-copies",
        own(FUSED.format(", mask")),
        own(FUSED.format(", mask"), before=ONCE),
        0,
    ),
    "copies of a mask, and the mask": (
        "mask-copies",
        own(FUSED.format(", mask")),
        own(FUSED.format(", mask"), before=f"{ONCE}; del is_read"),
        # The boolean mask goes too where nobody else reads it, which the file cannot show.
        4 * 256 * 256,
    ),
    "weights": (
        "attention",
        own(MODULE.format("")),
        own(MODULE.format(", need_weights=False")),
        0,
    ),
    "weights and dropout": (
        "attention",
        own(MODULE.format(""), dropout=0.1),
        own(MODULE.format(", need_weights=False"), dropout=0.1),
        0,
    ),
    "dropout": ("attention", own(OWN_DROPOUT), own(FUSED.format(", dropout_p=0.1")), 0),
}


@pytest.mark.parametrize(
    ("kind", "before", "after", "allowance"), named(PROGRAMS, always=("masks", "weights"))
)
def test_what_is_promised_is_what_the_changed_program_saves(
    advice_on, kind, before, after, allowance
):
    advice, changed = advice_on(before), advice_on(after)
    (finding,) = [finding for finding in advice.findings if finding.kind == kind]
    saved = advice.peak.n_bytes - changed.peak.n_bytes - allowance
    assert advice.peak.n_bytes - finding.peak.n_bytes == pytest.approx(saved, rel=0.03)
    assert not finding.is_certain
    assert kind not in {finding.kind for finding in changed.findings}


@pytest.mark.long
def test_masks_as_large_as_the_results_of_attention_are_not_told_from_them(advice_on):
    advice = advice_on(MASKS.format(heads=2, length=64, masks=BOTH))
    assert "masks" not in {finding.kind for finding in advice.findings}


@pytest.mark.parametrize(
    "reading",
    ["kept.append(weights.detach())", "global read; read = read + weights.mean()"],
    ids=["kept", "in the loss"],
)
def test_weights_of_attention_that_the_program_reads_are_not_called_needless(advice_on, reading):
    advice = advice_on(own(f"{MODULE.format('')}; {reading}"))
    assert {"attention", "masks"}.isdisjoint(finding.kind for finding in advice.findings)
