"""Source files with the bytes of their lines in a margin."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import PurePath
from textwrap import dedent

from snapconv.answers.advice.evidence import FAULT
from snapconv.answers.annotation import (
    AnnotatedFile,
    AnnotatedLine,
    Annotation,
    lines_that_count,
)
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.stacks.source_files import regions
from snapconv.units import counted, device_name, format_bytes, optional

_AROUND = 1
_NUMBER_WIDTH = 5
# Two blanks before the longest size, 1023.00 KiB.
_SIZE_WIDTH = 13
_HEADS = {
    "live_bytes": "at peak",
    "kept_for_backward_bytes": "backward",
    "allocated_bytes": "in all",
}


def annotation_lines(annotation: Annotation, *, n_most: int | None = None) -> Iterator[str]:
    """Show the hottest files around the lines that count, after what ``advise`` finds."""
    yield from _head_lines(annotation)
    counting = lines_that_count(annotation, n_most)
    columns = _columns(annotation)
    n_hidden = hidden_bytes = 0
    for file in annotation.files:
        lines = [line for line in file.lines if (file.path, line.line) in counting]
        if lines:
            yield ""
            yield from _file_lines(file, sorted(lines, key=attrgetter("line")), columns)
        hidden = [line for line in file.lines if line not in lines and line.live_bytes]
        n_hidden += len(hidden)
        hidden_bytes += sum(line.live_bytes for line in hidden)
    if n_hidden:
        yield ""
        hidden_lines = counted(n_hidden, "more line")
        command = f"--top {n_hidden + len(counting)}"
        yield f"  {format_bytes(hidden_bytes)} at {hidden_lines}: {command} shows all"


def _head_lines(annotation: Annotation) -> Iterator[str]:
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
        likely = "" if finding.is_certain else "likely "
        sort = f"{likely}fault" if finding.sort == FAULT else "no cost"
        yield f"  [{number}] {sort}: {finding.what} Saves {saved}. {finding.how[0]}"
    yield from _source_lines(annotation)


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


def _columns(annotation: Annotation) -> list[str]:
    """Return the figures of the margin; without activations, none of backward."""
    has_kept = any(file.total("kept_for_backward_bytes") for file in annotation.files)
    return [name for name in _HEADS if has_kept or name != "kept_for_backward_bytes"]


def _file_lines(
    file: AnnotatedFile, lines: Sequence[AnnotatedLine], columns: Sequence[str]
) -> Iterator[str]:
    yield f"{file.path}: {format_bytes(file.total('live_bytes'))}{_source_name(file)}"
    yield _margin([_HEADS[name] for name in columns], "line", "")
    if file.source is not None:
        yield from _region_lines(file, file.source.lines, lines, columns)
    for line in lines:
        if line.current_line is None:
            mark = "" if file.source is None else "?"
            number = f"{line.line or ''}{mark}"
            yield _margin(_sizes(line, columns), number, _lost_text(line, file.source))
            yield from _finding_line(line, columns)


def _region_lines(
    file: AnnotatedFile,
    source: Sequence[str],
    lines: Sequence[AnnotatedLine],
    columns: Sequence[str],
) -> Iterator[str]:
    """Show the source around some lines, with the figures of every line there."""
    line_at = {line.current_line: line for line in file.lines if line.current_line}
    functions = {line.current_line: line.function for line in lines if line.current_line}
    for region in regions(list(functions), _AROUND, len(source)):
        function = next(functions[number] for number in region if number in functions)
        yield _margin([""] * len(columns), "", f"in {function}")
        texts = dedent("\n".join(source[number - 1] for number in region)).split("\n")
        for number, text in zip(region, texts, strict=True):
            yield from _source_line(line_at.get(number), number, text.rstrip(), columns)


def _source_name(file: AnnotatedFile) -> str:
    """Name the source where the recorded path does not."""
    if file.source is None:
        return ""
    if not file.source.path:
        return " (source as recorded)"
    is_below = PurePath(file.source.path).as_posix().endswith(f"/{file.path}")
    return "" if is_below else f" ({file.source.path})"


def _source_line(
    line: AnnotatedLine | None, number: int, text: str, columns: Sequence[str]
) -> Iterator[str]:
    if line is None:
        yield _margin([""] * len(columns), str(number), text)
        return
    yield _margin(_sizes(line, columns), str(number), text)
    if line.line != number:
        yield _margin([""] * len(columns), "", f"^ line {line.line} when recorded")
    yield from _finding_line(line, columns)


def _finding_line(line: AnnotatedLine, columns: Sequence[str]) -> Iterator[str]:
    if line.findings:
        numbers = " ".join(f"[{number}]" for number in line.findings)
        yield _margin([""] * len(columns), "", f"^ {numbers}")


def _lost_text(line: AnnotatedLine, source: object) -> str:
    text = f"{optional('{}  ', line.text)}in {line.function}"
    if source is None:
        return text
    reason = "changed since" if line.text else "moved: not in this function now"
    return f"{text} ({reason})"


def _sizes(line: AnnotatedLine, columns: Sequence[str]) -> list[str]:
    return [_size(getattr(line, name)) for name in columns]


def _size(n_bytes: int) -> str:
    return format_bytes(n_bytes) if n_bytes else ""


def _margin(cells: Sequence[str], number: str, text: str) -> str:
    # A blank of its own stands before each, also before a line number of six digits.
    figures = "".join(f" {cell:>{_SIZE_WIDTH - 1}}" for cell in cells)
    return f"{figures} {number:>{_NUMBER_WIDTH}}  {text}".rstrip()
