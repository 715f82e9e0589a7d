"""Patterns -> the files of a job: snapshots, captures, folders, globs, lists, files of stores.

Only names, sizes and versions of files are read. URLs that fsspec knows (``s3://``, ``gs://``,
``hf://``, ``ssh://``) need the extra ``remote``; a path without ``://`` never does.
"""

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from snapconv.answers.ranks.rank_file import RankFile
from snapconv.errors import InputError
from snapconv.files import SNAPSHOT_NAME, open_input

# The endings of snapshots in a folder; a file that is named itself may have any name.
_ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_CAPTURE = ".capture"
# A line of a list is a path; a list of a million ranks is meant for something else.
_MAX_LIST_BYTES = 256 << 20
# In the name of a file, or at the beginning of a folder's: "lora-rank-16" is a setting.
_RANK = re.compile(r"rank[-_=.]?(\d{1,9})(?!\d)|(?<!\d)(\d{1,9})-of-\d+", re.IGNORECASE)
_RANK_OF_FOLDER = re.compile(
    r"(?:^|[/\\.])(?:global_)?rank[-_=.]?(\d{1,9})(?!\d)", re.IGNORECASE
)
_DUMP = re.compile(
    r"(?:iteration|iter|step|epoch|oom|end)[-_=.]?(\d{1,12})(_exit)?(?!\d)", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+")
# A longer number, such as a time, is no rank.
_MOST_DIGITS = 9
# Coordinates on the axes of a mesh, such as tp0_pp3.
_COORDINATE = re.compile(r"(?<![a-z])(pp|tp|dp|cp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JobInput:
    """A file to read; ``row`` has its name and rank, or the error of one that cannot be read.

    ``version`` changes with its content, None: nothing shows that.
    """

    row: RankFile
    version: str | None = None

    @property
    def path(self) -> str:
        """The path or URL of the snapshot itself."""
        return self.row.file


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of a store."""
    return "://" in path


def find_inputs(patterns: Sequence[str], *, is_absolute: bool = False) -> list[JobInput]:
    """Find the files that the patterns name, each once, with the ranks that their names have.

    A pattern without files becomes an input with an error. Raises InputError where no pattern has
    a file. ``is_absolute``: return absolute paths, for workers in other folders.
    """
    inputs: dict[str, JobInput] = {}
    for pattern in _listed(patterns):
        if is_remote(pattern):
            items = list(_remote(pattern))
        else:
            if is_absolute:
                pattern = os.path.abspath(pattern)  # noqa: PTH100  # links stay
            items = list(_local(pattern))
        for item in items or [_missing(pattern)]:
            inputs.setdefault(item.path, item)
    errors = [item.row.error for item in inputs.values()]
    if None not in errors:
        raise InputError(next(filter(None, errors), "no file is named"))
    return _add_ranks(list(inputs.values()))


def _listed(patterns: Iterable[str]) -> Iterator[str]:
    """Replace every ``@LIST`` by the lines of that file."""
    for pattern in patterns:
        if not pattern.startswith("@"):
            yield pattern
            continue
        try:
            with open_input(Path(pattern[1:])) as file:
                lines = file.read(_MAX_LIST_BYTES).decode("utf-8", "replace").splitlines()
        except OSError as error:
            raise InputError(
                f"{pattern[1:]}: the list cannot be read: {error.strerror}"
            ) from error
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield line.strip()


def _failed(path: str, message: str) -> JobInput:
    return JobInput(RankFile(path).add_error(InputError(message)))


def _missing(pattern: str) -> JobInput:
    reason = "is not there"
    if Path(pattern).is_dir():
        reason = "has no snapshot (*.pickle, *.pickle.gz) and no capture"
    return _failed(pattern, f"{pattern} {reason}: check the path")


def _is_snapshot(name: str) -> bool:
    """Return whether a file in a folder is a snapshot, by its name."""
    return name.lower().endswith(_ENDINGS) and not PurePosixPath(name).name.startswith(".")


# --- files here


def _local(pattern: str) -> Iterator[JobInput]:
    paths = [pattern]
    if not os.path.lexists(pattern):
        matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # Path has no absolute one
        paths = sorted(matches)
    for path in paths:
        if not Path(path).is_dir():
            yield _local_file(path)
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(filter(_is_snapshot, names)):
                yield _local_file(str(Path(folder, name)))


def _local_file(path: str) -> JobInput:
    try:
        status = Path(path).stat()
    except OSError as error:
        return _failed(path, f"{path} cannot be read: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return _failed(path, f"{path} is a pipe or device, and no file")
    version = f"{status.st_size} {status.st_mtime_ns}"
    return JobInput(RankFile(path, n_bytes=status.st_size), version=version)


# --- files of a store


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; raises InputError if there is none."""
    try:
        import fsspec
    except ImportError as error:
        raise InputError(
            f"{url}: pip install 'snapconv[remote]' reads files of stores"
        ) from error
    try:
        store, path = fsspec.core.url_to_fs(url)
    except Exception as error:
        # Stores have errors of their own; a missing package is named.
        raise InputError(f"{url}: {_first_line(error)}") from error
    return store, path


def _remote(url: str) -> Iterator[JobInput]:
    store, path = open_store(url)
    try:
        if glob.has_magic(path) and not store.exists(path):
            entries = store.glob(path, detail=True)
        elif store.isfile(path):
            yield _remote_file(store, store.info(path))
            return
        else:
            entries = {path: {"type": "directory"}} if store.isdir(path) else {}
        for name, entry in sorted(entries.items()):
            if entry["type"] == "file":
                yield _remote_file(store, entry)
                continue
            files = store.find(name, detail=True)
            for file_name in sorted(filter(_is_snapshot, files)):
                yield _remote_file(store, files[file_name])
    except Exception as error:  # noqa: BLE001  # every store has errors of its own
        yield _failed(url, f"{url} cannot be read: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return next(iter(lines), "") or type(error).__name__


# The keys of values that change with a file's content, in the stores that fsspec knows.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "generation",
    "blob_id",
    "sha256",
    "LastModified",
    "mtime",
    "created",
)


def _remote_file(store: Any, entry: dict[str, Any]) -> JobInput:
    n_bytes = entry.get("size")
    if not isinstance(n_bytes, int):
        n_bytes = None
    versions = [f"{n_bytes} {entry[key]}" for key in _VERSIONS if entry.get(key)]
    row = RankFile(store.unstrip_protocol(entry["name"]), n_bytes=n_bytes)
    return JobInput(row, version=versions[0] if versions else None)


# --- ranks and dumps


def _add_ranks(inputs: Sequence[JobInput]) -> list[JobInput]:
    """Add the rank and the dump in each name.

    If no name has the word *rank*, the last numbers are the ranks, if all differ.
    """
    parsed = [replace(item, row=_parse_name(item.row)) for item in inputs]
    if any(item.row.rank is not None for item in parsed) or len(parsed) < 2:
        return parsed
    ranks = [_last_number(item.path) for item in parsed]
    if None in ranks or len(set(ranks)) < len(ranks):
        return parsed
    ranked = []
    for item, rank in zip(parsed, ranks, strict=True):
        ranked.append(replace(item, row=replace(item.row, rank=rank)))
    return ranked


def _last_number(path: str) -> int | None:
    """Return the last number in what distinguishes a path; None without one, or for a long one."""
    numbers = _NUMBER.findall(_own_name(path))
    is_rank = numbers and len(numbers[-1]) <= _MOST_DIGITS
    return int(numbers[-1]) if is_rank else None


def _parse_name(row: RankFile) -> RankFile:
    """Return a row with the rank, the dump and the coordinates that its file's name has."""
    file_name = re.split(r"[/\\]", row.file)[-1]
    dump = _last(_DUMP, row.file)
    rank = _last(_RANK, file_name) or _last(_RANK_OF_FOLDER, row.file)
    coordinates = {}
    for axis, number in _COORDINATE.findall(_own_name(row.file)):
        coordinates[axis.lower()] = int(number)
    return replace(
        row,
        rank=int(rank[rank.lastindex or 0]) if rank else None,
        dump=dump[0] if dump else "",
        dump_number=int(dump[1]) if dump else 0,
        coordinates=coordinates,
    )


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def _own_name(path: str) -> str:
    """Return the part of a path that distinguishes it: the capture's folder, or the file."""
    pure = PurePosixPath(path.replace(os.sep, "/"))
    if pure.name == SNAPSHOT_NAME:
        return pure.parent.name.removesuffix(_CAPTURE)
    return pure.name
