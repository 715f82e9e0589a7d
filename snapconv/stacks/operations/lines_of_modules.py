"""A line of torch.nn's modules -> the operation that it calls, if all releases that torch may be of agree."""

from snapconv.snapshot.stack_table import FrameTable
from snapconv.stacks.paths import normal
from snapconv.torch_knowledge.module_lines import CALLS, LINES

_MODULES = "torch/nn/modules/"
_CALLING = ("_call_impl", "_wrapped_call_impl", "inner")


def releases_of(frames: FrameTable) -> frozenset[str]:
    """The releases that torch may be of, by the lines that call modules; none where no line is known."""
    lines = {
        int(line)
        for name, file, line in zip(frames.names, frames.filenames, frames.lines.tolist(), strict=True)
        if name in _CALLING and normal(file).endswith(_MODULES + "module.py")
    }
    known = {release: len(lines.intersection(calls)) for release, calls in CALLS.items()}
    most = max(known.values())
    return frozenset(release for release, n_known in known.items() if most and n_known == most)


def name_of_line(frames: FrameTable, frame: int, releases: frozenset[str]) -> str | None:
    """The operation that a line of torch.nn calls; releases that torch may be of must not differ in it."""
    folder, found, file = normal(frames.filenames[frame]).rpartition(_MODULES)
    rows = LINES.get(file)
    if rows is None or not found or not folder.endswith("/"):
        return None
    line = int(frames.lines[frame])
    names = {
        name
        for same, operations in rows
        for name, lines in operations.items()
        if line in lines and not releases.isdisjoint(same.split())
    }
    return names.pop() if len(names) == 1 else None
