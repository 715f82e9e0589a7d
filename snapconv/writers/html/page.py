"""An analysed file, or two to compare, -> a page: its style, its data, its program, in one file.

The program comes from ``web/`` (TypeScript) as one built file. The page forbids everything but that
file and its style, by their hashes: what a name in a snapshot may contain, it is never run, and
nothing is requested.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from snapconv.analysis import Analysis
from snapconv.answers.diff import Change, FileDiff, Match, compare_files, paired
from snapconv.answers.notes import file_notes
from snapconv.answers.times import (
    TimeReport,
    TimeTotal,
    module_times,
    time_report_of,
)
from snapconv.files import checked_output, new_files
from snapconv.json_text import picked
from snapconv.notes import Note
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.stacks.source_files import SourceFolder
from snapconv.version import VERSION
from snapconv.writers.html.column_encoding import (
    EncodedColumn,
    content_hash,
    encode_values,
    page_text,
)
from snapconv.writers.html.view_device import view_device, vocabulary
from snapconv.writers.text.comparisons import AnyChange, row_name
from snapconv.writers.text.info import settings_shown
from snapconv.writers.text.size_rows import line_shown

_HERE = Path(__file__).parent
_PROGRAM = _HERE / "page.js"
_STYLE = _HERE / "page.css"
_FIGURES_OF_TIME = ("n_calls", "forward_ms", "backward_ms")
_DATA_TYPE = "application/octet-stream"  # no type of a program: it is never run


@dataclass(frozen=True, slots=True)
class View:
    """A page that was written, and the notes about what it shows."""

    path: Path
    n_bytes: int
    notes: tuple[Note, ...]

    def open(self) -> None:
        """Open the page in the browser."""
        import webbrowser

        webbrowser.open(self.path.resolve().as_uri())


def page_ending(inputs: Sequence[Path]) -> str:
    """Return the end of the name of a page about one file, or of one that compares two."""
    return ".view.html" if len(inputs) == 1 else ".compare.html"


def page_output(inputs: Sequence[Path], output: str | Path | None, *, force: bool) -> Path:
    """Return where the page goes, by default named after the (newer) file; raises OutputError."""
    return checked_output(inputs, output, page_ending(inputs), force=force)


def write_view(
    files: Sequence[Analysis],
    output: Path,
    *,
    source: str | Path | None = None,
    force: bool,
) -> View:
    """Write a page that shows one file, or two of which the older is the first; raises OutputError.

    With ``source``, a folder, the page has the source of the lines that allocate, from there or
    else from the recording; raises InputError where there is no such folder. Of two files it shows
    one device each: the first that both have, or else the first of each.
    """
    if len(files) > 1:
        files = _compared_devices(files)
    folder = None if source is None else SourceFolder.at(source)
    title = page_text(" → ".join(file.path.name for file in files))
    facts = []
    notes: list[Note] = []
    for file in files:
        facts.append(_file_facts(file))
        notes += (*file_notes(file), *file.times.notes)
        timing = file.timing
        if timing and timing.device in [row.device.device for row in file.devices]:
            times = time_report_of(timing, file.snapshot, file.options)
            notes += times.notes
            facts[-1]["times"] = _times_facts(times)
    with new_files([output], force=force) as (temporary,), temporary.open("wb") as page:
        for part in _parts(files, facts, folder, f"{title} – snapconv"):
            page.write(part)
        return View(output, page.tell(), tuple(dict.fromkeys(notes)))


def _compared_devices(files: Sequence[Analysis]) -> list[Analysis]:
    """Return two files with one device each: the first that both have, or else their first."""
    pairs, _, _ = paired(*(file.devices for file in files))
    devices = pairs[0] if pairs else tuple(file.devices[0] for file in files)
    return [replace(file, devices=(row,)) for file, row in zip(files, devices, strict=True)]


def _parts(
    files: Sequence[Analysis],
    facts: list[dict[str, object]],
    folder: SourceFolder | None,
    title: str,
) -> Iterator[bytes]:
    program = _PROGRAM.read_bytes()
    style = _STYLE.read_bytes()
    devices = []
    entries = []
    for number, file in enumerate(files):
        for analysis in file.devices:
            device = view_device(analysis, folder)
            devices.append(device)
            columns = (device.level | device.columns).items()
            entry = {"columns": {name: column.entry() for name, column in columns}}
            entries.append({"file": number} | device.facts | entry)
    is_comparison = len(files) > 1
    directory = vocabulary() | {
        "is_comparison": is_comparison,
        "has_source": folder is not None,
    }
    if is_comparison:
        directory["comparison"] = _comparison_facts(compare_files(*files))
    directory |= {"files": facts, "devices": entries}
    yield _head(title, program, style).encode()
    yield b"<style>" + style + b"</style></head><body><div id=app></div>"
    yield b"<noscript>This page draws itself: allow it to run its own script.</noscript>\n"
    yield _data("page", encode_values(directory))
    for i, device in enumerate(devices):
        yield from _columns(i, device.level)
    yield b"<script>" + program + b"</script>\n"
    for i, device in enumerate(devices):
        yield _data(f"{i}.detail", encode_values(device.detail))
        yield from _columns(i, device.columns)
    yield b"</body></html>\n"


def _columns(number: int, columns: dict[str, EncodedColumn]) -> Iterator[bytes]:
    for name, column in columns.items():
        yield _data(f"{number}.{name}", column.base64)


def _data(name: str, encoded: bytes) -> bytes:
    return f'<script type="{_DATA_TYPE}" id="{name}">'.encode() + encoded + b"</script>\n"


def _head(title: str, program: bytes, style: bytes) -> str:
    policy = (
        f"default-src 'none'; script-src '{content_hash(program)}'; style-src "
        f"'{content_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title>"
    )


# --- what a page shows of a file as a whole


def _file_facts(file: Analysis) -> dict[str, object]:
    snapshot = file.snapshot
    container = snapshot.container
    return {
        "name": file.path.name or str(file.path),
        "bytes": container.n_bytes,
        "format": container.description,
        "protocol": container.pickle_protocol,
        "written_by": snapshot.written_by,
        "snapconv": VERSION,
        "project_root": file.project.root or "",
        "command": snapshot.facts.get("command", ""),
        "settings": dict(settings_shown(snapshot.settings_entries)),
    }


def _times_facts(report: TimeReport) -> dict[str, object]:
    return {
        "device": report.timing.device,
        "is_simulated": report.timing.is_simulated,
        **asdict(report.reported.measured),
        "notes": [[note.slug, note.message] for note in report.notes],
        "operations": list(_totals("name", report.operations)),
        "modules": list(_totals("module", module_times(report))),
        "lines": list(_totals("", report.lines)),
    }


def _totals(key: str, totals: Sequence[TimeTotal[Any]]) -> Iterator[dict[str, object]]:
    """Yield totals with their names: of lines, files and numbers; of others, by the key."""
    for total in totals:
        name = {key: total.name} if key else line_values(total.name)
        yield {**name, **picked(total, _FIGURES_OF_TIME)}


def _comparison_facts(report: FileDiff) -> dict[str, object] | None:
    """Return the rows of the first pair of devices, and the settings that differ; None: no pair."""
    if not report.devices:
        return None
    device = report.devices[0]
    settings = [(name, old or "", new or "") for name, old, new in report.settings]
    tables: dict[str, Sequence[AnyChange]] = {
        "category": device.categories,
        "line": device.lines,
        "module": device.modules,
        "operation": device.operations,
    }
    rows = {name: list(map(_row, table)) for name, table in tables.items()}
    return rows | {"settings": settings, "moved": _moved(device.lines)}


def _moved(lines: Sequence[Change[Match]]) -> dict[str, dict[str, str]]:
    """Return the new names of lines and of files that have another one in the old version."""
    moved: dict[str, dict[str, str]] = {"lines": {}, "files": {}}
    for old, new in (line.name for line in lines):
        if isinstance(old, SourceLine) and isinstance(new, SourceLine) and old != new:
            moved["lines"][line_shown(old)] = line_shown(new)
            if old.file_path != new.file_path:
                moved["files"][old.file_path] = new.file_path
    return moved


def _row(row: AnyChange) -> list[object]:
    return [row_name(row), row.old_bytes, row.new_bytes, row.difference.value]
