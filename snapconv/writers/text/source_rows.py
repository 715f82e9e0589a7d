"""Source files as rows: the bytes in a margin, a line's number, and its text.

The terminal and the page draw the same rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import dedent

from snapconv.answers.annotation import AnnotatedFile, AnnotatedLine, Annotation
from snapconv.stacks.source_files import regions
from snapconv.units import counted, format_bytes, optional

_TITLES = {
    "live_bytes": "at peak",
    "kept_for_backward_bytes": "backward",
    "allocated_bytes": "in all",
}


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row below the name of a file.

    ``lines`` are those whose bytes it shows: none beside a heading or a mark.
    """

    number: str
    text: str
    lines: tuple[AnnotatedLine, ...] = ()

    def sizes(self, columns: Sequence[str]) -> list[int]:
        """Return the bytes of the margin, none for a row without lines."""
        if not self.lines:
            return []
        return [sum(getattr(line, name) for line in self.lines) for name in columns]


def margin_columns(annotation: Annotation) -> dict[str, str]:
    """Return figures of the margin with their titles; without activations, none of backward."""
    has_kept = any(file.total("kept_for_backward_bytes") for file in annotation.files)
    return {
        name: title
        for name, title in _TITLES.items()
        if has_kept or name != "kept_for_backward_bytes"
    }


def file_title(file: AnnotatedFile) -> str:
    """Return the path of a file and its live bytes, and the source where the path has no name."""
    return f"{file.path}: {format_bytes(file.total('live_bytes'))}{_source_name(file)}"


def _source_name(file: AnnotatedFile) -> str:
    if file.source is None:
        return ""
    if not file.source.path:
        return " (source as recorded)"
    is_below = PurePath(file.source.path).as_posix().endswith(f"/{file.path}")
    return "" if is_below else f" ({file.source.path})"


def hidden_lines(file: AnnotatedFile, rows: Iterable[SourceRow]) -> list[AnnotatedLine]:
    """Return the lines of a file with live bytes that none of its rows shows."""
    row_lines = {id(line) for row in rows for line in row.lines}
    return [line for line in file.lines if line.live_bytes and id(line) not in row_lines]


def hidden_text(hidden: Sequence[AnnotatedLine]) -> str:
    """Return the bytes at lines that are not shown; empty where there are none."""
    if not hidden:
        return ""
    n_bytes = sum(line.live_bytes for line in hidden)
    return f"{format_bytes(n_bytes)} at {counted(len(hidden), 'more line')}"


def source_rows(
    file: AnnotatedFile, lines: Sequence[AnnotatedLine], *, n_around: int = 1
) -> Iterator[SourceRow]:
    """Yield the rows around some lines of a file, which are sorted by their numbers.

    ``n_around`` lines stand before and after each. Lines that the source does not have follow with
    their recorded numbers.
    """
    if file.source is not None:
        yield from _region_rows(file, file.source.lines, lines, n_around)
    for line in lines:
        if line.current_line is None:
            mark = "" if file.source is None else "?"
            yield SourceRow(
                f"{line.line or ''}{mark}", _lost_text(line, file.source), (line,)
            )
            yield from _finding_rows((line,))


def _region_rows(
    file: AnnotatedFile,
    source: Sequence[str],
    lines: Sequence[AnnotatedLine],
    n_around: int,
) -> Iterator[SourceRow]:
    """Yield the source around some lines, with the figures of every line there."""
    # A comprehension is a function of its own on the line that has it.
    lines_at: dict[int, list[AnnotatedLine]] = {}
    for line in file.lines:
        if line.current_line is not None:
            lines_at.setdefault(line.current_line, []).append(line)
    functions = {line.current_line: line.function for line in lines if line.current_line}
    for region in regions(list(functions), n_around, len(source)):
        function = next(functions[number] for number in region if number in functions)
        texts = dedent("\n".join(source[number - 1] for number in region)).split("\n")
        definitions = (f"def {function}(", f"async def {function}(")
        if not any(text.lstrip().startswith(definitions) for text in texts):
            yield SourceRow("", f"in {function}")
        for number, text in zip(region, texts, strict=True):
            row = SourceRow(str(number), text.rstrip(), tuple(lines_at.get(number, ())))
            # A blank line is shown between two others alone.
            if row.text or row.lines or number not in (region[0], region[-1]):
                yield row
                yield from _mark_rows(number, row.lines)


def _mark_rows(number: int, lines: Sequence[AnnotatedLine]) -> Iterator[SourceRow]:
    """Yield what stands below a line of the source: its recorded numbers, and its findings."""
    for recorded_line in sorted({line.line for line in lines} - {number}):
        yield SourceRow("", f"^ line {recorded_line} when recorded")
    yield from _finding_rows(lines)


def _finding_rows(lines: Sequence[AnnotatedLine]) -> Iterator[SourceRow]:
    findings = sorted({number for line in lines for number in line.findings})
    if findings:
        yield SourceRow("", "^ " + " ".join(f"[{number}]" for number in findings))


def _lost_text(line: AnnotatedLine, source: object) -> str:
    text = f"{optional('{}  ', line.text)}in {line.function}"
    if source is None:
        return text
    reason = "changed since" if line.text else "moved: not in this function now"
    return f"{text} ({reason})"
