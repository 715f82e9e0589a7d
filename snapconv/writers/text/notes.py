"""Notes as lines of text. Apart from the summary, so that ``info`` need not load what a conversion needs."""

import re
from collections.abc import Iterator
from dataclasses import replace

from snapconv.notes import Note
from snapconv.units import device_name


def note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Write notes as they go to stderr, each once: one that several devices have names them all."""
    devices: dict[tuple[str, str, bool], list[int]] = {}
    for note in dict.fromkeys(notes):
        found = devices.setdefault((note.slug, note.message, note.device is None), [])
        found += [] if note.device is None else [note.device]
    for (slug, message, _), found in devices.items():
        where = f" ({_named(found)})" if found else ""
        yield f"note: {slug}{where}: {message}"


def short_note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Write notes below figures: the slug and the first clause; docs/reference/notes.md has the rest."""
    return note_lines(tuple(replace(note, message=_first_clause(note.message)) for note in notes))


def _named(devices: list[int]) -> str:
    """Return the names of devices, in a row as the first and the last."""
    first, last = devices[0], devices[-1]
    if len(devices) > 2 and devices == list(range(first, last + 1)):
        return f"{device_name(first)} to {device_name(last)}"
    return ", ".join(map(device_name, devices))


def _first_clause(message: str) -> str:
    clause = re.split(r"[;:] |\. ", message, maxsplit=1)[0]
    return clause.split(" (")[0] if clause.count("(") > clause.count(")") else clause
