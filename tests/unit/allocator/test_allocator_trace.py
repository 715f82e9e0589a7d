"""The counters of an allocator are what its events, which are counted here one by one, add up to."""

import random
from collections import Counter

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings

CONFS = ("", "expandable_segments:True", "max_split_size_mb:21,roundup_power2_divisions:4")
SIZES = (1, 512, 40_000, MIB, MIB + 1, 3 * MIB, 10 * MIB, 24 * MIB)


def busy(conf, seed):
    """An allocator that a random program has used, with every event that it made."""
    events, live, draw = [], [], random.Random(seed)
    model = RecordedAllocator(settings=AllocatorSettings.from_conf(conf))
    model.ledger.listener = events.append
    for _ in range(120):
        kind = draw.random()
        if kind < 0.55 or not live:
            live.append(model.malloc(draw.choice(SIZES), stream=draw.choice((0, 0, 7))))
        elif kind < 0.95:
            model.free(live.pop(draw.randrange(len(live))))
        else:
            model.empty_cache()
    return model.ledger, events


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(4))
def test_counters_and_highest_bytes_are_what_the_events_add_up_to(conf, seed):
    ledger, events = busy(conf, seed)
    seen = Counter(event.action for event in events)
    assert ledger.n_segment_allocs == seen["segment_alloc"]
    assert ledger.n_segment_maps == seen["segment_map"]
    assert seen["segment_free"] + seen["segment_unmap"] > 0
    assert seen["segment_map" if "expandable" in conf else "segment_alloc"] > 1
    allocated, reserved, most_allocated, most_reserved = 0, 0, 0, 0
    for event in events:
        sign = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
        reserved += sign.get(event.action, 0) * event.size
        allocated += {"alloc": 1, "free_requested": -1}.get(event.action, 0) * (
            event.block_bytes or 0
        )
        most_allocated, most_reserved = max(most_allocated, allocated), max(most_reserved, reserved)
    assert (ledger.reserved_bytes, ledger.max_reserved_bytes) == (reserved, most_reserved)
    assert (ledger.allocated_bytes, ledger.max_allocated_bytes) == (allocated, most_allocated)


def test_an_allocator_that_nobody_used_has_counted_nothing():
    ledger = RecordedAllocator().ledger
    totals = (
        ledger.requested_bytes,
        ledger.allocated_bytes,
        ledger.active_bytes,
        ledger.reserved_bytes,
    )
    highest = (ledger.max_allocated_bytes, ledger.max_reserved_bytes)
    counts = (ledger.n_segment_allocs, ledger.n_segment_maps)
    assert {*totals, *highest, *counts} == {0}
