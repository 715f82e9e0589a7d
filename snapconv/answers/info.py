"""Facts of a file, without an analysis: torch, devices, events, settings, history."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.columns import count_of, distinct, has_code, plain_rows
from snapconv.notes import Note, Progress
from snapconv.replay.device_replay import Replay, replay
from snapconv.replay.history_verdict import decide_history
from snapconv.replay.rebuilt_segments import rebuild_segments
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.units import device_kind

# JSON-ready values; docs/reference/json.md has the meaning of each.
Facts = dict[str, Any]


def describe(
    path: Path, *, progress: Progress | None = None
) -> tuple[Facts, tuple[Note, ...]]:
    """Read a file and describe it; cheaper than a conversion, since nothing is classified."""
    snapshot = load_snapshot(path, progress=progress)
    devices = [rebuild_segments(snapshot, device) for device in snapshot.devices]
    replays = [replay(snapshot, device) for device in devices]
    container = snapshot.container
    starts = snapshot.annotations.name_id[snapshot.annotations.is_start]
    names, counts = np.unique(starts[starts >= 0], return_counts=True)
    notes = list(snapshot.notes)
    device_facts = []
    for device, replayed in zip(devices, replays, strict=True):
        notes += replayed.notes
        device_facts.append(_device_facts(snapshot, device, replayed))
    facts = {
        "path": str(path),
        "format": container.description,
        "form": snapshot.form.title if snapshot.form else "a memory snapshot",
        "n_bytes": container.n_bytes,
        "pickle_protocol": container.pickle_protocol,
        "written_by": snapshot.written_by,
        "n_visible_devices": snapshot.n_visible_devices,
        "devices": device_facts,
        "n_stacks": len(snapshot.stacks),
        "n_frames": len(snapshot.stacks.frames),
        "settings": dict(snapshot.settings_entries),
        "annotations": {snapshot.texts[i]: n for i, n in plain_rows(names, counts)},
        "recorder": snapshot.facts,
        "notes": list(map(asdict, notes)),
    }
    return facts, tuple(notes)


def _device_facts(snapshot: Snapshot, device: DeviceSnapshot, replayed: Replay) -> Facts:
    """Describe one device; bytes are those at the dump.

    Active bytes are the sum of the recorded blocks: the replay also counts allocations that the
    trace leaves live and the segments lack, and decides only where no segments are recorded.
    Reserved bytes need no such choice: the replay ends at the sum of the recorded segments.
    """
    events = device.events
    segments = device.segments
    blocks = device.blocks
    times = events.time_us
    active_bytes = replayed.active.end
    n_segments = n_blocks = n_live_blocks = 0
    if device.has_segments:
        active_bytes = int(blocks.block_bytes[blocks.is_live].sum())
        n_segments = len(segments)
        n_blocks = len(blocks)
        n_live_blocks = count_of(blocks.is_live)
    duration_us = None
    if times is not None and len(times):
        duration_us = int(times[-1] - times[0])
    history = decide_history(snapshot, device, replayed)
    counts = {
        action.name.lower(): count_of(has_code(events.action, action)) for action in Action
    }
    return {
        "device": device.device,
        "kind": device_kind(device.device),
        "n_events": len(events),
        "duration_us": duration_us,
        "actions": {name: count for name, count in counts.items() if count},
        "n_segments": n_segments,
        "n_blocks": n_blocks,
        "n_live_blocks": n_live_blocks,
        "n_pools": len(distinct(segments.pool_id)),
        "n_streams": len(distinct(segments.stream)),
        "reserved_bytes": replayed.reserved.end,
        "active_bytes": active_bytes,
        "at_least": sorted(replayed.lower_bounds),
        "n_checked_sizes": replayed.size_check.n_checked,
        "n_different_sizes": replayed.size_check.n_different,
        "history": history.verdict.value,
        "history_reason": history.reason,
    }
