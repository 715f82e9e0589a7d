"""Lines of text for ``snapconv verdict``."""

import shlex
from collections.abc import Iterator

from snapconv.answers.verdict import FileVerdict
from snapconv.units import device_name
from snapconv.writers.text.size_rows import history_lines, size_row, where


def verdict_lines(found: FileVerdict, file: str) -> Iterator[str]:
    """Show the verdict, the largest causes, and the next command."""
    yield f"{device_name(found.device)}  {found.sentence}"
    yield from (f"  {sentence}" for sentence in found.also)
    if found.causes:
        yield f"  the largest causes {found.moment}"
    for cause in found.causes:
        yield size_row(cause.block_bytes, f"{cause.purpose}, {where(cause.line, has_stack=cause.has_stack)}")
    yield from history_lines(found.history_verdict)
    yield f"  next: snapconv {found.command} {shlex.quote(file)}"
