"""A capture: the folder that a recording leaves, with the snapshot and, where there are times, the times."""

from pathlib import Path

SNAPSHOT_NAME, TIMING_NAME = "snapshot.pickle", "timing.json"
_SUFFIX = ".capture"


def is_capture(path: Path) -> bool:
    """Whether a path is the folder of a capture."""
    try:
        return path.is_dir() and (path / SNAPSHOT_NAME).is_file()
    except OSError:  # what cannot be looked at has its error when it is read
        return False


def snapshot_file(path: Path) -> Path:
    """The snapshot of a capture, or the path itself if it is no capture."""
    return path / SNAPSHOT_NAME if is_capture(path) else path


def timing_file(path: Path) -> Path | None:
    """The times of a capture; None where there are none."""
    file = path / TIMING_NAME
    return file if is_capture(path) and file.is_file() else None


def files_of(path: Path) -> tuple[Path, ...]:
    """All files of the input at a path: those of a capture, or the file itself."""
    timing = timing_file(path)
    return (snapshot_file(path),) if timing is None else (snapshot_file(path), timing)


def stem_of(path: Path) -> Path:
    """What the outputs of a capture are named after, beside it: its folder, without ``.capture``."""
    folder = path if path.name not in ("", "..") else path.resolve()
    return folder.with_name(folder.name.removesuffix(_SUFFIX) or folder.name)
