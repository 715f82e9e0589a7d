"""A snapshot in a notebook: ``snapconv.load(path)`` gives the tables that the reports are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snapconv.analysis.analyze import DeviceAnalysis, analyze_device
from snapconv.analysis.paths import PathMap
from snapconv.analysis.project import Project, find_project
from snapconv.notes import Note
from snapconv.reports.build import build_memory_report
from snapconv.reports.report import MemoryReport
from snapconv.snapshot.load import Snapshot, load_snapshot

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Session:
    """A file that was read and analysed.

    ``snapshot`` has the file's own tables (events, segments, blocks, stacks), ``devices`` one analysis
    per device (allocations with sizes, categories and operations; the four curves; iterations),
    ``project`` tells the user's frames from the rest.
    """

    snapshot: Snapshot
    project: Project
    devices: tuple[DeviceAnalysis, ...]

    @property
    def notes(self) -> tuple[Note, ...]:
        """What the format allows but the user should know, each once."""
        return tuple(dict.fromkeys(note for device in self.devices for note in device.notes))

    def report(self, device: int | None = None) -> MemoryReport:
        """The finished figures of one device (its ordinal; by default the first in the file).

        Raises KeyError for a device that the file does not have.
        """
        if device is None:
            return build_memory_report(self.snapshot, self.project, self.devices[0])
        for analysis in self.devices:
            if analysis.device.device == device:
                return build_memory_report(self.snapshot, self.project, analysis)
        raise KeyError(device)


def load(
    path: str | Path,
    *,
    project_root: str | None = None,
    path_maps: tuple[PathMap, ...] = (),
    progress: Progress | None = None,
) -> Session:
    """Read and analyse a snapshot of any era and container; nothing in it is run.

    Raises SnapconvError: InputError where the file is damaged or something else, UnsafePickleError
    where it asks for code.
    """
    snapshot = load_snapshot(path, progress=progress)
    project = find_project(snapshot.stacks, root=project_root, path_maps=path_maps)
    return Session(
        snapshot, project, tuple(analyze_device(snapshot, device, project) for device in snapshot.devices)
    )
