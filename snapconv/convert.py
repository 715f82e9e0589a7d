"""The whole way from a snapshot file to reports on disk: what the command line and scripts call."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snapconv.analysis.analyze import analyze_device
from snapconv.analysis.paths import PathMap, normal
from snapconv.analysis.project import Project, find_project
from snapconv.errors import InputError, OutputWriteError
from snapconv.reports.build import build_memory_report
from snapconv.reports.output import check_outputs
from snapconv.reports.report import MemoryReport
from snapconv.reports.skyline_memory import write_memory_reports
from snapconv.snapshot.load import DeviceSnapshot, Snapshot, load_snapshot

Progress = Callable[[str, int, int], None]

_INPUT_SUFFIXES = (".gz", ".pickle", ".pkl", ".json", ".html", ".pt")


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What ``to_sqlite`` may be told; see ``snapconv to-sqlite --help`` for the meaning of each."""

    output: Path | None = None
    extended: bool = False
    device: int | None = None
    project_root: str | None = None
    path_maps: tuple[PathMap, ...] = ()
    force: bool = False


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made: the reports and the files they were written to, in the order of devices."""

    snapshot: Snapshot
    project: Project
    reports: tuple[tuple[Path, MemoryReport], ...]


def to_sqlite(path: Path, options: ConvertOptions, *, progress: Progress | None = None) -> Conversion:
    """Convert a snapshot into one memory report per device; all of them are written, or none.

    Raises SnapconvError; an output that exists already is refused before anything is read.
    """
    _check_output(path, options)
    snapshot = load_snapshot(path, progress=progress)
    devices = _chosen(snapshot, options.device)
    names = [device.device if len(devices) > 1 else None for device in devices]
    outputs = [output_path(path, options, name) for name in names]
    check_outputs(outputs, force=options.force)
    project = find_project(snapshot.stacks, root=options.project_root, path_maps=options.path_maps)
    reports = []
    for number, (output, device) in enumerate(zip(outputs, devices, strict=True)):
        if progress:
            progress("analysing", number, len(devices))
        reports.append(
            (output, build_memory_report(snapshot, project, analyze_device(snapshot, device, project)))
        )
    writing = (lambda done, total: progress("writing", done, total)) if progress else None
    write_memory_reports(reports, extended=options.extended, force=options.force, progress=writing)
    return Conversion(snapshot, project, tuple(reports))


def _check_output(path: Path, options: ConvertOptions) -> None:
    """Refuse at once what can be refused before a long reading."""
    output = options.output
    if output is not None and not output.name:
        raise OutputWriteError(f"{output} names no file: say --output FOLDER/NAME.memory.sqlite")
    if output is not None and output.exists() and path.exists() and output.samefile(path):
        raise OutputWriteError(f"{output} is the snapshot itself: choose another --output")
    check_outputs([output_path(path, options, None)], force=options.force)


def output_path(path: Path, options: ConvertOptions, device: int | None) -> Path:
    """Where a report goes: beside the snapshot unless told, with ``.cuda1`` where there are several."""
    ordinal = "" if device is None else f".cuda{device}"
    if options.output is None:
        stem = path.name
        while stem.lower().endswith(_INPUT_SUFFIXES):
            stem = stem[: stem.rindex(".")]
        return path.with_name(f"{stem or path.name}{ordinal}.memory.sqlite")
    name = options.output.name
    for suffix in (".memory.sqlite", ".sqlite", ".db"):
        if name.endswith(suffix):
            return options.output.with_name(f"{name.removesuffix(suffix)}{ordinal}{suffix}")
    return options.output.with_name(f"{name}{ordinal}")


def parse_path_map(text: str) -> PathMap:
    """Read ``OLD=NEW``; raises ValueError for anything else."""
    old, separator, new = text.partition("=")
    if not (old and separator and new):
        raise ValueError(f"expected OLD=NEW, got {text!r}")
    return PathMap(normal(old), normal(new))


def _chosen(snapshot: Snapshot, device: int | None) -> tuple[DeviceSnapshot, ...]:
    if device is None:
        return snapshot.devices
    found = tuple(d for d in snapshot.devices if d.device == device)
    if not found:
        there = ", ".join(str(d.device) for d in snapshot.devices)
        raise InputError(f"{snapshot.path} has nothing of device {device}; it has: {there}")
    return found
