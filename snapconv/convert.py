"""A snapshot file -> reports on disk, for the command line and scripts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from snapconv.analysis import (
    Analysis,
    AnalysisOptions,
    analyze,
    chosen_devices,
    read_options,
)
from snapconv.answers.memory_report import MemoryReport, build_memory_report
from snapconv.answers.times import TimeReport, time_report_of
from snapconv.files import check_outputs, given_output, report_output
from snapconv.notes import Note, Progress
from snapconv.snapshot.load import DeviceSnapshot, load_snapshot
from snapconv.snapshot.recorded.timing_file import CaptureTimes, Timing
from snapconv.units import HOST_NAME
from snapconv.writers.sqlite.skyline_reports import memory_database, time_database
from snapconv.writers.sqlite.tables import write_databases


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of ``to_sqlite``; see ``snapconv to-sqlite --help`` for the meaning of each."""

    output: str | Path | None = None
    extended: bool = False
    device: int | None = None  # HOST: pinned host memory
    force: bool = False
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)


@dataclass(frozen=True, slots=True)
class Conversion:
    """The reports and the files that they were written to, in the order of devices.

    ``time`` is the run time report of a capture that has times. ``n_bytes`` is the size of the
    files that were read, unpacked.
    """

    reports: tuple[tuple[Path, MemoryReport], ...]
    time: tuple[Path, TimeReport] | None = None
    notes: tuple[Note, ...] = ()
    n_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values: bytes and milliseconds, as docs/reference/json.md says."""
        time = None
        if self.time:
            path, time_report = self.time
            time = time_report.to_json(path)
        return {
            "reports": [report.to_json(path) for path, report in self.reports],
            "time": time,
        }


def to_sqlite(
    path: str | Path,
    options: ConvertOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a snapshot into one memory report per device, and times into a run time report.

    A capture may have times. All reports are written, or none. Raises SnapconvError; an output that
    is named and exists already is refused before anything is read.
    """
    path = Path(path)
    options = options or ConvertOptions()
    output = _named_output(options, path)
    analysis_options = read_options(options.analysis)
    times = CaptureTimes(path)
    timing = times.of_device(options.device)
    name_report = partial(report_output, path, output, has_times=timing is not None)
    time_outputs = [] if timing is None else [name_report("time")]
    check = partial(check_outputs, force=options.force, inputs=[path])
    if output is not None:
        # Before a long reading: these are the names of a capture of one device, as most are.
        check([name_report("memory"), *time_outputs])
    snapshot = load_snapshot(path, progress=progress)
    devices = chosen_devices(snapshot, options.device)
    ordinals = _ordinals(snapshot.devices, devices, is_named=output is not None)
    outputs = [name_report("memory", ordinal=ordinal) for ordinal in ordinals]
    check([*outputs, *time_outputs])
    analysis = analyze(
        path, snapshot, analysis_options, devices=devices, times=times, progress=progress
    )
    conversion = _build_reports(analysis, outputs, timing, time_outputs)
    _write(conversion, options, progress)
    return conversion


def _named_output(options: ConvertOptions, path: Path) -> Path | None:
    """Return the output that the user named, which must not be the input; None without a name."""
    if options.output is None:
        return None
    output = given_output(options.output)
    check_outputs([output], force=True, inputs=[path])
    return output


def _build_reports(
    analysis: Analysis,
    outputs: Iterable[Path],
    timing: Timing | None,
    time_outputs: Sequence[Path],
) -> Conversion:
    snapshot = analysis.snapshot
    memory_reports = map(build_memory_report, analysis.devices)
    reports = tuple(zip(outputs, memory_reports, strict=True))
    notes = [note for _, report in reports for note in report.notes]
    n_bytes = snapshot.container.n_unpacked_bytes
    time = None
    if timing is not None:
        time_report = time_report_of(timing, snapshot, analysis.options)
        time = time_outputs[0], time_report
        notes += time_report.notes
        n_bytes += timing.n_bytes
    return Conversion(reports, time, (*notes, *analysis.times.notes), n_bytes)


def _write(
    conversion: Conversion, options: ConvertOptions, progress: Progress | None
) -> None:
    extended = options.extended
    databases = []
    for path, report in conversion.reports:
        databases.append(memory_database(path, report, extended=extended))
    if conversion.time:
        databases.append(time_database(*conversion.time, extended=extended))
    writing = partial(progress, "writing") if progress else None
    write_databases(databases, force=options.force, progress=writing)


def _ordinals(
    file_devices: Sequence[DeviceSnapshot],
    devices: Sequence[DeviceSnapshot],
    *,
    is_named: bool,
) -> list[str]:
    """Return the part of each report's name that no other report of the file has.

    Pinned host memory has its own ending, and changes no other report's name. The only report has
    the name that the user gives, without an ordinal. Where the user gives none, a device has the
    same name whichever devices are chosen.
    """
    if is_named and len(devices) == 1:
        return [""]
    named_devices = devices if is_named else file_devices
    n_devices = sum(not device.is_host for device in named_devices)
    ordinals = []
    for device in devices:
        if device.is_host:
            ordinals.append(f".{HOST_NAME}")
        elif n_devices > 1:
            ordinals.append(f".{device.device.kind}{device.device}")
        else:
            ordinals.append("")
    return ordinals
