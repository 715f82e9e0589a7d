"""Lines of text for ``snapconv verdict``."""

import shlex
from collections.abc import Iterator

from snapconv.answers.verdict import FileVerdict
from snapconv.units import device_name
from snapconv.writers.text.size_rows import size_row, where


def verdict_lines(found: FileVerdict, file: str) -> Iterator[str]:
    """Show the verdict, the largest causes, and the next command."""
    yield f"{device_name(found.device)}  {found.sentence}"
    if found.causes:
        yield f"  the largest causes {found.moment}"
    for cause in found.causes:
        yield size_row(cause.block_bytes, f"{cause.purpose}, {where(cause.line, has_stack=cause.has_stack)}")
    if found.history_verdict != "complete":
        yield f"  history: {found.history_verdict}: what was before is not in the file"
    yield f"  next: snapconv {found.command} {shlex.quote(file)}"
