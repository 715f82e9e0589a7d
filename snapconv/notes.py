"""A note: a message about a file that is valid but needs care. Imports nothing from snapconv."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One note about a file.

    ``slug`` is stable and listed in docs/reference/notes.md; ``message`` is a sentence for a person;
    ``device`` is the device ordinal it is about, or None for the whole file.
    """

    slug: str
    message: str
    device: int | None = None
