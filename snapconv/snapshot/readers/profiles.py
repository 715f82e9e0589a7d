"""Memory that torch.profiler wrote down -> a snapshot's dictionary.

The forms are those of torch/profiler/_memory_profiler.py and of _profile_to_snapshot in
torch/cuda/_memory_viz.py (2.13). Neither has segments: what the allocator reserved, and what blocks
round up to, is in none of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from snapconv.snapshot.fields import ADDRESS, BYTES, TIME, Bounds, Rows, expect, expect_all
from snapconv.snapshot.readers.form import Form, earlier_allocations
from snapconv.snapshot.segment_table import read_segments
from snapconv.snapshot.stack_table import Collected
from snapconv.torch_knowledge.profiler_categories import OF_TIMELINE

Raw = dict[str, Any]

_NO_ALLOCATOR = (
    "it has tensors and not the allocator: what was reserved, and rounding, is not in it"
)
_TIMELINE = Form(
    "a raw memory timeline of torch.profiler (export_memory_timeline)",
    f"{_NO_ALLOCATOR}; it has no stacks, and it does not name its device",
)
_PLOT = Form(
    "a page of torch.profiler's memory (torch.cuda._memory_viz.profile_plot)",
    f"{_NO_ALLOCATOR}; what was there before has no stack, and mostly no category",
)
_COLUMNS = {
    "time": Bounds(-1, TIME.high, "a time in ns, or -1"),
    "action": Bounds(1, 4, "an action from 1 to 4"),
    "size": Bounds(-BYTES.high, BYTES.high, "at most 2^48 bytes"),
    "category": Bounds(
        0, len(OF_TIMELINE) - 1, f"a category from 0 to {len(OF_TIMELINE) - 1}"
    ),
}
# A tensor keeps these as long as it is there.
_LASTING = {"parameter", "optimizer_state"}
# Beyond the addresses of a process, and within the bounds of one.
_NO_ADDRESS = 1 << 58


def read_timeline(raw: object) -> tuple[object, Form | None]:
    """Turn ``x.raw.json.gz`` of export_memory_timeline into a snapshot's value.

    Any other value stays as it is.
    """
    if not isinstance(raw, list) or not raw:
        return raw, None
    first = raw[0]
    if not isinstance(first, list) or len(first) != len(_COLUMNS):
        return raw, None
    lists = expect_all(raw, list, "")
    rows = Rows.of([dict(zip(_COLUMNS, row, strict=False)) for row in lists], "")
    n_before = rows.values("time").count(-1)
    form = replace(_TIMELINE, earlier=(earlier_allocations(n_before),))
    return {"device_traces": [list(_changes(rows))]}, form


def _changes(rows: Rows) -> Iterator[Raw]:
    """Yield an event for every row of a raw timeline: one of less than 0 bytes is a free.

    They have no identity: of equal tensors of a category the newest is freed. A tensor that is
    written to is freed and allocated again. The time of what was there before is -1.
    """
    columns = [rows.ints(name, bounds).tolist() for name, bounds in _COLUMNS.items()]
    begin = min((time for time in columns[0] if time >= 0), default=0)
    live: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (time, _, size, position) in enumerate(zip(*columns, strict=True)):
        addresses = live[position, abs(size)]
        address = i
        if size >= 0:
            addresses.append(i)
        elif addresses:
            address = addresses.pop()
        yield {
            "action": "free" if size < 0 else "alloc",
            "addr": address,
            "size": abs(size),
            "category": OF_TIMELINE[position],
            "time_us": max(begin, time) // 1000,
        }


def read_plot(raw: Raw) -> tuple[Raw, Form | None]:
    """Turn the dictionary of profile_plot into a snapshot's; any other stays as it is.

    Its allocs have a category, and no event has a time. It has one trace for every CUDA device and
    a last one for all else.
    """
    lists = expect(raw.get("device_traces") or [], list, "device_traces")
    traces = [Rows.of(rows, f"device_traces[{i}]") for i, rows in enumerate(lists)]
    allocs = (row for rows in traces for row in rows.rows if row.get("action") == "alloc")
    first = next(allocs, {})
    if "category" not in first or "time_us" in first:
        return raw, None
    memory = expect(raw.get("segments") or [], list, "segments")
    segments, blocks = read_segments(memory, Collected(), "segments")
    devices = segments.device[blocks.segment_id]
    device_traces = []
    earlier = []
    for device, rows in enumerate(traces):
        is_live = blocks.is_live & (devices == device)
        before, events = _complete_trace(rows, blocks.block_bytes[is_live].tolist())
        device_traces.append([*before, *events])
        earlier.append(earlier_allocations(len(before)))
    kinds = ("cuda",) * (len(traces) - 1) + ("cpu",)
    return {"device_traces": device_traces}, replace(
        _PLOT, kinds=kinds, earlier=tuple(earlier)
    )


def _complete_trace(rows: Rows, sizes_at_end: list[int]) -> tuple[list[Raw], list[Raw]]:
    """Return allocs of the tensors from before a trace, and the trace's allocs and frees.

    Tensors from before are freed without an alloc, or there at the end without one. A tensor that
    is written to is freed, and begins again at once at its address: where its category stays, it
    keeps its life.
    """
    ended = Raw()
    before: list[Raw] = []
    events: list[Raw] = []
    live: dict[int, Raw] = {}
    columns = (
        rows.texts("action"),
        rows.ints("addr", ADDRESS).tolist(),
        rows.texts("category"),
    )
    rows.ints("size", BYTES)
    for row, action, address, category in zip(rows.rows, *columns, strict=True):
        if action == "free_requested":
            if address not in live:
                live[address] = row | {"action": "alloc", "category": ""}
                before.append(live[address])
            ended = live.pop(address)
            events.append({"action": "free", "addr": address, "size": row["size"]})
        elif action == "alloc":
            if _is_written(ended, row):
                ended["category"] = category
                live[address] = ended
                events.pop()
            else:
                live[address] = row
                events.append(row)
            ended = {}
    untraced = Counter(sizes_at_end) - Counter(row["size"] for row in live.values())
    sizes = enumerate(untraced.elements(), _NO_ADDRESS)
    untraced_allocs = [
        {"action": "alloc", "addr": addr, "size": size} for addr, size in sizes
    ]
    return [*untraced_allocs, *before], events


def _is_written(ended: Raw, row: Raw) -> bool:
    """Return whether an alloc is a new version of the tensor that has just ended.

    The category of the new version must be one that the tensor can have had.
    """
    if (ended.get("addr"), ended.get("size")) != (row["addr"], row["size"]):
        return False
    if _frame_names(ended) != _frame_names(row):
        return False
    category = row.get("category")
    earlier = ended.get("category")
    return category == earlier or (not earlier and category in _LASTING)


def _frame_names(event: Raw) -> list[str | None]:
    """Return the names of an event's frames, so that nothing deep is compared."""
    return Rows.of(event.get("frames"), "device_traces[].frames").texts("name")
