"""Facts of a file as text, and notes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from snapconv.notes import Note
from snapconv.units import (
    counted,
    curve_bytes,
    device_name,
    format_bytes,
    format_duration_us,
    optional,
    shortened,
)
from snapconv.writers.text.size_rows import listed

if TYPE_CHECKING:  # notes are printed of what loads no analysis, too
    from snapconv.answers.info import Facts

# Names and commands come from the file, which may have a text of any length.
_MOST_OF_NAME, _MOST_OF_COMMAND = 80, 400
_MOST_NAMES = 8
_SILENT = {"", "0", "0.0", "False", "-1"}


def info_lines(facts: "Facts") -> Iterator[str]:
    """Show the facts of a file."""
    protocol = optional(", protocol {}", facts["pickle_protocol"])
    form = facts["form"].removeprefix("a ")
    size = format_bytes(facts["n_bytes"])
    yield f"{facts['path']}: {form}, {facts['format']}{protocol}, {size}"
    devices = counted(facts["n_visible_devices"], "visible device")
    yield f"  written by {facts['written_by']}; {devices}"
    if facts["n_frames"]:
        stacks = counted(facts["n_stacks"], "distinct stack")
        yield f"  {stacks} of {counted(facts['n_frames'], 'distinct frame')}"
    else:
        yield "  no stacks"
    for device_facts in facts["devices"]:
        yield from _device_lines(device_facts)
    if facts["settings"]:
        yield _settings_line(facts["settings"])
    recorder = facts["recorder"]
    if recorder:
        line = f"  recorded by snapconv {recorder.get('snapconv', '')}: "
        yield shortened(f"{line}{recorder.get('command', '')}", _MOST_OF_COMMAND)
    if facts["annotations"]:
        yield _annotation_line(facts["annotations"])


def _settings_line(settings: Mapping[str, str]) -> str:
    rows = settings_shown(settings.items())
    words = ", ".join(f"{key}={shortened(text, _MOST_OF_NAME)}" for key, text in rows)
    return f"  allocator settings: {words or 'all at their defaults'}"


def _annotation_line(annotations: Mapping[str, int]) -> str:
    names = [f"{shortened(name, _MOST_OF_NAME)} ({n})" for name, n in annotations.items()]
    return f"  annotations: {listed(names, _MOST_NAMES)}"


def settings_shown(entries: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the settings that have an effect or were set; others are empty, zero or off."""
    settings = dict(entries)
    # The text of the environment names the settings that were set.
    texts = ",".join(settings.values())
    for key, text in settings.items():
        is_zero = all(part.endswith(":0") for part in text.split(","))
        if key in texts or not (is_zero or text in _SILENT):
            yield key, text


def _device_lines(facts: "Facts") -> Iterator[str]:
    duration = ""
    if facts["duration_us"] is not None:
        duration = f" over {format_duration_us(facts['duration_us'])}"
    yield f"  {device_name(facts['device'])}  {counted(facts['n_events'], 'event')}{duration}"
    if facts["actions"]:
        yield "    " + ", ".join(
            f"{name} {count}" for name, count in facts["actions"].items()
        )
    moment = "at the dump"
    if facts["n_segments"] or not facts["n_events"]:
        segments = counted(facts["n_segments"], "segment")
        blocks = counted(facts["n_blocks"], "block")
        pools = counted(facts["n_pools"], "pool")
        streams = counted(facts["n_streams"], "stream")
        live = f"{facts['n_live_blocks']} of them live"
        yield f"    {segments} with {blocks}, {live}; {pools}, {streams}"
    else:
        moment = "the file has no segments; at the end of its trace"
    reserved = curve_bytes("reserved", facts["reserved_bytes"], facts["at_least"])
    active = curve_bytes("active", facts["active_bytes"], facts["at_least"])
    yield f"    {moment}: reserved {reserved}, active {active}"
    if facts["n_checked_sizes"]:
        yield (
            f"    block sizes: {facts['n_checked_sizes']} compared with the blocks at "
            f"the dump, {facts['n_different_sizes']} differ"
        )
    yield f"    history: {facts['history']}: {facts['history_reason']}"


# A machine has eight or sixteen; a file may claim a hundred.
_MOST_DEVICES = 16


def note_lines(notes: Iterable[Note]) -> Iterator[str]:
    """Write notes as they go to stderr, each once: one that several devices have names them all."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for note in dict.fromkeys(notes):
        group = groups.setdefault((note.slug, note.message, note.device is None), [])
        if note.device is not None:
            group.append(note.device)
    for (slug, message, _), devices in groups.items():
        names = [device_name(device) for device in devices[:_MOST_DEVICES]]
        if len(devices) > _MOST_DEVICES:
            names.append(f"and {len(devices) - _MOST_DEVICES} more")
        about = f" ({', '.join(names)})" if names else ""
        yield f"note: {slug}{about}: {message}"
