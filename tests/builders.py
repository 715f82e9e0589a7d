"""Snapshots as torch writes them, small enough that a test shows every number it asserts.

    snapshot = (
        TraceBuilder()
        .segment(2 * MIB)
        .alloc(512)                       # at the lowest free address; live until it is freed
        .free()                           # the newest live block: free_requested, free_completed
        .alloc(1000, frames=[frame("f")])
        .snapshot()
    )

Blocks are rounded up to 512 bytes, which is all that this builder has of the allocator's rules;
what is not live in a segment is inactive. Times are START_US, START_US + 1, …. Every value of an
entry can be replaced by a keyword argument, and ``event`` appends anything at all.
"""

import pickle
from pathlib import Path
from typing import Any

from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.stack_facts import infer_operations

MIB = 1 << 20
ADDR = 0x7F00_0000_0000
START_US = 1_700_000_000_000_000

Raw = dict[str, Any]


def write_anew(path: Path, content: bytes) -> None:
    """Write a file where another may be; ext4 waits for the disk where one is emptied and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def frame(name: str = "train", filename: str = "/home/me/project/train.py", line: int = 7) -> Raw:
    """One frame of a stack."""
    return {"name": name, "filename": filename, "line": line}


class TraceBuilder:
    """One device's memory and trace; ``snapshot`` joins several builders, one per device."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.events: list[Raw] = []
        self.segments: list[Raw] = []
        self._live: dict[int, Raw] = {}

    def segment(self, size: int = 2 * MIB, *, traced: bool = True, **fields: Any) -> "TraceBuilder":
        """Get a segment from the driver; ``traced=False``: before recording began."""
        last = self.segments[-1] if self.segments else {"address": ADDR, "total_size": 0}
        raw: Raw = {
            "device": self.device,
            "address": last["address"] + last["total_size"],
            "total_size": size,
            "stream": 0,
            "segment_type": "small" if size == 2 * MIB else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
        } | fields
        self.segments.append(raw)
        if traced:
            self.event("segment_alloc", addr=raw["address"], size=size)
        return self

    def alloc(
        self, size: int, *, traced: bool = True, frames: list[Raw] | None = None, **fields: Any
    ) -> "TraceBuilder":
        """Allocate a block at the lowest free address that has room for it."""
        frames = [frame()] if frames is None else frames
        n_bytes = max(-(-size // 512) * 512, 512)
        addr = self._room(n_bytes)
        self._live[addr] = {
            "address": addr,
            "size": n_bytes,
            "requested_size": size,
            "state": "active_allocated",
            "frames": frames,
        }
        return (
            self.event("alloc", addr=addr, size=size, frames=frames, **fields) if traced else self
        )

    def free(
        self, addr: int | None = None, *, completed: bool = True, **fields: Any
    ) -> "TraceBuilder":
        """Free a live block, the newest one by default; not completed, it stays as a pending free."""
        addr = next(reversed(self._live)) if addr is None else addr
        block = self._live[addr]
        self.event("free_requested", addr=addr, size=block["requested_size"], **fields)
        if not completed:
            block["state"] = "active_pending_free"
            return self
        del self._live[addr]
        return self.event("free_completed", addr=addr, size=block["requested_size"], **fields)

    def complete(self, addr: int) -> "TraceBuilder":
        """Complete a free that was requested before: no stream uses the block any more."""
        block = self._live.pop(addr)
        return self.event("free_completed", addr=addr, size=block["requested_size"])

    def event(self, action: str, **fields: Any) -> "TraceBuilder":
        """Append a trace entry as it is."""
        time_us = START_US + len(self.events)
        base = {
            "action": action,
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": time_us,
            "frames": [],
        }
        self.events.append(base | fields)
        return self

    def oom(self, size: int, device_free: int = 0) -> "TraceBuilder":
        """Append a failed request; it has ``device_free`` in the place of ``addr``."""
        self.event("oom", size=size, device_free=device_free)
        del self.events[-1]["addr"]
        return self

    def raw_segments(self) -> list[Raw]:
        """The segments with their blocks, as they are now."""
        return [{**raw, **self._totals(raw), "blocks": self._blocks(raw)} for raw in self.segments]

    def snapshot(self, *others: "TraceBuilder", **fields: Any) -> Raw:
        """The whole dictionary; ``others`` are further devices, ``fields`` further keys."""
        builders = (self, *others)
        n_devices = 1 + max(builder.device for builder in builders)
        traces: list[list[Raw]] = [[] for _ in range(n_devices)]
        for builder in builders:
            traces[builder.device] = [dict(event) for event in builder.events]
        segments = [raw for builder in builders for raw in builder.raw_segments()]
        return {"segments": segments, "device_traces": traces} | fields

    def as_host(self) -> Raw:
        """The keys of a snapshot that have this as pinned host memory; its device should be -1."""
        return {
            "host_segments": self.raw_segments(),
            "host_traces": [dict(event) for event in self.events],
        }

    def write(self, path: Path, *others: "TraceBuilder", protocol: int = 4, **fields: Any) -> Path:
        """Pickle the snapshot of this device and of others."""
        path.write_bytes(pickle.dumps(self.snapshot(*others, **fields), protocol))
        return path

    def _room(self, n_bytes: int) -> int:
        for raw in self.segments:
            addr: int = raw["address"]
            for block in self._live_in(raw):
                if block["address"] - addr >= n_bytes:
                    return addr
                addr = block["address"] + block["size"]
            if raw["address"] + raw["total_size"] - addr >= n_bytes:
                return addr
        raise ValueError(f"no segment has {n_bytes} bytes left: call segment() first")

    def _live_in(self, raw: Raw) -> list[Raw]:
        end = raw["address"] + raw["total_size"]
        return [block for addr, block in sorted(self._live.items()) if raw["address"] <= addr < end]

    def _blocks(self, raw: Raw) -> list[Raw]:
        blocks, addr, end = [], raw["address"], raw["address"] + raw["total_size"]
        for block in [*self._live_in(raw), None]:
            until = end if block is None else block["address"]
            if addr < until:
                blocks.append(_inactive(addr, until - addr))
            if block is not None:
                blocks.append(dict(block))
                addr = block["address"] + block["size"]
        return blocks

    def _totals(self, raw: Raw) -> Raw:
        live = self._live_in(raw)
        allocated = [block for block in live if block["state"] == "active_allocated"]
        return {
            "allocated_size": sum(block["size"] for block in allocated),
            "active_size": sum(block["size"] for block in live),
            "requested_size": sum(block["requested_size"] for block in live),
        }


def _inactive(addr: int, size: int) -> Raw:
    # torch leaves the last occupant's requested size in an inactive block.
    return {"address": addr, "size": size, "requested_size": 1, "state": "inactive", "frames": []}


def name_operations(stacks: StackTable) -> tuple[str, ...]:
    """The operation of every stack."""
    found = infer_operations(stacks)
    return tuple(found.names[number] for number in found.name_id.tolist())
