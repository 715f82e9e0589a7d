"""Facts of a file as text, and notes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from snapconv.notes import Note
from snapconv.units import (
    counted,
    curve_bytes,
    device_name,
    format_bytes,
    format_duration_us,
    shortened,
)

if TYPE_CHECKING:  # notes are printed of what loads no analysis, too
    from snapconv.answers.info import Facts

# Names and commands come from the file, which may have a text of any length.
_MOST_OF_NAME, _MOST_OF_COMMAND = 80, 400
_MOST_NAMES = 8
_SILENT = {"", "0", "0.0", "False", "-1"}


def info_lines(found: "Facts") -> Iterator[str]:
    """Show the facts of a file."""
    protocol = "" if found["pickle_protocol"] is None else f", protocol {found['pickle_protocol']}"
    form = found["form"].removeprefix("a ")
    size = format_bytes(found["n_bytes"])
    yield f"{found['path']}: {form}, {found['format']}{protocol}, {size}"
    yield (
        f"  written by {found['written_by']}; "
        f"{counted(found['n_visible_devices'], 'visible device')}"
    )
    stacks, frames = (counted(found[f"n_{one}s"], f"distinct {one}") for one in ("stack", "frame"))
    yield f"  {stacks} of {frames}" if found["n_frames"] else "  no stacks"
    for facts in found["devices"]:
        yield from _device_lines(facts)
    if found["settings"]:
        settings = settings_shown(found["settings"].items())
        shown = ", ".join(f"{key}={shortened(text, _MOST_OF_NAME)}" for key, text in settings)
        yield f"  allocator settings: {shown or 'all at their defaults'}"
    if found["recorder"]:
        entries = (found["recorder"].get(key, "") for key in ("snapconv", "command"))
        yield shortened("  recorded by snapconv {}: {}".format(*entries), _MOST_OF_COMMAND)
    if found["annotations"]:
        names = [
            f"{shortened(name, _MOST_OF_NAME)} ({n})" for name, n in found["annotations"].items()
        ]
        more = len(names) - _MOST_NAMES
        yield f"  annotations: {', '.join(names[:_MOST_NAMES])}" + (
            f" and {more} more" if more > 0 else ""
        )


def settings_shown(entries: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the settings with a meaning: empty, zero and off ones are left out, unless somebody set them."""
    settings = dict(entries)
    texts = ",".join(settings.values())
    for key, text in settings.items():
        # The text of the environment names what was set.
        if key in texts or (
            text not in _SILENT and not all(part.endswith(":0") for part in text.split(","))
        ):
            yield key, text


def _device_lines(facts: "Facts") -> Iterator[str]:
    duration = (
        "" if facts["duration_us"] is None else f" over {format_duration_us(facts['duration_us'])}"
    )
    yield f"  {device_name(facts['device'])}  {counted(facts['n_events'], 'event')}{duration}"
    if facts["actions"]:
        yield "    " + ", ".join(f"{name} {count}" for name, count in facts["actions"].items())
    when = "at the dump"
    if facts["n_segments"] or not facts["n_events"]:
        yield (
            f"    {counted(facts['n_segments'], 'segment')} with "
            f"{counted(facts['n_blocks'], 'block')}, "
            f"{facts['n_live_blocks']} of them live; "
            f"{counted(facts['n_pools'], 'pool')}, {counted(facts['n_streams'], 'stream')}"
        )
    else:
        when = "the file has no segments; at the end of its trace"
    reserved, active = (
        curve_bytes(name, facts[f"{name}_bytes"], facts["at_least"])
        for name in ("reserved", "active")
    )
    yield f"    {when}: reserved {reserved}, active {active}"
    if facts["n_checked_sizes"]:
        yield (
            f"    block sizes: {facts['n_checked_sizes']} compared with the blocks at the dump, "
            f"{facts['n_different_sizes']} differ"
        )
    yield f"    history: {facts['history']}: {facts['history_reason']}"


# A machine has eight or sixteen; a file may claim a hundred.
_MOST_DEVICES = 16


def note_lines(notes: Iterable[Note]) -> Iterator[str]:
    """Write notes as they go to stderr, each once: one that several devices have names them all."""
    devices: dict[tuple[str, str, bool], list[int]] = {}
    for note in dict.fromkeys(notes):
        found = devices.setdefault((note.slug, note.message, note.device is None), [])
        found += [] if note.device is None else [note.device]
    for (slug, message, _), found in devices.items():
        names = [device_name(device) for device in found[:_MOST_DEVICES]]
        if len(found) > _MOST_DEVICES:
            names.append(f"and {len(found) - _MOST_DEVICES} more")
        where = f" ({', '.join(names)})" if names else ""
        yield f"note: {slug}{where}: {message}"
