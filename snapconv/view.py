"""From a file, or two to compare, to a page: what ``snapconv view`` calls."""

from dataclasses import dataclass, field
from pathlib import Path

from snapconv.atomic_files import check_outputs
from snapconv.convert import (
    check_is_no_input,
    chosen_devices,
    stem_of_outputs,
    time_report_of,
    times_of_device,
)
from snapconv.errors import OutputWriteError
from snapconv.findings.module_times import module_times
from snapconv.notes import Note
from snapconv.pipeline import AnalysisOptions, analyzer_of, read_options
from snapconv.progress import Progress
from snapconv.reports.html.column_encoding import page_text
from snapconv.reports.html.page_writer import ViewFile, write_page
from snapconv.reports.html.view_device import view_device, vocabulary
from snapconv.reports.html.view_file import file_facts, times_facts
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot


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


def write_view(
    path: Path, options: ViewOptions, *, other: Path | None = None, progress: Progress | None = None
) -> View:
    """Write a page that shows a file, or with ``other`` two files side by side, the older one first.

    Raises SnapconvError; an output that exists is refused before anything is read.
    """
    inputs = [path] if other is None else [path, other]
    output = options.output or _default_output(inputs)
    _check_output(inputs, output, force=options.force)
    analysis = read_options(options.analysis)
    read = [(one, load_snapshot(one, progress=progress)) for one in inputs]
    devices = _devices([snapshot for _, snapshot in read], options.device)
    found = [_view_file(*each, shown, analysis, progress) for each, shown in zip(read, devices, strict=True)]
    shared = {**vocabulary(), "is_comparison": other is not None}
    title = page_text(" → ".join(one.name for one in inputs))
    n_bytes = write_page(
        output, [file for file, _ in found], shared, title=f"{title} – snapconv", force=options.force
    )
    return View(output, n_bytes, tuple(dict.fromkeys(note for _, notes in found for note in notes)))


def _default_output(inputs: list[Path]) -> Path:
    """Beside the file, or the newer one of two: ``run.view.html``, ``run.compare.html``."""
    stem = stem_of_outputs(inputs[-1])
    return stem.with_name(f"{stem.name}.{'view' if len(inputs) == 1 else 'compare'}.html")


def _check_output(inputs: list[Path], output: Path, *, force: bool) -> None:
    if str(output) == "-":
        raise OutputWriteError("cannot write -: a page is a file and no stream; name it with --output")
    if not output.name:
        raise OutputWriteError(f"{output} names no file: give --output FOLDER/NAME.html")
    for path in inputs:
        check_is_no_input(path, output)
    check_outputs([output], force=force)


def _devices(snapshots: list[Snapshot], device: int | None) -> list[tuple[DeviceSnapshot, ...]]:
    """The devices to show of each file: of two files one of each, with the same number if there is one."""
    if len(snapshots) == 1 or device is not None:
        return [chosen_devices(snapshot, device) for snapshot in snapshots]
    old, new = ([one.device for one in snapshot.devices] for snapshot in snapshots)
    common = next((number for number in old if number in new), None)
    return [
        snapshot.devices[:1] if common is None else chosen_devices(snapshot, common) for snapshot in snapshots
    ]


def _view_file(
    path: Path,
    snapshot: Snapshot,
    devices: tuple[DeviceSnapshot, ...],
    options: AnalysisOptions,
    progress: Progress | None,
) -> tuple[ViewFile, tuple[Note, ...]]:
    ordinals = {device.device for device in devices}
    timing, notes = times_of_device(path, None)
    if timing is not None and timing.device not in ordinals:
        timing = None
    analyzer = analyzer_of(snapshot, options)
    facts = file_facts(snapshot, analyzer.project, name=path.name or str(path))
    shown = []
    for number, one in enumerate(devices):
        if progress:
            progress("analysing", number, len(devices))
        analysis = analyzer.analyze(one)
        notes = (*analysis.notes, *notes)
        shown.append(view_device(snapshot, analyzer.project, analysis))
    if timing is not None:
        report = time_report_of(timing, snapshot, options)
        facts["times"] = times_facts(report, module_times(timing, report.reported.iteration))
        notes = (*notes, *report.notes)
    return ViewFile(facts, tuple(shown)), notes
