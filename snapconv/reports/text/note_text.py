"""Notes as lines of text. Apart from the summary, so that ``info`` need not load what a conversion needs."""

from collections.abc import Iterator

from snapconv.devices import device_name
from snapconv.notes import Note


def note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Notes as they go to stderr, each once."""
    for note in dict.fromkeys(notes):
        where = "" if note.device is None else f" ({device_name(note.device)})"
        yield f"note: {note.slug}{where}: {note.message}"
