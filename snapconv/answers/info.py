"""Facts of a file, without an analysis: torch, devices, events, settings, history; for ``snapconv info``."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from snapconv.columns import distinct, has_code
from snapconv.notes import Note, Progress
from snapconv.replay.device_replay import Replay, replay
from snapconv.replay.history_verdict import decide_history
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.snapshot.segment_table import BlockState
from snapconv.units import device_kind


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device in numbers; bytes at the dump, duration None without times."""

    device: int
    kind: str
    n_events: int
    duration_us: int | None
    actions: dict[str, int]
    n_segments: int
    n_blocks: int
    n_live_blocks: int
    n_pools: int
    n_streams: int
    reserved_bytes: int
    active_bytes: int
    n_checked_sizes: int
    n_different_sizes: int
    history: str
    history_reason: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file in facts; ``settings`` as the file has them, ``annotations`` with their counts."""

    path: str
    format: str
    n_bytes: int
    pickle_protocol: int | None
    written_by: str
    n_visible_devices: int
    devices: tuple[DeviceFacts, ...]
    n_stacks: int
    n_frames: int
    settings: dict[str, str]
    annotations: dict[str, int]
    recorder: dict[str, str]
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return asdict(self)


def describe(path: Path, *, progress: Progress | None = None) -> FileFacts:
    """Read a file and describe it; cheaper than a conversion, since nothing is classified."""
    snapshot = load_snapshot(path, progress=progress)
    replays = [replay(snapshot, device) for device in snapshot.devices]
    container = snapshot.container
    starts = snapshot.annotations.name_id[snapshot.annotations.is_start]
    names, counts = np.unique(starts[starts >= 0], return_counts=True)
    return FileFacts(
        path=str(path),
        format=container.description,
        n_bytes=container.n_bytes,
        pickle_protocol=container.pickle_protocol,
        written_by=snapshot.written_by,
        n_visible_devices=snapshot.n_visible_devices,
        devices=tuple(_device_facts(snapshot, *both) for both in zip(snapshot.devices, replays, strict=True)),
        n_stacks=len(snapshot.stacks),
        n_frames=len(snapshot.stacks.frames),
        settings=dict(snapshot.settings_entries),
        annotations={snapshot.texts[i]: n for i, n in zip(names.tolist(), counts.tolist(), strict=True)},
        recorder=dict(snapshot.metadata.facts) if snapshot.metadata else {},
        notes=(*snapshot.notes, *(note for replayed in replays for note in replayed.notes)),
    )


def _device_facts(snapshot: Snapshot, device: DeviceSnapshot, replayed: Replay) -> DeviceFacts:
    events, segments, blocks = device.events, device.segments, device.blocks
    live = blocks.state != BlockState.INACTIVE
    history = decide_history(snapshot, device, replayed)
    counts = {
        action.name.lower(): int(np.count_nonzero(has_code(events.action, action))) for action in Action
    }
    timed = events.time_us is not None and len(events) > 0
    return DeviceFacts(
        device=device.device,
        kind=device_kind(device.device),
        n_events=len(events),
        duration_us=int(events.time_us[-1] - events.time_us[0])
        if timed and events.time_us is not None
        else None,
        actions={name: count for name, count in counts.items() if count},
        n_segments=len(segments),
        n_blocks=len(blocks),
        n_live_blocks=int(np.count_nonzero(live)),
        n_pools=len(distinct(segments.pool_id)),
        n_streams=len(distinct(segments.stream)),
        reserved_bytes=int(segments.total_bytes.sum()),
        active_bytes=int(blocks.block_bytes[live].sum()),
        n_checked_sizes=replayed.size_check.n_checked,
        n_different_sizes=replayed.size_check.n_different,
        history=history.verdict.value,
        history_reason=history.reason,
    )
