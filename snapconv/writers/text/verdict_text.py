"""The verdict on a file for the terminal, and as JSON-ready values."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict

from snapconv.answers.file_verdict import FileVerdict
from snapconv.units import device_kind, device_name
from snapconv.writers.text.oom_text import wrapped
from snapconv.writers.text.size_rows import cut, size_row, where


def verdict_lines(found: FileVerdict, file: str) -> Iterator[str]:
    """What matters most, the largest causes, and the next command."""
    first, *rest = wrapped(found.sentence, "        ")
    yield f"{device_name(found.device):<8}{first.strip()}"
    yield from rest
    if found.causes:
        yield f"  the largest causes {found.moment}"
    for cause in found.causes:
        yield size_row(cause.block_bytes, cut(f"{cause.category}, {where(cause.line)}"))
    if found.history_verdict != "complete":
        yield f"  history: {found.history_verdict}: what was before is not in the file"
    yield f"  next: snapconv {found.command} {shlex.quote(file)}"


def verdict_values(found: FileVerdict) -> dict[str, object]:
    """The same for machines."""
    return {"kind": device_kind(found.device), **asdict(found)}
