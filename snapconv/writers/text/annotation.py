"""Source files with the bytes of their lines in a margin."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    hidden_lines,
    hidden_text,
    margin_columns,
    source_rows,
)

_NUMBER_WIDTH = 5
_GAP = 2
_N_CALLERS = 3
# A narrow terminal has fewer figures rather than less of the source.
_LEAST_SHARE_OF_SOURCE = 0.4


@dataclass(frozen=True, slots=True)
class _Margin:
    """The columns of figures with their titles and widths; ``width`` is that of the terminal."""

    titles: dict[str, str]
    size_width: int
    width: int | None

    def heading(self) -> str:
        """Return the titles of the columns."""
        return self._joined(self.titles.values(), "line", "")

    def line(self, row: SourceRow) -> str:
        """Write a row; what does not fit on the terminal is cut, as in an editor."""
        names = [*self.titles]
        sizes = row.sizes(names) or [0] * len(names)
        cells = [format_bytes(n) if n else "" for n in sizes]
        text = self._joined(cells, row.number, row.text)
        is_cut = self.width is not None and len(text) > self.width
        return f"{text[: self.width - 1]}…" if is_cut and self.width else text

    def _joined(self, cells: Iterable[str], number: str, text: str) -> str:
        figures = "".join(f"{cell:>{self.size_width}}" for cell in cells)
        # A blank of its own stands before a line number of six digits.
        return f"{figures} {number:>{_NUMBER_WIDTH}}  {text}".rstrip()


def annotation_lines(
    annotation: Annotation,
    *,
    n_most: int | None = None,
    n_around: int = 1,
    width: int | None = None,
) -> Iterator[str]:
    """Show the hottest files around the lines that count, after what ``advise`` finds.

    ``n_around`` lines stand before and after each; source is cut to the ``width`` of a terminal.
    """
    yield from head_lines(annotation)
    counting = lines_that_count(annotation, n_most)
    hidden: list[AnnotatedLine] = []
    n_live = 0
    tables = []
    for file in annotation.files:
        lines = [line for line in file.lines if (file.path, line.line) in counting]
        lines.sort(key=attrgetter("line"))
        rows = [*source_rows(file, lines, n_around=n_around)]
        if lines:
            tables.append((file, rows))
        hidden += hidden_lines(file, rows)
        n_live += sum(line.live_bytes > 0 or line in lines for line in file.lines)
    margin = _margin(annotation, [row for _, rows in tables for row in rows], width)
    for file, rows in tables:
        yield ""
        yield file_title(file)
        yield margin.heading()
        for row in rows:
            yield margin.line(row)
    if hidden:
        yield ""
        yield f"  {hidden_text(hidden)}: --top {n_live} shows all"


def _margin(
    annotation: Annotation, rows: Sequence[SourceRow], width: int | None
) -> _Margin:
    """Return the columns for some rows, the last of them dropped where a terminal is narrow."""
    titles = margin_columns(annotation)
    while True:
        sizes = [format_bytes(n) for row in rows for n in row.sizes([*titles])]
        size_width = max(map(len, [*titles.values(), *sizes])) + _GAP
        n_left = (width or 0) - len(titles) * size_width - _NUMBER_WIDTH - 1 - _GAP
        if width is None or n_left >= _LEAST_SHARE_OF_SOURCE * width or len(titles) == 1:
            return _Margin(titles, size_width, width)
        titles.popitem()


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
            yield f"  source: {_folder(annotation)}, matched by line number and function"
        return
    recorded = optional(", which was {} in the recording", annotation.project_root)
    folder = _folder(annotation)
    yield f"  no source of these lines in {folder}: pass --source FOLDER, the project{recorded}"


def _folder(annotation: Annotation) -> str:
    folder = annotation.source_folder
    return "the current folder" if folder == "." else folder
