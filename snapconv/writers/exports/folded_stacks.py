"""Live stacks -> folded text, a stack a line with its bytes: what flame graphs are drawn from."""

from collections import Counter
from pathlib import Path

from snapconv.answers.live_stacks import LiveStacks
from snapconv.units import printable


def write_folded(temporary: Path, found: LiveStacks) -> None:
    """Write the lines into a file, most bytes first."""
    names = [_name(frame.label) for frame in found.frames]
    lines: Counter[str] = Counter()
    for stack in found.stacks:
        lines[";".join(names[row] for row in stack.frames)] += stack.block_bytes
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line} {n_bytes}\n" for line, n_bytes in lines.most_common())


def _name(label: str) -> str:
    """A frame as a folded line may have it: no semicolon, which separates frames, and no end of a line."""
    return printable(label).replace(";", ",") or "?"
