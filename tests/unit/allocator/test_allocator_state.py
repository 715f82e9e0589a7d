"""An allocator that takes over the segments of another one goes on as that one would have."""

import random

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings

CONFS = ("", "expandable_segments:True", "max_split_size_mb:21,roundup_power2_divisions:4")
SIZES = (1, 512, 40_000, MIB, MIB + 1, 3 * MIB, 10 * MIB, 24 * MIB, 70 * MIB)
STREAMS = (0, 0, 7)


def new(conf, **options):
    return RecordedAllocator(settings=AllocatorSettings.from_conf(conf), **options)


def use(models, live, draw, n):
    """Do the same with every model, and yield after each step; ``live`` has one address for each of them."""
    for _ in range(n):
        kind = draw.random()
        if kind < 0.5 or not live:
            size, stream = draw.choice(SIZES), draw.choice(STREAMS)
            frames = [{"name": "f", "filename": "a.py", "line": size}]
            live.append([model.malloc(size, stream=stream, frames=frames) for model in models])
        elif kind < 0.95:
            for model, addr in zip(models, live.pop(draw.randrange(len(live))), strict=True):
                model.free(addr)
        else:
            for model in models:
                model.empty_cache()
        yield


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(6))
def test_it_has_the_segments_and_from_then_on_the_same_totals(conf, seed):
    draw, live, original = random.Random(seed), [], new(conf)
    for _ in use([original], live, draw, 80):
        pass
    other = new(conf, base_addr=0x7E00_0000_0000)
    other.adopt(original.segments())
    assert other.segments() == original.segments()
    assert other.reserved_bytes == original.reserved_bytes
    both = [[addr, addr] for (addr,) in live]
    for _ in use([original, other], both, draw, 80):
        assert other.allocated_bytes == original.allocated_bytes
        assert other.reserved_bytes == original.reserved_bytes
    shape = [
        [sorted(block["size"] for block in raw["blocks"]) for raw in model.segments()]
        for model in (original, other)
    ]
    assert sorted(shape[0]) == sorted(shape[1])


def test_the_order_in_which_segments_are_listed_is_no_matter():
    original = new("expandable_segments:True")
    kept = [
        original.malloc(size * MIB, stream=stream) for size, stream in ((40, 0), (50, 7), (20, 0), (40, 0))
    ]
    original.free(kept[2])
    original.empty_cache()
    segments = original.segments()
    assert len(segments) > 2
    for order in (segments, segments[::-1]):
        other = new("expandable_segments:True", base_addr=0x7E00_0000_0000)
        other.adopt(order)
        assert other.segments() == segments
        assert other.malloc(20 * MIB) == kept[2]
