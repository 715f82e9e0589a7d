"""Notes as lines of text. Apart from the summary, so that ``info`` need not load what a conversion needs."""

import re
from collections.abc import Iterator
from dataclasses import replace

from snapconv.devices import device_name
from snapconv.notes import Note


def note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Notes as they go to stderr, each once."""
    for note in dict.fromkeys(notes):
        where = "" if note.device is None else f" ({device_name(note.device)})"
        yield f"note: {note.slug}{where}: {note.message}"


def short_note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Notes below figures: the slug and the first clause; docs/reference/notes.md has the rest."""
    return note_lines(tuple(replace(note, message=_first_clause(note.message)) for note in notes))


def _first_clause(message: str) -> str:
    clause = re.split(r"[;:] |\. ", message, maxsplit=1)[0]
    return clause.split(" (")[0] if clause.count("(") > clause.count(")") else clause
