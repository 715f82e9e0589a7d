"""A failed request in figures: what was asked for, its block and segment, and the pieces that did not do."""

import pickle

import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.writers.text.oom import oom_lines
from tests.builders import MIB, frame

LINE = [frame("forward", "/home/me/project/model.py", 5)]


@pytest.fixture
def lines(tmp_path):
    """What is printed of a request of 3.91 MiB where 14 MiB are free on the device."""
    # Three segments: of 60 and 24 MiB, as requests of 10 MiB and more have their own, and of 20 MiB, as
    # those from 1 MiB on have (c10/cuda/CUDACachingAllocator.h: kMinLargeAlloc, kLargeBuffer).
    model = RecordedAllocator(capacity=(60 + 24 + 20 + 14) * MIB)
    model.malloc(60 * MIB, frames=LINE)
    freed = model.malloc(24 * MIB, frames=LINE)
    model.free(freed, frames=LINE)
    model.malloc(21 * MIB + MIB // 2, frames=LINE)  # 2.5 MiB of the segment stay free
    model.malloc(9 * MIB, stream=7, frames=LINE)  # 11 MiB, of another stream
    with pytest.raises(ModelOutOfMemory):
        model.malloc(4_100_000, frames=LINE)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(model.snapshot()))
    explained, _remedies = snapconv.load(path).explain_oom()
    return list(oom_lines(explained, None))


def row(n_bytes, name):
    return f"{n_bytes / MIB:>12.2f} MiB  {name}"


def test_the_block_of_a_request_and_the_segment_that_it_needs_are_two_figures(lines):
    # 4,100,000 bytes in steps of 512; between 1 and 10 MiB a segment of 20 MiB, and only 14 are free.
    block = -(-4_100_000 // 512) * 512
    first = next(number for number, line in enumerate(lines) if " asked for " in line)
    assert f"{block / MIB:.2f} MiB; the allocator needed 20.00 MiB more from the GPU" in lines[first]
    assert lines[first + 1] == "    default pool, stream 0"
    assert row(14 * MIB, "free on the device") in lines


def test_what_is_free_inside_and_what_of_it_could_have_served_the_request_are_two_figures(lines):
    assert row(13.5 * MIB, "reserved and free: 2 blocks, the largest 11.00 MiB") in lines
    assert row(2.5 * MIB, "  usable here (same pool and stream): 1 block, the largest 2.50 MiB") in lines
    assert row((60 + 21.5 + 9) * MIB, "in use") in lines
