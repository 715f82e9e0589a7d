"""Source files with the bytes of their lines in a margin."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from snapconv.answers.annotation import (
    AnnotatedLine,
    Annotation,
    LineCallers,
    lines_that_count,
)
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import counted, device_name, format_bytes, optional
from snapconv.writers.text.source_rows import (
    SourceRow,
    file_title,
    hidden_text,
    margin_columns,
    source_rows,
)

_NUMBER_WIDTH = 5
# Two blanks before the longest size, 1023.00 KiB.
_SIZE_WIDTH = 13
_N_CALLERS = 3


def annotation_lines(annotation: Annotation, *, n_most: int | None = None) -> Iterator[str]:
    """Show the hottest files around the lines that count, after what ``advise`` finds."""
    yield from head_lines(annotation)
    counting = lines_that_count(annotation, n_most)
    columns = margin_columns(annotation)
    hidden: list[AnnotatedLine] = []
    for file in annotation.files:
        lines = [line for line in file.lines if (file.path, line.line) in counting]
        hidden += [line for line in file.lines if line not in lines and line.live_bytes]
        if lines:
            yield ""
            yield file_title(file)
            yield _margin(list(columns.values()), "line", "")
            for row in source_rows(file, sorted(lines, key=attrgetter("line"))):
                yield _row_line(row, [*columns])
    if hidden:
        yield ""
        yield f"  {hidden_text(hidden)}: --top {len(hidden) + len(counting)} shows all"


def head_lines(annotation: Annotation) -> Iterator[str]:
    """Yield the bytes of the device, the findings, and where the source comes from."""
    device = device_name(annotation.device)
    total = format_bytes(annotation.allocated_bytes)
    event = optional(" (event {})", annotation.event)
    parts = []
    n_bytes = sum(file.total("live_bytes") for file in annotation.files)
    n_lines = sum(bool(line.live_bytes) for file in annotation.files for line in file.lines)
    if n_lines:
        parts.append(
            f"{format_bytes(n_bytes)} at {counted(n_lines, 'line')} of the project"
        )
    for part_bytes, name in (
        (annotation.library_bytes, LIBRARY_ONLY),
        (annotation.no_stack_bytes, NO_STACK),
    ):
        if part_bytes:
            parts.append(f"{format_bytes(part_bytes)} {name}")
    yield f"{device}  {total} live at {annotation.moment}{event}: {', '.join(parts) or 'nothing'}"
    for number, finding in enumerate(annotation.findings, 1):
        saved = format_bytes(finding.saved_bytes)
        yield f"  [{number}] {finding.heading}: {finding.what} Saves {saved}. {finding.how[0]}"
    yield from _caller_lines(annotation.callers)
    yield from _source_lines(annotation)


def _caller_lines(line_callers: LineCallers | None) -> Iterator[str]:
    """Name the callers of a line that allocates for several: the line to change may be theirs."""
    if line_callers is None:
        return
    callers = line_callers.callers
    names = [
        f"{format_bytes(n_bytes)} {line.place} in {line.function}"
        for line, n_bytes in callers[:_N_CALLERS]
    ]
    if len(callers) > _N_CALLERS:
        names.append(counted(len(callers) - _N_CALLERS, "other line"))
    yield f"  {line_callers.line.place} is called by: {', '.join(names)}"


def _source_lines(annotation: Annotation) -> Iterator[str]:
    """Say where the source comes from, and what to do where there is none."""
    files = [file for file in annotation.files if file.total("live_bytes")]
    missing = [file for file in files if file.source is None]
    if not files:
        remedy = "snapconv record records the stacks"
        if annotation.library_bytes > annotation.no_stack_bytes:
            remedy = "--include PACKAGE counts a library as the project"
        yield f"  no line of the project has any of it: {remedy}"
        return
    if len(missing) < len(files):
        if not annotation.has_recorded_source:
            yield (
                f"  source: {_folder(annotation)}; lines are matched by number and function, as "
                "the recording has no text of them"
            )
        return
    recorded = optional(", which was {} in the recording", annotation.project_root)
    folder = _folder(annotation)
    yield f"  no source of these lines in {folder}: pass --source FOLDER, the project{recorded}"


def _folder(annotation: Annotation) -> str:
    folder = annotation.source_folder
    return "the current folder" if folder == "." else folder


def _row_line(row: SourceRow, columns: Sequence[str]) -> str:
    sizes = row.sizes(columns) or [0] * len(columns)
    return _margin([format_bytes(n) if n else "" for n in sizes], row.number, row.text)


def _margin(cells: Sequence[str], number: str, text: str) -> str:
    # A blank of its own stands before each, also before a line number of six digits.
    figures = "".join(f" {cell:>{_SIZE_WIDTH - 1}}" for cell in cells)
    return f"{figures} {number:>{_NUMBER_WIDTH}}  {text}".rstrip()
