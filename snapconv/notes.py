"""Messages beside a result: notes about a file that is valid but needs care, and progress."""

from collections.abc import Callable
from dataclasses import dataclass

# A progress callback is called with the stage, how much is done and how much there is: ("reading",
# 3, 10).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Note:
    """One note about a file.

    ``slug`` is stable and listed in docs/reference/notes.md; ``message`` is a sentence for a
    person; ``device`` is the device ordinal it is about, or None for the whole file. One that
    ``is_minor`` changes nothing of what an answer says.
    """

    slug: str
    message: str
    device: int | None = None
    is_minor: bool = False
