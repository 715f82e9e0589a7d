"""Colours for what is printed, on a terminal that shows them: they add nothing that is not in the text.

rich decides what a terminal can show: it knows TERM, COLORTERM and FORCE_COLOR. NO_COLOR leaves the text as
it is, without bold too. rich is no dependency of our own: typer depends on it, all releases that we allow.
"""

import os
import re
from collections.abc import Callable
from typing import TextIO

# Of the terminal's own sixteen colours, which its user can read on its background; by hue they are those of
# the page that `snapconv view` writes.
_CATEGORIES = {
    "weight": "blue",
    "optimizer_state": "cyan",
    "gradient": "yellow",
    "kv_cache": "green",
    "input": "bright_green",
    "communication": "bright_red",
    "workspace": "magenta",
    "activation": "red",
    "temporary": "bright_magenta",
    "unknown": "bright_black",
}
# Found by what stands around them, since lines come from many formatters; each ``(?P<it>…)`` has the style.
_STYLES = (
    (r"^(?P<it>cuda:\d+|host)(?=  )", "bold"),
    (r"(?P<it>peak(?: allocated)? (?:< )?[\d.]+ [KMGT]?i?B)", "bold"),
    (r"(?P<it>out of memory)\b", "bold red"),
    (r"(?P<it>memory grows) by", "bold yellow"),
    (r"^  history: (?P<it>complete)$", "green"),
    (r"^  history: (?P<it>(?!complete$).+)", "yellow"),
    (r"^(?P<it>note: \S+)", "yellow"),
    (r"^(?P<it>error): ", "bold red"),
    (r"^  next: (?P<it>.+)", "bold"),
    (r"^ *(?P<it>written: .*)", "dim"),
    *(
        (rf"^  (?: +[\d.]+ [KMGT]?i?B  )?(?P<it>{name})(?=[ ,])", style)
        for name, style in _CATEGORIES.items()
    ),
)

Paint = Callable[[str], str]


def paint_of(stream: TextIO) -> Paint | None:
    """Make a function that adds the colours to a line for this stream; None where it shows none."""
    if os.environ.get("NO_COLOR") or not (stream.isatty() or os.environ.get("FORCE_COLOR")):
        return None
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    if console.color_system is None or console.legacy_windows:
        return None
    styles = [(re.compile(pattern), style) for pattern, style in _STYLES]

    def paint(line: str) -> str:
        text = Text(line)
        for pattern, style in styles:
            for found in pattern.finditer(line):
                text.stylize(style, *found.span("it"))
        with console.capture() as captured:
            console.print(text, soft_wrap=True, end="")
        return captured.get()

    return paint
