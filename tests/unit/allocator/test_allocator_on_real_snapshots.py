"""The allocator model against snapshots of real GPUs: same calls, same addresses, same final map.

The state before the trace is rebuilt from the file by undoing the trace from its end. Only where
blocks start is needed for that; the sizes of blocks that were allocated before the trace and freed in
it follow from the rules of the pools (see ``Rewound.size_of``), except where the note says so.
"""

import pickle
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import SMALL_SEGMENT_BYTES, AllocatorSettings

REAL_SNAPSHOTS = Path(__file__).parents[4] / "shared" / "snapshots"
FILES = sorted(REAL_SNAPSHOTS.glob("*.pickle"))


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def load(path):
    with path.open("rb") as file:
        return PlainUnpickler(file).load()


@dataclass
class Range:
    """A segment and its pool. Only an expandable one has a hole behind its last block, where it can grow."""

    addr: int
    size: int
    stream: int
    is_small: bool
    pool: tuple = (0, 0)
    is_expandable: bool = False

    @property
    def end(self):
        return self.addr + self.size


@dataclass
class Rewound:
    """The allocator's state at the trace's beginning: where live blocks start, and how long they are."""

    settings: AllocatorSettings
    ranges: dict[int, Range] = field(default_factory=dict)
    range_starts: list[int] = field(default_factory=list)  # sorted
    starts: list[int] = field(default_factory=list)  # of live blocks, sorted
    requested: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int | None] = field(default_factory=dict)  # None: freed in the trace
    gap: dict[int, int] = field(default_factory=dict)  # least distance to the next live block
    pending: set[int] = field(default_factory=set)
    n_ambiguous: int = 0

    def read_segments(self, raw_segments):
        for raw in raw_segments:
            pool = tuple(raw.get("segment_pool_id", (0, 0)))
            is_small = raw["segment_type"] == "small"
            is_expandable = raw.get("is_expandable", False)
            self.add_range(
                Range(raw["address"], raw["total_size"], raw["stream"], is_small, pool, is_expandable)
            )
            addr = raw["address"]
            for block in raw["blocks"]:
                if block["state"] != "inactive":
                    self.add(addr, block["requested_size"], block["size"])
                if block["state"] == "active_pending_free":
                    self.pending.add(addr)
                addr += block["size"]

    def add_range(self, segment):
        self.ranges[segment.addr] = segment
        insort(self.range_starts, segment.addr)

    def add(self, addr, requested, size):
        left = self.left_of(addr)
        if left is not None:
            self.gap[left] = min(self.gap[left], addr - left)
        insort(self.starts, addr)
        self.requested[addr] = requested
        self.sizes[addr] = size
        self.gap[addr] = self.end_of_gap(addr) - addr

    def remove(self, addr):
        del self.starts[bisect_left(self.starts, addr)]
        del self.requested[addr], self.sizes[addr], self.gap[addr]

    def range_of(self, addr):
        return self.ranges[self.range_starts[bisect_right(self.range_starts, addr) - 1]]

    def left_of(self, addr):
        i = bisect_left(self.starts, addr)
        return self.starts[i - 1] if i and self.starts[i - 1] >= self.range_of(addr).addr else None

    def end_of_gap(self, addr):
        end = self.range_of(addr).end
        i = bisect_right(self.starts, addr)
        return min(end, self.starts[i]) if i < len(self.starts) else end

    def undo(self, entry):
        match entry["action"]:
            case "alloc":
                self.undo_alloc(entry["addr"], entry["size"])
            case "free_requested":
                self.pending.remove(entry["addr"])
            case "free_completed":
                self.add(entry["addr"], entry["size"], None)
                self.pending.add(entry["addr"])
            case "segment_alloc":
                del self.ranges[entry["addr"]]
                self.range_starts.remove(entry["addr"])
            case "segment_free":
                is_small = entry["size"] == SMALL_SEGMENT_BYTES
                self.add_range(Range(entry["addr"], entry["size"], entry["stream"], is_small))

    def undo_alloc(self, addr, requested):
        assert self.requested[addr] == requested
        # A block is placed where free memory begins: where its left neighbour ends.
        left = self.left_of(addr)
        if left is not None and self.sizes[left] is None:
            self.sizes[left] = addr - left
        assert addr == (self.range_of(addr).addr if left is None else left + self.sizes[left])
        gap, rounded = self.end_of_gap(addr) - addr, self.settings.round_size(requested)
        splits = self.settings.should_split(gap, rounded, is_small=self.range_of(addr).is_small)
        assert self.sizes[addr] in (None, rounded if splits else gap)
        self.remove(addr)

    def size_of(self, addr):
        """The size of a block; for one that was freed in the trace, by the rule of an alloc in its gap.

        In a small pool that is exact, since a block never keeps 512 bytes more than it needs. In a
        large pool all blocks, free ones too, are longer than 1 MiB, so that a shorter gap before the
        next live block is the block's own; over a longer gap it may hide up to 1 MiB: counted.
        """
        if (size := self.sizes[addr]) is not None:
            return size
        rounded, gap = self.settings.round_size(self.requested[addr]), self.gap[addr]
        is_small = self.range_of(addr).is_small
        if not self.settings.should_split(gap, rounded, is_small=is_small):
            return gap
        self.n_ambiguous += not is_small
        return rounded

    def raw_segments(self):
        return [self.raw_segment(segment) for segment in self.ranges.values()]

    def raw_segment(self, segment):
        blocks, addr = [], segment.addr
        first, last = bisect_left(self.starts, segment.addr), bisect_left(self.starts, segment.end)
        for start in self.starts[first:last]:
            if start > addr:
                blocks.append({"size": start - addr, "requested_size": 0, "state": "inactive"})
            state = "active_pending_free" if start in self.pending else "active_allocated"
            size = self.size_of(start)
            blocks.append({"size": size, "requested_size": self.requested[start], "state": state})
            addr = start + size
        if addr < segment.end:
            blocks.append({"size": segment.end - addr, "requested_size": 0, "state": "inactive"})
        return {
            "address": segment.addr,
            "total_size": segment.size,
            "stream": segment.stream,
            "segment_type": "small" if segment.is_small else "large",
            "segment_pool_id": segment.pool,
            "is_expandable": segment.is_expandable,
            "blocks": blocks,
        }


@dataclass
class TracedAddresses:
    """The driver's part: new segments lie where they lay on the real device."""

    addrs: list[int]

    def take(self, n_bytes):
        return self.addrs.pop(0) if self.addrs else 0

    def give_back(self, addr, n_bytes):
        pass


def replay(allocator, trace):
    """Make the calls that led to the trace; segments come and go by themselves."""
    previous = {"action": None}
    for entry in trace:
        if entry["action"] == "alloc":
            allocator.malloc(entry["size"], stream=entry["stream"], frames=entry.get("frames"))
        elif entry["action"] == "free_requested":
            allocator.free(entry["addr"], frames=entry.get("frames"))
        elif entry["action"] == "free_completed" and previous["action"] != "free_requested":
            allocator.process_events()
        elif entry["action"] == "segment_free" and previous["action"] != "segment_free":
            allocator.empty_cache()
        elif entry["action"] == "snapshot":
            allocator.snapshot()
        previous = entry


def events(trace):
    return [(entry["action"], entry["addr"], entry["size"], entry["stream"]) for entry in trace]


def block_map(raw_segments, *, with_stale_sizes):
    """The blocks by address: state and size, and the request where it is known."""
    blocks = {}
    for raw in raw_segments:
        addr = raw["address"]
        for block in raw["blocks"]:
            is_known = block["state"] != "inactive" or with_stale_sizes
            blocks[addr] = (block["state"], block["size"], block["requested_size"] if is_known else None)
            addr += block["size"]
    return blocks


SEGMENT_KEYS = ("total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type")


def segment_map(raw_segments):
    """The segments by address: sums, pool, and the stack that got them where torch still has it."""
    return {
        raw["address"]: (
            *(raw[key] for key in SEGMENT_KEYS),
            tuple(raw.get("segment_pool_id", (0, 0))),
            raw.get("frames", []),
        )
        for raw in raw_segments
    }


def tiles(raw):
    return sum(block["size"] for block in raw["blocks"]) == raw["total_size"]


def rebuild(snapshot, trace):
    """Make an allocator that stands where the real one stood before the trace."""
    settings = AllocatorSettings.from_conf(
        snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", "")
    )
    rewound = Rewound(settings)
    rewound.read_segments(snapshot["segments"])
    for entry in reversed(trace):
        rewound.undo(entry)
    new_segments = [entry["addr"] for entry in trace if entry["action"] == "segment_alloc"]
    allocator = RecordedAllocator(settings=settings, addresses=TracedAddresses(new_segments))
    allocator.adopt(rewound.raw_segments())
    return allocator, rewound


@pytest.mark.skipif(not FILES, reason="the real snapshots are not beside this checkout")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_replaying_a_real_trace_gives_its_events_and_its_final_blocks(path):
    snapshot = load(path)
    trace = snapshot["device_traces"][0]
    if not all(tiles(raw) for raw in snapshot["segments"]):
        pytest.skip("a synthetic file: its blocks do not fill their segments")
    if not trace:
        pytest.skip("the file has no trace")
    allocator, rewound = rebuild(snapshot, trace)
    replay(allocator, trace)
    assert events(allocator.trace()) == events(trace)
    is_complete = not rewound.ranges
    assert block_map(allocator.segments(), with_stale_sizes=is_complete) == block_map(
        snapshot["segments"], with_stale_sizes=is_complete
    )
    if is_complete:
        assert segment_map(allocator.segments()) == segment_map(snapshot["segments"])


@pytest.mark.skipif(not FILES, reason="the real snapshots are not beside this checkout")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_adopted_real_segments_come_out_as_they_went_in(path):
    raw_segments = [raw for raw in load(path)["segments"] if raw["device"] == 0]
    if not all(tiles(raw) for raw in raw_segments):
        pytest.skip("a synthetic file: its blocks do not fill their segments")
    allocator = RecordedAllocator()
    allocator.adopt(raw_segments)
    assert segment_map(allocator.segments()) == segment_map(raw_segments)
    assert block_map(allocator.segments(), with_stale_sizes=True) == block_map(
        raw_segments, with_stale_sizes=True
    )
