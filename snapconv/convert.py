"""The whole way from a snapshot file to reports on disk: what the command line and scripts call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snapconv.analysis import AnalysisOptions, analyze, chosen_devices, read_options
from snapconv.answers.memory_report import MemoryReport, build_memory_report
from snapconv.answers.times import TimeReport, time_report_of, times_of_device
from snapconv.files import check_outputs, given_output, report_output
from snapconv.notes import Note, Progress
from snapconv.snapshot.load import DeviceSnapshot, load_snapshot
from snapconv.units import HOST_NAME
from snapconv.writers.sqlite.skyline_reports import memory_database, time_database
from snapconv.writers.sqlite.tables import write_databases


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

    ``time`` is the run time report of a capture that has times. ``n_bytes`` is the size of what was
    read, unpacked.
    """

    reports: tuple[tuple[Path, MemoryReport], ...]
    time: tuple[Path, TimeReport] | None = None
    notes: tuple[Note, ...] = ()
    n_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values: bytes and milliseconds; docs/reference/json.md has the schema."""
        return {
            "reports": [report.to_json(path) for path, report in self.reports],
            "time": self.time[1].to_json(self.time[0]) if self.time else None,
        }


def to_sqlite(
    path: str | Path, options: ConvertOptions | None = None, *, progress: Progress | None = None
) -> Conversion:
    """Convert a snapshot into one memory report per device, and a capture's times into a run time report.

    All of them are written, or none. Raises SnapconvError; a given output that exists already is
    refused before anything is read.
    """
    path = Path(path)
    options = options or ConvertOptions()
    given = options.output
    force = options.force
    if given is not None:
        given = given_output(given)
        check_outputs([given], force=True, inputs=[path])
    analysis_options = read_options(options.analysis)
    timing, notes = times_of_device(path, options.device)
    has_times = timing is not None
    time_outputs = [report_output(path, given, "time", has_times=True)] if has_times else []
    if given is not None:  # with several devices the names differ; most captures have one
        likely = report_output(path, given, "memory", has_times=has_times)
        check_outputs([likely, *time_outputs], force=force, inputs=[path])
    snapshot = load_snapshot(path, progress=progress)
    devices = chosen_devices(snapshot, options.device)
    outputs = [
        report_output(path, given, "memory", ordinal=ordinal, has_times=has_times)
        for ordinal in _ordinals(snapshot.devices, devices, is_named=given is not None)
    ]
    check_outputs([*outputs, *time_outputs], force=force, inputs=[path])
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
        databases.append(time_database(*time, extended=extended))
    write_databases(databases, force=force, progress=writing)
    n_bytes = snapshot.container.n_unpacked_bytes + (timing.n_bytes if timing else 0)
    of_reports = (note for _, report in reports for note in report.notes)
    return Conversion(
        tuple(reports), time, (*of_reports, *(time[1].notes if time else ()), *notes), n_bytes
    )


def _ordinals(
    of_file: Sequence[DeviceSnapshot], devices: Sequence[DeviceSnapshot], *, is_named: bool
) -> list[str]:
    """Return what distinguishes the report of every device from the others of the file.

    Pinned host memory has its own ending, and changes no other report's name. Who gives a name for
    the only report gets that name.
    """
    if is_named and len(devices) == 1:
        return [""]
    several = sum(not device.is_host for device in (devices if is_named else of_file)) > 1
    return [
        f".{HOST_NAME}"
        if device.is_host
        else f".{device.device.kind}{device.device}"
        if several
        else ""
        for device in devices
    ]
