"""The whole way from a snapshot file to reports on disk: what the command line and scripts call."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.analysis import AnalysisOptions, analyze, chosen_devices, project_of, read_options
from snapconv.answers.memory_report import MemoryReport, build_memory_report
from snapconv.answers.times import TimeReport
from snapconv.errors import OutputWriteError
from snapconv.files import check_outputs, files_of, is_capture, os_errors, stem_of, timing_file
from snapconv.notes import Note, Progress
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot
from snapconv.stacks.project_frames import Project
from snapconv.units import HOST, HOST_NAME
from snapconv.writers.sqlite.database import write_databases
from snapconv.writers.sqlite.skyline_memory import memory_database

if TYPE_CHECKING:  # what has to do with times is imported where a file has some
    from snapconv.snapshot.recorded.timing_file import Timing

_INPUT_SUFFIXES = (".gz", ".pickle", ".pkl", ".json", ".html", ".pt")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of ``to_sqlite``; see ``snapconv to-sqlite --help`` for the meaning of each."""

    output: Path | None = None
    extended: bool = False
    device: int | None = None  # HOST: pinned host memory
    force: bool = False
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made: the reports and the files they were written to, in the order of devices.

    ``time`` is the run time report of a capture that has times; ``notes`` are those that are in no report.
    ``n_bytes`` is the size of what was read, unpacked.
    """

    snapshot: Snapshot
    project: Project
    reports: tuple[tuple[Path, MemoryReport], ...]
    time: tuple[Path, TimeReport] | None = None
    notes: tuple[Note, ...] = ()
    n_bytes: int = 0

    @property
    def all_notes(self) -> tuple[Note, ...]:
        """The notes of all reports, and those that are in none."""
        of_reports = (note for _, report in self.reports for note in report.notes)
        return (*of_reports, *(self.time[1].notes if self.time else ()), *self.notes)


def to_sqlite(path: Path, options: ConvertOptions, *, progress: Progress | None = None) -> Conversion:
    """Convert a snapshot into one memory report per device, and a capture's times into a run time report.

    All of them are written, or none. Raises SnapconvError; a given output that exists already is refused
    before anything is read.
    """
    _check_given_output(path, options)
    analysis_options = read_options(options.analysis)
    timing, notes = times_of_device(path, options.device)
    has_times = timing is not None
    time_outputs = [time_output_path(path, options)] if has_times else []
    if options.output is not None:  # with several devices the names differ; most captures have one
        likely = output_path(path, options, None, has_times=has_times)
        _check_outputs(path, [likely, *time_outputs], force=options.force)
    snapshot = load_snapshot(path, progress=progress)
    devices = chosen_devices(snapshot, options.device)
    outputs = _outputs(path, options, devices, of_file=snapshot.devices, has_times=has_times)
    _check_outputs(path, [*outputs, *time_outputs], force=options.force)
    analysis = analyze(path, snapshot, analysis_options, devices=devices, progress=progress)
    reports = [
        (output, build_memory_report(device))
        for output, device in zip(outputs, analysis.devices, strict=True)
    ]
    writing = (lambda done, total: progress("writing", done, total)) if progress else None
    extended = options.extended
    databases = [memory_database(output, report, extended=extended) for output, report in reports]
    time = (time_outputs[0], time_report_of(timing, snapshot, options.analysis)) if timing else None
    if time:
        from snapconv.writers.sqlite.skyline_time import time_database

        databases.append(time_database(*time, extended=extended))
    write_databases(databases, force=options.force, progress=writing)
    n_bytes = snapshot.container.n_unpacked_bytes + (timing.n_bytes if timing else 0)
    return Conversion(snapshot, analysis.project, tuple(reports), time, notes, n_bytes)


def times_of_device(path: Path, device: int | None) -> "tuple[Timing | None, tuple[Note, ...]]":
    """Read the times of a capture: None where it has none, or of another device."""
    file = timing_file(path)
    if file is None:
        return None, ()
    from snapconv.snapshot.recorded.timing_file import load_timing

    timing, notes = load_timing(file)
    return (timing if timing and device in (None, timing.device) else None), notes


def time_report_of(timing: "Timing", snapshot: Snapshot, options: AnalysisOptions) -> TimeReport:
    """The report of a capture's times, with the project of its snapshot."""
    from snapconv.answers.times import build_time_report

    recorded = replace(snapshot.recorded_project, root=timing.project_root)
    project = project_of(timing.stacks, recorded, options)
    return build_time_report(timing, project)


def _check_given_output(path: Path, options: ConvertOptions) -> None:
    """Refuse at once what can be refused before a long reading: other names depend on what is read."""
    output = options.output
    if output is None:
        return
    if not output.name:
        raise OutputWriteError(f"{output} names no file: give --output FOLDER/NAME.memory.sqlite")
    check_is_no_input(path, output)
    if output.is_dir():
        raise OutputWriteError(f"cannot write {output}: it is a folder; name a file inside it")
    if timing_file(path) is None:
        likely = output_path(path, options, None, has_times=False)
        _check_outputs(path, [likely], force=options.force)


def _check_outputs(path: Path, outputs: Sequence[Path], *, force: bool) -> None:
    """Refuse outputs that cannot be written, and the snapshot under any of its names."""
    for output in outputs:
        check_is_no_input(path, output)
    check_outputs(outputs, force=force)


def check_is_no_input(path: Path, output: Path) -> None:
    """Refuse an output that is the snapshot, under any of its names."""
    for file in files_of(path):
        with os_errors(output):
            is_input = output.exists() and file.exists() and output.samefile(file)
        if is_input:
            what = "the snapshot itself" if file == path else f"{file.name} of the capture"
            raise OutputWriteError(f"{output} is {what}: choose another --output")


def _outputs(
    path: Path,
    options: ConvertOptions,
    devices: Sequence[DeviceSnapshot],
    *,
    of_file: Sequence[DeviceSnapshot],
    has_times: bool,
) -> list[Path]:
    """Name the report of every device; its ordinal distinguishes it from the others of the file.

    Pinned host memory has its own ending, and changes no other report's name. Who gives a name for the only
    report gets that name.
    """
    named_alike = of_file if options.output is None else devices
    is_only = options.output is not None and len(devices) == 1
    has_ordinals = sum(not device.is_host for device in named_alike) > 1
    shown = [not is_only and (device.is_host or has_ordinals) for device in devices]
    ordinals = [device.device if is_shown else None for device, is_shown in zip(devices, shown, strict=True)]
    return [output_path(path, options, ordinal, has_times=has_times) for ordinal in ordinals]


def output_path(path: Path, options: ConvertOptions, device: int | None, *, has_times: bool) -> Path:
    """Where a memory report goes: beside the snapshot by default, with ``.cuda1`` or ``.host`` for a device.

    A given name is taken as it is for an only report. With a run time report beside it both have their kind
    in their names, and no memory report has the name of a run time report.
    """
    ordinal = "" if device is None else f".{HOST_NAME}" if device == HOST else f".cuda{device}"
    if options.output is None:
        stem = stem_of_outputs(path)
        return stem.with_name(f"{stem.name}{ordinal}.memory.sqlite")
    name, kind, ending = _split_output(options.output.name)
    if has_times or kind == ".time":
        kind, ending = ".memory", ending or ".sqlite"
    return options.output.with_name(f"{name}{ordinal}{kind}{ending}")


def time_output_path(path: Path, options: ConvertOptions) -> Path:
    """Where a run time report goes: beside the memory report, with ``.time`` for ``.memory``."""
    if options.output is None:
        stem = stem_of_outputs(path)
        return stem.with_name(f"{stem.name}.time.sqlite")
    name, _kind, ending = _split_output(options.output.name)
    return options.output.with_name(f"{name}.time{ending or '.sqlite'}")


def stem_of_outputs(path: Path) -> Path:
    """What the outputs are named after: the snapshot without its suffixes, or the capture."""
    if is_capture(path):
        return stem_of(path)
    stem = path.name
    while stem.lower().endswith(_INPUT_SUFFIXES):
        stem = stem[: stem.rindex(".")]
    return path.with_name(stem or path.name)


def _split_output(name: str) -> tuple[str, str, str]:
    """Split a report's name into what the user calls it, its kind and its ending, each with its dot."""
    for ending in (".sqlite", ".db"):
        if name.endswith(ending):
            stem = name.removesuffix(ending)
            for kind in (".memory", ".time"):
                if stem.endswith(kind) and stem != kind:
                    return stem.removesuffix(kind), kind, ending
            return stem, "", ending
    return name, "", ""
