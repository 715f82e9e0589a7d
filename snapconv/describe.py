"""What a file is, without converting it: the facts behind ``snapconv info``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from snapconv.columns import distinct, has_code
from snapconv.files import timing_file
from snapconv.notes import Note, Progress
from snapconv.replay.device_replay import Replay, replay
from snapconv.replay.history_verdict import decide_history
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.snapshot.segment_table import BlockState
from snapconv.units import counted, device_kind, device_name, format_bytes, format_duration_us, shortened

# Names and commands come from the file, which may have a text of any length.
_MOST_OF_NAME, _MOST_OF_COMMAND = 80, 400
_MOST_ITERATIONS = 8


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
class TimesFacts:
    """The times of a capture in numbers; ``clock`` is that of the device (cuda) or of the CPU."""

    n_calls: int
    iterations: tuple[int, ...]
    device: int
    device_name: str
    clock: str


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
    times: TimesFacts | None
    notes: tuple[Note, ...]

    def values(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The facts for a person."""
        protocol = "" if self.pickle_protocol is None else f", protocol {self.pickle_protocol}"
        yield f"{self.path}: memory snapshot, {self.format}{protocol}, {format_bytes(self.n_bytes)}"
        yield f"  written by {self.written_by}; {counted(self.n_visible_devices, 'visible device')}"
        frames = counted(self.n_frames, "distinct frame")
        yield f"  {counted(self.n_stacks, 'distinct stack')} of {frames}"
        for facts in self.devices:
            yield from _device_lines(facts)
        if self.settings:
            yield f"  allocator settings: {_settings_text(self.settings)}"
        if self.recorder:
            entries = (self.recorder.get(key, "") for key in ("snapconv", "command"))
            yield shortened("  recorded by snapconv {}: {}".format(*entries), _MOST_OF_COMMAND)
        if self.times:
            yield _times_line(self.times)
        if self.annotations:
            first = list(self.annotations.items())[:8]
            shown = ", ".join(f"{shortened(name, _MOST_OF_NAME)} ({count})" for name, count in first)
            more = len(self.annotations) - 8
            yield f"  annotations: {shown}" + (f" and {more} more" if more > 0 else "")


def _settings_text(settings: dict[str, str]) -> str:
    """The settings with a meaning: empty, zero and off ones are left out."""
    silent = {"", "0", "0.0", "False", "-1"}
    divisions = settings.get("roundup_power2_divisions", "")
    if all(part.endswith(":0") for part in divisions.split(",")):
        silent.add(divisions)
    shown_settings = (
        (key, shortened(text, _MOST_OF_NAME)) for key, text in settings.items() if text not in silent
    )
    shown = ", ".join(f"{key}={text}" for key, text in shown_settings)
    return shown or "all at their defaults"


def describe(path: Path, *, progress: Progress | None = None) -> FileFacts:
    """Read a file and describe it; cheaper than a conversion, since nothing is classified."""
    snapshot = load_snapshot(path, progress=progress)
    replays = [replay(snapshot, device) for device in snapshot.devices]
    times, time_notes = _times_facts(path)
    container = snapshot.container
    starts = snapshot.annotations.name_id[snapshot.annotations.is_start]
    names, counts = np.unique(starts[starts >= 0], return_counts=True)
    return FileFacts(
        path=str(path),
        format=container.format + (" in gzip" if container.is_gzip else ""),
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
        times=times,
        notes=(*snapshot.notes, *(note for replayed in replays for note in replayed.notes), *time_notes),
    )


def _times_facts(path: Path) -> tuple[TimesFacts | None, tuple[Note, ...]]:
    """The times of a capture; None where the path has none, or in a version that is not known."""
    file = timing_file(path)
    if file is None:
        return None, ()
    from snapconv.snapshot.recorded.timing_file import load_timing  # it reads JSON, which few files need

    timing, notes = load_timing(file)
    if timing is None:
        return None, notes
    return TimesFacts(
        n_calls=len(timing.calls),
        iterations=tuple(timed.iteration for timed in timing.iterations),
        device=timing.device,
        device_name=timing.device_name,
        clock=timing.clock,
    ), notes


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


def _times_line(times: TimesFacts) -> str:
    numbers = ", ".join(map(str, times.iterations[:_MOST_ITERATIONS]))
    more = len(times.iterations) - _MOST_ITERATIONS
    shown = f"{numbers} and {more} more" if more > 0 else numbers or "none"
    device = shortened(times.device_name, _MOST_OF_NAME)
    return (
        f"  times: {counted(times.n_calls, 'call')} of {device_name(times.device)} ({device}), "
        f"by the clock of the {'GPU' if times.clock == 'cuda' else 'CPU'}; timed iterations: {shown}"
    )


def _device_lines(facts: DeviceFacts) -> Iterator[str]:
    duration = "" if facts.duration_us is None else f" over {format_duration_us(facts.duration_us)}"
    yield f"  {device_name(facts.device)}  {counted(facts.n_events, 'event')}{duration}"
    if facts.actions:
        yield "    " + ", ".join(f"{name} {count}" for name, count in facts.actions.items())
    yield (
        f"    {counted(facts.n_segments, 'segment')} with {counted(facts.n_blocks, 'block')}, "
        f"{facts.n_live_blocks} of them live; "
        f"{counted(facts.n_pools, 'pool')}, {counted(facts.n_streams, 'stream')}"
    )
    reserved, active = format_bytes(facts.reserved_bytes), format_bytes(facts.active_bytes)
    yield f"    at the dump: reserved {reserved}, active {active}"
    if facts.n_checked_sizes:
        yield (
            f"    block sizes: {facts.n_checked_sizes} of the trace checked at the dump, "
            f"{facts.n_different_sizes} differ"
        )
    yield f"    history: {facts.history} ({facts.history_reason})"
