"""The project's source for a page: the rows of ``snapconv annotate``, and those of whole files."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.annotation import (
    AnnotatedLine,
    annotate,
    lines_that_count,
)
from snapconv.answers.moments import find_moment
from snapconv.stacks.source_files import SourceFolder
from snapconv.writers.text.annotation import head_lines
from snapconv.writers.text.source_rows import (
    SourceRow,
    file_title,
    hidden_lines,
    hidden_text,
    margin_columns,
    source_rows,
)


def view_source(analysis: DeviceAnalysis, folder: SourceFolder) -> dict[str, object]:
    """Return the files with the bytes of their lines at the peak, the hottest first.

    ``counting`` are the rows that the terminal shows, ``all`` those of every line that allocates or
    calls what does. A row is a number, a text, the bytes of the margin, and the recorded numbers of
    its lines.
    """
    annotation = annotate(
        analysis, find_moment(analysis, "peak"), folder, includes_callers=True
    )
    counting = lines_that_count(annotation, None)
    columns = margin_columns(annotation)
    names = [*columns]
    files = []
    hidden: list[AnnotatedLine] = []
    for file in annotation.files:
        lines = sorted(file.lines, key=attrgetter("line"))
        if file.source is None:
            lines = [line for line in lines if line.n_allocations or line.findings]
        first_lines = [line for line in lines if (file.path, line.line) in counting]
        first_rows = list(source_rows(file, first_lines))
        hidden += hidden_lines(file, first_rows)
        if lines:
            files.append(
                {
                    "path": file.path,
                    "title": file_title(file),
                    "counting": _row_values(first_rows, names),
                    "all": _row_values(source_rows(file, lines), names),
                }
            )
    return {
        "head": [line.strip() for line in head_lines(annotation)],
        "columns": list(columns.values()),
        "hidden": hidden_text(hidden),
        "files": files,
    }


def _row_values(rows: Iterable[SourceRow], columns: Sequence[str]) -> list[list[object]]:
    values: list[list[object]] = []
    for row in rows:
        recorded_numbers = sorted({line.line for line in row.lines})
        values.append([row.number, row.text, row.sizes(columns), recorded_numbers])
    return values
