"""Fragmentation: hand-counted pieces, and against what the allocator itself gives back."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import snapconv
from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.writers.text.moment import fragmentation_lines
from tests.builders import ADDR, TraceBuilder, frame

REAL = Path(__file__).parents[4] / "shared" / "snapshots"
KEEPER = [frame("keep", "/home/me/project/cache.py", 5)]
OTHER = [frame("use", "/home/me/project/train.py", 9)]


def session_of(tmp_path, raw):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    return snapconv.load(path)


def fragmentation_of(tmp_path, raw, moment=None):
    (found,) = session_of(tmp_path, raw).fragmentation(moment)
    return found


def three_segments():
    """One segment wholly free, one half free beside a block of KEEPER, one full."""
    trace = TraceBuilder()
    trace.segment(20 * MIB).alloc(20 * MIB, frames=OTHER)
    trace.segment(20 * MIB).alloc(8 * MIB, frames=KEEPER)
    trace.segment(24 * MIB).alloc(24 * MIB, frames=OTHER)
    return trace.free(trace.segments[0]["address"])


def test_free_memory_is_split_by_what_could_become_of_it(tmp_path):
    dump = fragmentation_of(tmp_path, three_segments().snapshot()).moments[0]
    assert (dump.reserved_bytes, dump.active_bytes, dump.free_bytes) == (
        64 * MIB,
        32 * MIB,
        32 * MIB,
    )
    assert (dump.returnable_bytes, dump.enclosed_bytes, dump.private_bytes) == (
        20 * MIB,
        12 * MIB,
        0,
    )
    assert dump.largest_free_bytes == 20 * MIB


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        pytest.param(three_segments(), ("cache.py:5", 1, 1, 8 * MIB, 12 * MIB), id="of one line"),
        pytest.param(
            TraceBuilder()
            .segment(20 * MIB)
            .alloc(2 * MIB, frames=KEEPER)
            .alloc(3 * MIB, frames=OTHER),
            ("train.py:9", 1, 1, 3 * MIB, 15 * MIB),
            id="shared: it counts for the line with most bytes",
        ),
    ],
)
def test_the_line_that_keeps_a_segment_open_is_named_with_what_it_keeps(tmp_path, trace, expected):
    (holder,) = fragmentation_of(tmp_path, trace.snapshot()).holders
    counts = (holder.n_segments, holder.n_blocks)
    assert (holder.line.place, *counts, holder.block_bytes, holder.enclosed_bytes) == expected


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        pytest.param(
            TraceBuilder().segment(2 * MIB).alloc(500).alloc(1),
            {"rounding_bytes": 1024 - 501},
            id="rounding is within blocks, beyond their requests",
        ),
        pytest.param(
            TraceBuilder().segment(2 * MIB).alloc(MIB).free(completed=False),
            {"active_bytes": MIB, "allocated_bytes": 0, "free_bytes": MIB},
            id="a pending free is in use",
        ),
        pytest.param(
            TraceBuilder().segment(20 * MIB, segment_pool_id=(0, 3)).alloc(MIB).free(),
            {"returnable_bytes": 0, "private_bytes": 20 * MIB, "enclosed_bytes": 0},
            id="private pools return nothing",
        ),
    ],
)
def test_the_figures_of_the_dump(tmp_path, trace, expected):
    dump = fragmentation_of(tmp_path, trace.snapshot()).moments[0]
    assert {name: getattr(dump, name) for name in expected} == expected


def test_the_worst_moment_is_the_first_with_most_reserved_and_not_in_use(tmp_path):
    trace = TraceBuilder().segment(20 * MIB).alloc(20 * MIB).free().alloc(20 * MIB)
    _dump, _peak, worst = fragmentation_of(tmp_path, trace.snapshot()).moments
    assert (worst.event, worst.free_bytes) == (0, 20 * MIB)


def test_where_a_request_failed_that_moment_comes_first(tmp_path):
    found = fragmentation_of(
        tmp_path, three_segments().oom(22 * MIB, device_free=10 * MIB).snapshot()
    )
    assert [one.moment for one in found.moments][:2] == ["failed allocation 1 of 1", "the dump"]
    assert found.details_at == found.moments[0].moment


def test_a_moment_alone_is_that_of_its_event(tmp_path):
    found = fragmentation_of(tmp_path, three_segments().snapshot(), "1")
    (only,) = found.moments
    assert (only.event, only.reserved_bytes, only.free_bytes) == (1, 20 * MIB, 0)
    assert found.details_at == only.moment == "event 1"


def test_pools_and_streams_are_separate_rows(tmp_path):
    trace = TraceBuilder().segment(20 * MIB).segment(24 * MIB, stream=7).segment(2 * MIB).alloc(MIB)
    rows = fragmentation_of(tmp_path, trace.snapshot()).pools
    assert [(row.stream, row.is_small, row.free_bytes) for row in rows] == [
        (7, False, 24 * MIB),
        (0, False, 19 * MIB),
        (0, True, 2 * MIB),
    ]


def test_a_file_without_a_trace_is_answered_at_the_dump(tmp_path):
    raw = three_segments().snapshot()
    raw["device_traces"] = [[]]
    dump, peak, worst = fragmentation_of(tmp_path, raw).moments
    assert dump.free_bytes == peak.free_bytes == worst.free_bytes == 32 * MIB
    assert dump.event is None


# Of pages of 32 MiB, the second alone holds no block: 8 MiB are in use at the begin of the first.
PAGES_OF_32_MIB = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,large_segment_size_mb:32",
    "expandable_segments": True,
}


def test_of_an_expandable_segment_whole_pages_of_the_size_of_the_settings_are_returnable(tmp_path):
    trace = TraceBuilder().segment(64 * MIB, traced=False, is_expandable=True).alloc(8 * MIB)
    dump = fragmentation_of(tmp_path, trace.snapshot(allocator_settings=PAGES_OF_32_MIB)).moments[0]
    assert (dump.free_bytes, dump.returnable_bytes) == (56 * MIB, 32 * MIB)
    dump = fragmentation_of(tmp_path, trace.snapshot()).moments[0]
    assert (dump.free_bytes, dump.returnable_bytes) == (56 * MIB, 40 * MIB)  # pages of 20 MiB


def test_large_pages_that_are_unmapped_before_the_dump_were_of_a_large_pool(tmp_path):
    trace = TraceBuilder().event("segment_map", addr=ADDR, size=64 * MIB)
    trace.event("alloc", addr=ADDR, size=8 * MIB)
    for action in ("free_requested", "free_completed"):
        trace.event(action, addr=ADDR, size=8 * MIB)
    trace.event("segment_unmap", addr=ADDR, size=64 * MIB)
    raw = trace.snapshot(allocator_settings=PAGES_OF_32_MIB)
    (peak,) = fragmentation_of(tmp_path, raw, "peak").moments
    assert (peak.event, peak.free_bytes, peak.returnable_bytes) == (1, 56 * MIB, 32 * MIB)
    (pool,) = fragmentation_of(tmp_path, raw, "peak").pools
    assert (pool.is_small, pool.returnable_bytes) == (False, 32 * MIB)


@pytest.mark.parametrize(
    "conf",
    [
        "",
        "expandable_segments:True",
        "expandable_segments:True,large_segment_size_mb:32",
        "max_split_size_mb:32",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_what_empty_cache_returns_is_what_the_allocator_gives_back(tmp_path, conf, seed):
    model, generator = (
        RecordedAllocator(settings=AllocatorSettings.from_conf(conf)),
        np.random.default_rng(seed),
    )
    live = []
    for _ in range(150):
        if generator.integers(3) and live:
            model.free(live.pop(int(generator.integers(len(live)))))
        size = int(generator.choice([700, 200_000, 3 * MIB, 15 * MIB, 45 * MIB]))
        live.append(model.malloc(size, stream=int(generator.integers(2))))
    dump = fragmentation_of(tmp_path, model.snapshot()).moments[0]
    before = model.reserved_bytes
    model.empty_cache()
    assert dump.returnable_bytes == before - model.reserved_bytes
    assert dump.reserved_bytes == before


@pytest.mark.skipif(not REAL.is_dir(), reason="real snapshots are not here")
def test_a_real_step_has_the_free_memory_that_its_segments_show():
    """Counted by hand from the raw segments: 22.21 GiB reserved, 6.58 GiB of them without a block."""
    raw = pickle.loads((REAL / "notHanmin-assignment2-systems-memory_snapshot.pickle").read_bytes())
    whole = [s for s in raw["segments"] if all(b["state"] == "inactive" for b in s["blocks"])]
    pieces = [b["size"] for s in raw["segments"] for b in s["blocks"] if b["state"] == "inactive"]
    (found,) = snapconv.load(
        REAL / "notHanmin-assignment2-systems-memory_snapshot.pickle"
    ).fragmentation()
    dump = found.moments[0]
    assert dump.returnable_bytes == sum(s["total_size"] for s in whole)
    assert (dump.free_bytes, dump.largest_free_bytes) == (sum(pieces), max(pieces))


def test_the_conclusion_of_little_waste_is_no_problem(tmp_path):
    found = fragmentation_of(tmp_path, three_segments().snapshot())
    # 20 + 8 + 24 MiB are in use at once, before the first of them is freed.
    assert (
        found.conclusion
        == "64.00 MiB reserved at most, 12.00 MiB more than was ever in use at once: no problem"
    )


def test_the_conclusion_of_much_waste_says_where_it_lies(tmp_path):
    trace = TraceBuilder()
    trace.segment(600 * MIB).alloc(600 * MIB, frames=OTHER).free(trace.segments[0]["address"])
    trace.segment(500 * MIB).alloc(500 * MIB, frames=OTHER)  # 1100 MiB reserved, 600 in use at once
    found = fragmentation_of(tmp_path, trace.snapshot())
    assert found.conclusion == (
        "1.07 GiB reserved at most, 0.49 GiB more than was ever in use at once; "
        "when most was free, most of it was in empty segments, which empty_cache() returns"
    )


def test_memory_that_the_peak_uses_is_no_waste_of_the_conclusion(tmp_path):
    trace = TraceBuilder()
    trace.segment(400 * MIB).alloc(4 * MIB, frames=KEEPER)  # 396 MiB that nothing else can use
    trace.segment(2000 * MIB).alloc(2000 * MIB, frames=OTHER).free(trace.segments[1]["address"])
    found = fragmentation_of(tmp_path, trace.snapshot())
    assert found.conclusion == (
        "2.34 GiB reserved at most, 0.39 GiB more than was ever in use at once; "
        "at the peak, most free memory was in partly used segments, which "
        "empty_cache() cannot return"
    )


def test_gigabytes_of_waste_are_a_problem_however_much_is_reserved(tmp_path):
    trace = TraceBuilder()
    trace.segment(60_000 * MIB).alloc(57_000 * MIB, frames=KEEPER)  # 5 % are free
    found = fragmentation_of(tmp_path, trace.snapshot())
    assert found.conclusion.startswith(
        "58.59 GiB reserved at most, 2.93 GiB more than was ever in use at once; "
        "at the peak, most free memory was in"
    )


def test_memory_that_waits_for_a_stream_is_not_called_no_problem(tmp_path):
    trace = TraceBuilder().segment(600 * MIB).alloc(600 * MIB, frames=OTHER).free(completed=False)
    found = fragmentation_of(tmp_path, trace.snapshot())
    assert found.conclusion.endswith(
        "ever in use at once; 600.00 MiB was freed and waited for another stream"
    )


def test_where_the_trace_contradicts_the_segments_nothing_is_called_no_problem(tmp_path):
    trace = TraceBuilder()
    trace.segment(2 * MIB).alloc(MIB)
    trace.event("alloc", addr=1 << 40, size=30 * MIB).event(
        "free_requested", addr=1 << 40, size=30 * MIB
    )
    trace.event("free_completed", addr=1 << 40, size=30 * MIB)
    found = fragmentation_of(tmp_path, trace.snapshot())
    assert found.conclusion.endswith("was not in use: the trace contradicts the file's segments")
    # A note has the number of events that do not fit: no other number stands beside it.
    assert "  the trace contradicts the segments: only the dump is shown" in fragmentation_lines(
        found, "s.pickle"
    )


def test_the_conclusion_at_a_failure_compares_what_was_free_with_the_request(tmp_path):
    for request, expected in (
        (30 * MIB, "too little for it, so fragmentation is not the reason"),
        (11 * MIB, "enough for it, but not in one usable piece"),
    ):
        failed = TraceBuilder()
        failed.segment(20 * MIB).alloc(8 * MIB, frames=KEEPER).oom(request, device_free=0)
        assert fragmentation_of(tmp_path, failed.snapshot()).conclusion.endswith(expected)
