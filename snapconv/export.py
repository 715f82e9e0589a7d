"""A file -> what other programs read: traces, profiles of a moment, tables, a smaller snapshot.

The formats are in writers/exports/. Here is what they share: which device, which moment or window,
what the output is called, and that it is whole or not there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.memory_report import build_memory_report
from snapconv.answers.moments import PEAK, MomentQuestion, find_moment
from snapconv.answers.times import time_report_of, times_of_device
from snapconv.answers.views.event_window import (
    EventWindow,
    Range,
    whole_window,
    window_notes,
    window_of_events,
    window_of_iterations,
)
from snapconv.answers.views.live_stacks import LiveStacks, find_live_stacks
from snapconv.answers.views.trace_tracks import TrackGroup, memory_group, times_group
from snapconv.errors import InputError
from snapconv.files import checked_output, most_bytes_of_output, new_files, os_errors, timing_file
from snapconv.notes import Note
from snapconv.session import Session
from snapconv.snapshot.load import load_snapshot
from snapconv.units import HOST, device_argument
from snapconv.writers.exports.profiles import with_short_stacks, write_folded, write_pprof, write_speedscope
from snapconv.writers.exports.snapshot_pickle import SnapshotOptions, write_snapshot
from snapconv.writers.exports.table_files import write_csv, write_json_lines, write_parquet
from snapconv.writers.exports.traces import write_chrome, write_perfetto
from snapconv.writers.sqlite.skyline_memory import memory_database
from snapconv.writers.sqlite.skyline_time import time_database
from snapconv.writers.sqlite.tables import TableRows


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is exported, and to where; ``snapconv export --help`` has the meaning of each."""

    format: str
    output: Path | None = None
    force: bool = False
    at: MomentQuestion = PEAK
    events: Range | None = None
    iterations: Range | None = None
    snapshot: SnapshotOptions = field(default_factory=SnapshotOptions)
    csv_safe: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, and what there is to know about them."""

    files: tuple[Path, ...]
    notes: tuple[Note, ...] = ()


Writer = Callable[[Session, Path, ExportOptions], Exported]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the end of its file's or folder's name, and what writes it."""

    ending: str
    write: Writer
    is_folder: bool = False


def output_of(path: Path, options: ExportOptions) -> Path:
    """Return where the export of a file goes, by default here; raises OutputError where it cannot."""
    found = FORMATS[options.format]
    return checked_output(
        [path], options.output, found.ending, force=options.force, is_folder=found.is_folder
    )


def export(session: Session, output: Path, options: ExportOptions) -> Exported:
    """Write a session in one of FORMATS.

    Raises InputError where the file lacks what is wanted, OutputError where the output cannot be written.
    """
    return FORMATS[options.format].write(session, output, options)


def the_device(session: Session) -> DeviceAnalysis:
    """Return the one device of a session, or of several the only CUDA device; else raises InputError."""
    devices = [found for found in session.devices if found.device.device != HOST] or list(session.devices)
    if len(devices) > 1:
        there = ", ".join(device_argument(found.device.device) for found in session.devices)
        raise InputError(f"{session.snapshot.path} has several devices ({there}): name one with --device")
    return devices[0]


def _write_smaller_snapshot(session: Session, output: Path, options: ExportOptions) -> Exported:
    """Write the window, and read it again, since a part of a trace may show less than the whole."""
    analysis = the_device(session)
    if analysis.device.device == HOST:
        raise InputError("torch's viewer knows no pinned host memory: name another device with --device")
    window = _window(analysis, options)
    with new_files([output], force=options.force) as (temporary,):
        write_snapshot(temporary, analysis, window, options.snapshot)
        notes = window_notes(analysis, window, load_snapshot(temporary))
    return Exported((output,), notes)


def _window(analysis: DeviceAnalysis, options: ExportOptions) -> EventWindow:
    if options.events:
        return window_of_events(analysis, options.events)
    return (
        window_of_iterations(analysis, options.iterations) if options.iterations else whole_window(analysis)
    )


def _tracks(session: Session) -> list[TrackGroup]:
    """Return the memory of every device, and of a capture the times of its operations."""
    groups = [memory_group(analysis) for analysis in session.devices]
    timing, _ = times_of_device(session.path, None)
    if timing is not None and timing.device in [found.device.device for found in session.devices]:
        begins = [int(group.counters[0].time_us[0]) for group in groups]
        groups.append(times_group(timing, begin_us=min(begins)))
    return groups


def _write_stacks(write: Callable[[Path, LiveStacks], None], *, names_repeat: bool = False) -> Writer:
    """Make a writer of what is live by stack; ``names_repeat``: names of frames stand in every stack."""

    def writer(session: Session, output: Path, options: ExportOptions) -> Exported:
        analysis = the_device(session)
        moment = find_moment(analysis, options.at)
        cpp_frames = options.snapshot.cpp_frames
        found = find_live_stacks(analysis, moment, cpp_frames=cpp_frames)
        notes: tuple[Note, ...] = ()
        if names_repeat:
            found, notes = with_short_stacks(found, session.snapshot.container.n_unpacked_bytes)
        with new_files([output], force=options.force) as (temporary,):
            write(temporary, found)
        return Exported((output,), notes)

    return writer


def _write_traces(write: Callable[[Path, list[TrackGroup]], None]) -> Writer:
    def writer(session: Session, output: Path, options: ExportOptions) -> Exported:
        with new_files([output], force=options.force) as (temporary,):
            write(temporary, _tracks(session))
        return Exported((output,))

    return writer


def _tables(session: Session) -> list[tuple[str, Sequence[TableRows]]]:
    """Return the tables of the memory report of one device, and of a capture those of its times."""
    analysis = the_device(session)
    report = build_memory_report(analysis)
    found = [("memory", memory_database(Path(), report, extended=True).rows)]
    timing, _ = times_of_device(session.path, analysis.device.device)
    if timing is not None:
        times = time_report_of(timing, session.snapshot, session.analysis.options)
        found.append(("time", time_database(Path(), times, extended=True).rows))
    return found


def _write_csv(temporary: Path, rows: TableRows, options: ExportOptions) -> None:
    write_csv(temporary, rows, is_safe=options.csv_safe)


def _write_parquet(temporary: Path, rows: TableRows, _options: ExportOptions) -> None:
    write_parquet(temporary, rows)


def _write_folder(ending: str, write: Callable[[Path, TableRows, ExportOptions], None]) -> Writer:
    """Make a writer of a file for every table into a folder, which need not exist."""

    def writer(session: Session, output: Path, options: ExportOptions) -> Exported:
        tables = {
            output / f"{report}.{rows.table.name}{ending}": rows
            for report, several in _tables(session)
            for rows in several
        }
        with _folder(output), new_files(list(tables), force=options.force) as temporaries:
            for temporary, (path, rows) in zip(temporaries, tables.items(), strict=True):
                with os_errors(path):
                    write(temporary, rows, options)
        return Exported((output,))

    return writer


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder to write into; one that was made for it goes again where that fails."""
    was_there = path.exists()
    with os_errors(path):
        path.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        if not was_there:
            with suppress(OSError):
                path.rmdir()
        raise


def _write_lines(session: Session, output: Path, options: ExportOptions) -> Exported:
    tables = _tables(session)
    with new_files([output], force=options.force) as (temporary,):
        write_json_lines(temporary, tables, n_most_bytes=most_bytes_of_output(_n_bytes(session)))
    return Exported((output,))


def _n_bytes(session: Session) -> int:
    """Return the size of the file, unpacked, or of all files of a capture."""
    times = timing_file(session.path)
    n_of_times = times.stat().st_size if times and times.is_file() else 0
    return session.snapshot.container.n_unpacked_bytes + n_of_times


FORMATS: dict[str, Format] = {
    "perfetto": Format(".perfetto-trace", _write_traces(write_perfetto)),
    "chrome": Format(".trace.json", _write_traces(write_chrome)),
    "speedscope": Format(".speedscope.json", _write_stacks(write_speedscope)),
    "folded": Format(".folded.txt", _write_stacks(write_folded, names_repeat=True)),
    "pprof": Format(".pb.gz", _write_stacks(write_pprof)),
    "csv": Format(".csv", _write_folder(".csv", _write_csv), is_folder=True),
    "jsonl": Format(".jsonl", _write_lines),
    "parquet": Format(".parquet", _write_folder(".parquet", _write_parquet), is_folder=True),
    "snapshot": Format(".window.pickle", _write_smaller_snapshot),
}
