"""What a server leaks, without iterations: the lines that leave memory behind again and again."""

from pathlib import Path

import numpy as np
import pytest

import snapconv
from snapconv.answers.growth import Trend, unfreed_lines
from snapconv.classification.categories import Category
from tests.builders import TraceBuilder, frame

KIB = 1024
HANDLE, CACHE, LOAD, NOW = ([frame("serve", "/home/me/project/serve.py", line)] for line in (1, 2, 3, 4))


@pytest.fixture
def served(tmp_path):
    """A hundred requests: each frees what it used, every tenth is cached, and the last is not over."""
    trace = TraceBuilder().segment().alloc(64 * KIB, frames=LOAD)
    for number in range(100):
        trace.alloc(4 * KIB, frames=HANDLE).free()
        if number % 10 == 0:
            trace.alloc(2 * KIB, frames=CACHE)
    session = snapconv.load(trace.alloc(8 * KIB, frames=NOW).write(tmp_path / "server.pickle"))
    return unfreed_lines(session.devices[0])


def test_a_line_that_leaves_memory_behind_to_the_end_keeps_growing(served):
    found = {one.line.line_number: (one.n_allocations, one.block_bytes // KIB, one.trend) for one in served}
    assert found == {
        3: (1, 64, Trend.STOPPED),
        2: (10, 20, Trend.GROWS),
        4: (1, 8, Trend.RECENT),
    }


def test_what_was_there_before_the_trace_was_not_allocated_in_it(tmp_path):
    trace = TraceBuilder().segment(traced=False).alloc(KIB, traced=False).alloc(2 * KIB)
    (only,) = unfreed_lines(snapconv.load(trace.write(tmp_path / "late.pickle")).devices[0])
    assert only.block_bytes == 2 * KIB


def test_weights_and_gradients_of_a_training_are_usually_kept_and_no_leak():
    """A step that was recorded alone: its gradients come one after the other, up to the end of the trace."""
    file = Path(__file__).parents[3] / "fixtures" / "training_step.pickle"
    (analysis,) = snapconv.load(file).devices
    kept = [one for one in unfreed_lines(analysis) if one.trend is Trend.KEPT]
    rows = (analysis.allocations.alloc_event >= 0) & (analysis.allocations.freed_event < 0)
    labels = ("weight", "gradient", "optimizer_state", "workspace")
    codes = [category for category in Category if category.label in labels]
    expected = analysis.allocations.block_bytes[rows & np.isin(analysis.classification.category, codes)].sum()
    assert sum(one.block_bytes for one in kept) == expected > 0
