"""What a notebook shows: a session by the head figures of its devices, a page of ``snapconv view`` as it is.

Names from a file are text in it, never markup.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from snapconv.columns import Int64Column
from snapconv.findings.moment_state import MomentState
from snapconv.notes import Note
from snapconv.units import counted, format_bytes, format_share, printable, shortened

_WIDTH, _HEIGHT = 600, 60
_MOST_NOTES, _MOST_OF_NOTE = 20, 300
# A notebook keeps what its cells show: a larger page would make it slow to open and to save.
_MOST_OF_PAGE, _PAGE_HEIGHT = 16 << 20, 900


def head_html(name: str, states: Sequence[tuple[MomentState, Int64Column]], notes: Iterable[Note]) -> str:
    """What a file is made of at the peak of every device, its curve of allocated bytes, and the notes."""
    return "\n".join(_lines(name, states, tuple(notes)))


def page_html(page: Path) -> str:
    """The page in a frame of its own, which reaches nothing of the notebook; one that is large is only named.

    Raises OSError where it cannot be read.
    """
    n_bytes = page.stat().st_size
    if n_bytes > _MOST_OF_PAGE:
        size = format_bytes(n_bytes)
        return f"<p>{_text(str(page))}: a page of {size}, too large for a notebook; .open() shows it</p>"
    source = escape(page.read_text(encoding="utf-8"))
    style = f"width:100%;height:{_PAGE_HEIGHT}px;border:0"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{source}"></iframe>'


def _lines(
    name: str, states: Sequence[tuple[MomentState, Int64Column]], notes: Sequence[Note]
) -> Iterator[str]:
    yield f"<div><p><b>{_text(name)}</b></p>"
    for state, allocated in states:
        device = "host" if state.device < 0 else f"cuda:{state.device}"
        peak, reserved = format_bytes(state.allocated_bytes), format_bytes(state.reserved_bytes)
        yield f"<p>{device}: peak allocated <b>{peak}</b>, {reserved} reserved then; history: "
        yield f"{_text(state.history_verdict)}</p>"
        yield _curve(allocated)
        heads = ("category", "bytes", "share", "allocations")
        yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
        for row in sorted(state.categories, key=lambda row: -row.block_bytes):
            if row.n_allocations:
                share = format_share(row.block_bytes, state.allocated_bytes)
                cells = (row.category, format_bytes(row.block_bytes), share, str(row.n_allocations))
                yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"
        yield "</table>"
    for note in notes[:_MOST_NOTES]:
        yield f"<p><code>{_text(note.slug)}</code> {_text(shortened(note.message, _MOST_OF_NOTE))}</p>"
    if len(notes) > _MOST_NOTES:
        yield f"<p>and {counted(len(notes) - _MOST_NOTES, 'more note')}</p>"
    yield "</div>"


def _curve(allocated: Int64Column) -> str:
    """The allocated bytes over the events, the most of every pixel."""
    greatest = int(allocated.max()) if len(allocated) else 0
    if greatest <= 0:
        return ""
    starts = np.linspace(0, len(allocated), min(_WIDTH, len(allocated)), endpoint=False).astype(np.int64)
    heights = np.maximum.reduceat(allocated, starts) * _HEIGHT / greatest
    step = _WIDTH / len(starts)
    points = " ".join(f"{i * step:.1f},{_HEIGHT - height:.1f}" for i, height in enumerate(heights.tolist()))
    shape = f"0,{_HEIGHT} {points} {_WIDTH},{_HEIGHT}"
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return (
        f'<svg {size} role="img" aria-label="allocated bytes over the events">'
        f'<polygon points="{shape}" fill="#4477aa"/></svg>'
    )


def _text(text: str) -> str:
    return escape(printable(text))
