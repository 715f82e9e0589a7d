"""What a server leaks, without iterations: the lines that leave memory behind again and again."""

import pytest

import snapconv
from snapconv.answers.leaks import Trend, unfreed_lines
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
