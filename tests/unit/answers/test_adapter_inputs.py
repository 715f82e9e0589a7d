"""Copies of inputs that peft's adapters in 32 bits keep for backward."""

import pytest

from tests.builders import MIB, TraceBuilder, frame
from tests.faulty_jobs import CALL, ENGINE, PLACEMENT, STEP, Job, at

PEFT = "/opt/venv/lib/python3.11/site-packages/peft/tuners"
ADAPTER = [
    CALL,
    frame("forward", f"{PEFT}/lora/layer.py", 1100),
    frame("_cast_input_dtype", f"{PEFT}/tuners_utils.py", 2235),
]


def steps(*, copy=8 * MIB, n_layers=4):
    """Steps of layers, in each of which an adapter reads a copy of its input."""
    job = Job(TraceBuilder().segment(1 << 30))
    job.alloc(32 * MIB, at(3, PLACEMENT))
    for _ in range(3):
        saved = []
        for number in range(n_layers):
            saved.append(
                job.alloc(
                    6 * MIB, at(12, CALL, frame("forward", "/home/me/project/model.py", number))
                )
            )
            saved.append(job.alloc(copy, at(12, *ADAPTER)))
        loss = job.alloc(512, at(12))
        for addr in reversed(saved):
            gradient = job.alloc(MIB, ENGINE)
            job.free([addr, gradient], ENGINE)
        job.free([loss], at(13))
        job.trace.alloc(MIB, frames=STEP).free(frames=STEP)
    return job


def test_copies_of_inputs_shrink_to_half(advice_on):
    advice, changed = (advice_on(steps(copy=size), trades=True) for size in (8 * MIB, 4 * MIB))
    (finding,) = [one for one in advice.findings if one.kind == "adapter-inputs"]
    assert finding.what.startswith(
        "peft's adapters keep 4 copies of their inputs in 32 bits for backward ("
    )
    assert "autocast_adapter_dtype=False" in finding.how[0]
    assert finding.peak.n_bytes == pytest.approx(changed.peak.n_bytes, rel=0.01)
    assert not finding.is_certain


def test_few_bytes_are_not_worth_a_trade(advice_on):
    advice = advice_on(steps(copy=MIB // 2), trades=True)
    assert "adapter-inputs" not in {finding.kind for finding in advice.findings}
