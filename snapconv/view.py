"""From a file, or two to compare, to a page: what ``snapconv view`` and ``Session.view`` call."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snapconv.analysis import Analysis, AnalysisOptions, analyze, chosen_devices, read_options
from snapconv.answers.diff import compare_files
from snapconv.answers.notes import file_notes
from snapconv.answers.times import module_times, time_report_of, times_of_device
from snapconv.errors import OutputWriteError
from snapconv.files import checked_output
from snapconv.notes import Note, Progress
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.writers.html.column_encoding import page_text
from snapconv.writers.html.page_writer import ViewFile, write_page
from snapconv.writers.html.view_device import view_device, vocabulary
from snapconv.writers.html.view_file import comparison_facts, file_facts, times_facts


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of ``write_view``; see ``snapconv view --help`` for the meaning of each."""

    output: Path | None = None
    device: int | None = None  # HOST: pinned host memory
    force: bool = False
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)


@dataclass(frozen=True, slots=True)
class View:
    """A page that was written, and the notes about what it shows."""

    path: Path
    n_bytes: int
    notes: tuple[Note, ...]

    def open(self) -> None:
        """Open the page in the browser."""
        webbrowser.open(self.path.resolve().as_uri())


def write_view(
    path: Path, options: ViewOptions, *, other: Path | None = None, progress: Progress | None = None
) -> View:
    """Write a page that shows a file, or with ``other`` two files side by side, the older one first.

    Raises SnapconvError; an output that exists is refused before anything is read.
    """
    inputs = [path] if other is None else [path, other]
    output = _checked_output(inputs, options.output, force=options.force)
    analysis_options = read_options(options.analysis)
    snapshots = [load_snapshot(one, progress=progress) for one in inputs]
    files = [
        analyze(one, snapshot, analysis_options, devices=shown, progress=progress)
        for one, snapshot, shown in zip(inputs, snapshots, _devices(snapshots, options.device), strict=True)
    ]
    return _write(files, output, force=options.force)


def write_view_of(files: Sequence[Analysis], output: Path | None, *, force: bool) -> View:
    """Write a page that shows one file, or two of which the older is the first; raises OutputError."""
    path = _checked_output([file.path for file in files], output, force=force)
    if len(files) > 1:
        shown = _compared(*([found.device.device for found in file.devices] for file in files))
        files = [file.of_device(number) for file, number in zip(files, shown, strict=True)]
    return _write(files, path, force=force)


def page_ending(n_files: int) -> str:
    """Return the end of a page's name, which is named after the file, or the newer one of two."""
    return ".view.html" if n_files == 1 else ".compare.html"


def _write(files: Sequence[Analysis], output: Path, *, force: bool) -> View:
    found = [_view_file(file) for file in files]
    shared = {**vocabulary(), "is_comparison": len(files) > 1}
    if len(files) > 1:
        shared["comparison"] = comparison_facts(compare_files(*files))
    title = page_text(" → ".join(file.path.name for file in files))
    n_bytes = write_page(
        output, [file for file, _ in found], shared, title=f"{title} – snapconv", force=force
    )
    return View(output, n_bytes, tuple(dict.fromkeys(note for _, notes in found for note in notes)))


def _checked_output(inputs: Sequence[Path], given: Path | None, *, force: bool) -> Path:
    """Return where the page goes, if it may go there."""
    if str(given) == "-":
        raise OutputWriteError("cannot write -: a page is a file and no stream; name it with --output")
    return checked_output(inputs, given, page_ending(len(inputs)), force=force, example=".html")


def _devices(snapshots: list[Snapshot], device: int | None) -> list[tuple[DeviceSnapshot, ...]]:
    """Return the devices to show of each file, before they are analysed: of two files one of each."""
    if len(snapshots) == 1 or device is not None:
        return [chosen_devices(snapshot, device) for snapshot in snapshots]
    shown = _compared(*([one.device for one in snapshot.devices] for snapshot in snapshots))
    return [chosen_devices(snapshot, number) for snapshot, number in zip(snapshots, shown, strict=True)]


def _compared(old: Sequence[int], new: Sequence[int]) -> tuple[int, int]:
    """Return the device of each file that a comparison shows: the first common one, or each first."""
    common = next((number for number in old if number in new), None)
    return (old[0], new[0]) if common is None else (common, common)


def _view_file(file: Analysis) -> tuple[ViewFile, tuple[Note, ...]]:
    timing, notes = times_of_device(file.path, None)
    facts = file_facts(file.snapshot, file.project, name=file.path.name or str(file.path))
    notes = (*file_notes(file), *notes)
    if timing is not None and timing.device in [found.device.device for found in file.devices]:
        report = time_report_of(timing, file.snapshot, file.options)
        facts["times"] = times_facts(report, module_times(timing, report.reported.iteration))
        notes = (*notes, *report.notes)
    shown = tuple(view_device(found) for found in file.devices)
    return ViewFile(facts, shown), notes
