"""The allocator model on random histories: its counters, its segments, and torch's invariants."""

from itertools import pairwise

import pytest
from hypothesis import given

from tests.drawn_inputs import drawn
from tests.property.histories import (
    History,
    histories,
    run,
    seeded_program,
    totals_of,
    without_keys,
)
from tests.property.oracle import NOTHING, curves


def check_counters(history: History):
    assert [totals_of(event) for event in history.complete] == curves(history.complete)
    assert all(t.requested <= t.active <= t.reserved for t in history.totals)
    assert all(t.allocated <= t.active for t in history.totals)


def check_snapshot(history: History):
    """What torch's snapshots obey: blocks tile, neighbours are merged, sums agree."""
    end = totals_of(history.complete[-1]) if history.complete else NOTHING
    raws = history.snapshot["segments"]
    assert sum(raw["total_size"] for raw in raws) == end.reserved
    assert sum(raw["allocated_size"] for raw in raws) == end.allocated
    assert sum(raw["active_size"] for raw in raws) == end.active
    assert sum(raw["requested_size"] for raw in raws) == end.requested
    live = live_blocks(history)
    for raw in raws:
        addr, previous = raw["address"], None
        for block in raw["blocks"]:
            assert block["address"] == addr
            assert block["size"] % 512 == 0 < block["size"]
            assert not previous == block["state"] == "inactive"
            if block["state"] != "inactive":
                assert live.pop(addr) == (block["requested_size"], block["size"])
            addr, previous = addr + block["size"], block["state"]
        assert addr == raw["address"] + raw["total_size"]
    assert live == {}
    addrs = [(raw["address"], raw["address"] + raw["total_size"]) for raw in raws]
    assert all(a[1] <= b[0] for a, b in pairwise(addrs))


def live_blocks(history: History):
    live = {}
    for event in history.complete:
        if event.action == "alloc":
            live[event.addr] = (event.size, event.block_bytes)
        elif event.action == "free_completed":
            del live[event.addr]
    return live


def check_trace(history: History):
    assert len(history.trace) == len(history.events)
    for entry, event in zip(history.trace, history.events, strict=True):
        assert (entry["action"], entry["size"]) == (event.action, event.size)
    times = [entry["time_us"] for entry in history.trace]
    assert times == sorted(times)
    totals = [history.totals_before, *history.totals]
    assert totals[-1] == (totals_of(history.complete[-1]) if history.complete else NOTHING)


def check_sizes_of_blocks(history: History):
    """Free and used blocks of a large ordinary pool exceed 1 MiB: a reader may rely on it."""
    for raw in history.snapshot["segments"]:
        if raw["segment_type"] == "large" and not raw["is_expandable"]:
            assert all(block["size"] > 1 << 20 for block in raw["blocks"])


def check(history: History):
    check_counters(history)
    check_snapshot(history)
    check_trace(history)
    check_sizes_of_blocks(history)


@given(histories())
def test_any_history_is_consistent(history):
    check(history)


@pytest.mark.parametrize("seed", range(drawn(60)))
def test_a_seeded_history_is_consistent(seed):
    check(run(seeded_program(seed)))


def test_a_seed_gives_the_same_history_every_time():
    assert run(seeded_program(3)).snapshot == run(seeded_program(3)).snapshot


def test_the_seeded_histories_contain_every_action():
    seen = {event.action for seed in range(60) for event in run(seeded_program(seed)).events}
    assert seen >= {"alloc", "free_requested", "free_completed", "oom", "snapshot"}
    assert seen >= {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}


def test_keys_that_older_versions_lack_can_be_left_out():
    entry = without_keys(run(seeded_program(1)), "pool_id", "time_us").trace[0]
    assert not {"pool_id", "time_us"} & set(entry)
