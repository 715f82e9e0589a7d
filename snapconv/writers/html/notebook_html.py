"""What a notebook shows: a session by the head figures of its devices, a page of ``snapconv view`` as it is.

Names from a file are text in it, never markup.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from snapconv.answers.peak import MomentState
from snapconv.answers.views.timeline_levels import TimelineLevel
from snapconv.classification.categories import APPEARANCES, Category
from snapconv.notes import Note
from snapconv.units import counted, format_bytes, format_share, printable, shortened

# Bins of the timeline at most: a notebook keeps what it shows.
PICTURE_BINS = 300
_WIDTH, _HEIGHT = 600, 90
COLORS = {category.label: shown.color for category, shown in APPEARANCES.items()}
_MOST_NOTES, _MOST_OF_NOTE = 20, 300
# A notebook keeps what its cells show: a larger page would make it slow to open and to save.
_MOST_OF_PAGE, _PAGE_HEIGHT = 16 << 20, 900


def head_html(name: str, states: Sequence[tuple[MomentState, TimelineLevel]], notes: Iterable[Note]) -> str:
    """Show what a file is made of at the peak of every device, its timeline, and the notes."""
    return "\n".join(_lines(name, states, tuple(notes)))


def page_html(page: Path) -> str:
    """Put the page in a frame of its own, which reaches nothing of the notebook; name one that is too large.

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
    name: str, states: Sequence[tuple[MomentState, TimelineLevel]], notes: Sequence[Note]
) -> Iterator[str]:
    yield f"<div><p><b>{_text(name)}</b></p>"
    for state, level in states:
        device = "host" if state.device < 0 else f"cuda:{state.device}"
        peak, reserved = format_bytes(state.allocated_bytes), format_bytes(state.reserved_bytes)
        yield f"<p>{device}: peak allocated <b>{peak}</b>, {reserved} reserved then; history: "
        yield f"{_text(state.history_verdict)}</p>"
        yield _timeline(level)
        heads = ("category", "bytes", "share", "allocations")
        yield f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"
        for row in sorted(state.summary_rows, key=lambda row: -row.block_bytes):
            if row.n_allocations:
                share = format_share(row.block_bytes, state.allocated_bytes)
                name = f"{row.category} ({row.certainty})" if row.certainty else row.category
                cells = (name, format_bytes(row.block_bytes), share, str(row.n_allocations))
                color = COLORS.get(row.category, COLORS["unknown"])
                swatch = f'<td style="border-left:12px solid {color};padding-left:6px">'
                texts = "</td><td>".join(map(_text, cells))
                yield f"<tr>{swatch}{texts}</td></tr>"
        yield "</table>"
    for note in notes[:_MOST_NOTES]:
        yield f"<p><code>{_text(note.slug)}</code> {_text(shortened(note.message, _MOST_OF_NOTE))}</p>"
    if len(notes) > _MOST_NOTES:
        yield f"<p>and {counted(len(notes) - _MOST_NOTES, 'more note')}</p>"
    yield "</div>"


def _timeline(level: TimelineLevel) -> str:
    """Draw the allocated bytes by category: the most of every bin of events, so that no spike is lost."""
    greatest = int(level.at_max.sum(axis=1).max()) if len(level) else 0
    if greatest <= 0:
        return ""
    scale, step = _HEIGHT / greatest, _WIDTH / len(level)
    below = np.zeros(len(level))
    shapes = []
    for category, color in COLORS.items():
        above = below + level.at_max[:, Category[category.upper()]] * scale
        if np.any(above > below):
            shapes.append(f'<polygon points="{_outline(below, above, step)}" fill="{color}"/>')
        below = above
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    label = 'role="img" aria-label="allocated bytes over the events, by category"'
    return f"<svg {size} {label}>{''.join(shapes)}</svg>"


def _outline(below: NDArray[np.float64], above: NDArray[np.float64], step: float) -> str:
    """Return the points around what lies between two curves, each value as wide as a step."""
    tops = [(x, y) for i, y in enumerate(above.tolist()) for x, y in ((i, y), (i + 1, y))]
    bottoms = [(x, y) for i, y in enumerate(below.tolist()) for x, y in ((i, y), (i + 1, y))]
    return " ".join(f"{x * step:.1f},{_HEIGHT - y:.1f}" for x, y in (*tops, *reversed(bottoms)))


def _text(text: str) -> str:
    return escape(printable(text))
