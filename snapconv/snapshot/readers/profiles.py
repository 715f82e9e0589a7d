"""Memory that torch.profiler wrote down -> a snapshot's dictionary.

The forms are those of torch/profiler/_memory_profiler.py and of _profile_to_snapshot in
torch/cuda/_memory_viz.py (2.13). Neither has segments: what the allocator reserved, and what blocks
round up to, is in none of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from snapconv.snapshot.fields import ADDRESS, BYTES, TIME, Bounds, Rows, expect
from snapconv.snapshot.readers.form import Form
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
    "category": Bounds(0, len(OF_TIMELINE) - 1, f"a category from 0 to {len(OF_TIMELINE) - 1}"),
}
# A tensor keeps these as long as it is there.
_LASTING = {"parameter", "optimizer_state"}
# Beyond the addresses of a process, and within the bounds of one.
_NO_ADDRESS = 1 << 58


def read_timeline(raw: object) -> tuple[object, Form | None]:
    """Turn ``x.raw.json.gz`` of export_memory_timeline into a snapshot's value; others stay as they are."""
    if isinstance(raw, list) and raw and isinstance(raw[0], list) and len(raw[0]) == len(_COLUMNS):
        rows = Rows.of_lists(raw, _COLUMNS, "")
        form = replace(_TIMELINE, n_before=rows.values("time").count(-1))
        return {"device_traces": [list(_changes(rows))]}, form
    return raw, None


def _changes(rows: Rows) -> Iterator[Raw]:
    """Yield an event for every row of a raw timeline: one of less than 0 bytes is a free.

    They have no identity: of equal tensors of a category the newest is freed. A tensor that is
    written to is freed and allocated again. The time of what was there before is -1.
    """
    columns = [rows.ints(name, bounds).tolist() for name, bounds in _COLUMNS.items()]
    begin = min(filter((-1).__lt__, columns[0]), default=0)
    live: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (time, _, size, position) in enumerate(zip(*columns, strict=True)):
        is_free = size < 0
        addresses = live[position, abs(size)]
        addresses += [] if is_free else [i]
        address = addresses.pop() if is_free and addresses else i
        yield {
            "action": "free" if is_free else "alloc",
            "addr": address,
            "size": abs(size),
            "category": OF_TIMELINE[position],
            "time_us": max(begin, time) // 1000,
        }


def read_plot(raw: Raw) -> tuple[Raw, Form | None]:
    """Turn the dictionary of profile_plot into a snapshot's; others stay as they are.

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
    whole = [
        _whole(rows, blocks.block_bytes[blocks.is_live & (devices == device)].tolist())
        for device, rows in enumerate(traces)
    ]
    n_before = sum(len(before) for before, _ in whole)
    kinds = ("cuda",) * (len(whole) - 1) + ("cpu",)
    events = [[*before, *events] for before, events in whole]
    return {"device_traces": events}, replace(_PLOT, kinds=kinds, n_before=n_before)


def _whole(rows: Rows, sizes_at_end: list[int]) -> tuple[list[Raw], list[Raw]]:
    """Return an alloc of all that was there before, and the allocs and frees of a trace.

    That is what is freed without one, or only there at the end. A tensor that is written to is
    freed, and begins again at once at its address: where its category stays, it keeps its life.
    """
    ended = Raw()
    before: list[Raw] = []
    events: list[Raw] = []
    live: dict[int, Raw] = {}
    columns = rows.texts("action"), rows.ints("addr", ADDRESS).tolist(), rows.texts("category")
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
    return [
        *({"action": "alloc", "addr": addr, "size": size} for addr, size in sizes),
        *before,
    ], events


def _is_written(ended: Raw, row: Raw) -> bool:
    """Return whether an alloc is a new version of what has just ended, in a category that it can have had."""
    if (ended.get("addr"), ended.get("size")) != (row["addr"], row["size"]):
        return False
    # By their names, so that nothing deep is compared.
    stacks = [
        Rows.of(event.get("frames"), "device_traces[].frames").texts("name")
        for event in (ended, row)
    ]
    if stacks[0] != stacks[1]:
        return False
    category = row.get("category")
    earlier = ended.get("category")
    return category == earlier or (not earlier and category in _LASTING)
