"""Patterns -> the files of a job: snapshots, captures, folders, globs and lists, here or in a store.

Nothing is read but names, sizes and what says whether a file has changed. What fsspec knows
(``s3://``, ``gs://``, ``hf://``, ``ssh://``) needs the extra ``remote``; a path without ``://``
never does.
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

# Of a folder these are taken; a file that is named itself may have any name.
_ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_CAPTURE = ".capture"
# A line of a list is a path; a list of a million ranks is meant for something else.
_MOST_OF_LIST = 256 << 20
# In the name of a file, or at the beginning of a folder's: "lora-rank-16" is a setting.
_RANK = re.compile(r"rank[-_=.]?(\d{1,9})(?!\d)|(?<!\d)(\d{1,9})-of-\d+", re.IGNORECASE)
_RANK_OF_FOLDER = re.compile(r"(?:^|[/\\.])(?:global_)?rank[-_=.]?(\d{1,9})(?!\d)", re.IGNORECASE)
_DUMP = re.compile(
    r"(?:iteration|iter|step|epoch|oom|end)[-_=.]?(\d{1,12})(_exit)?(?!\d)", re.IGNORECASE
)
_NUMBER = re.compile(r"\d+")
# Places on the axes of a mesh, such as tp0_pp3.
_PLACE = re.compile(r"(?<![a-z])(pp|tp|dp|cp)[-_=]?(\d{1,6})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class JobInput:
    """A file to read, or the error of one that cannot be in its ``place``.

    ``version`` changes with its content, None: nothing shows that.
    """

    place: RankFile
    version: str | None = None

    @property
    def path(self) -> str:
        """The path or URL of the snapshot itself."""
        return self.place.file


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of a store."""
    return "://" in path


def find_inputs(patterns: Sequence[str], *, is_absolute: bool = False) -> list[JobInput]:
    """Find the files that the patterns name, each once, with the ranks that their names have.

    What a pattern names and is not there becomes an input with an error. Raises InputError where
    nothing at all is found. ``is_absolute``: with whole paths, for workers in other folders.
    """
    found: dict[str, JobInput] = {}
    for name in _listed(patterns):
        pattern = os.path.abspath(name) if is_absolute and not is_remote(name) else name  # noqa: PTH100  # links stay
        some = list(_remote(pattern) if is_remote(pattern) else _local(pattern))
        for one in some or [_missing(pattern)]:
            found.setdefault(one.path, one)
    errors = [one.place.error for one in found.values()]
    if None not in errors:
        raise InputError(next(filter(None, errors), "no file is named"))
    return _with_ranks(list(found.values()))


def _listed(patterns: Iterable[str]) -> Iterator[str]:
    """Replace every ``@LIST`` by the lines of that file."""
    for pattern in patterns:
        if not pattern.startswith("@"):
            yield pattern
            continue
        try:
            with open_input(Path(pattern[1:])) as file:
                lines = file.read(_MOST_OF_LIST).decode("utf-8", "replace").splitlines()
        except OSError as error:
            raise InputError(f"{pattern[1:]}: the list cannot be read: {error.strerror}") from error
        yield from (line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _missing(pattern: str) -> JobInput:
    what = (
        "has no snapshot (*.pickle, *.pickle.gz) and no capture"
        if Path(pattern).is_dir()
        else "is not there"
    )
    return JobInput(RankFile(pattern).with_error(InputError(f"{pattern} {what}: check the path")))


def _is_snapshot(name: str) -> bool:
    """Return whether a file in a folder is one to take: other names are other things."""
    return name.lower().endswith(_ENDINGS) and not PurePosixPath(name).name.startswith(".")


# --- files here


def _local(pattern: str) -> Iterator[JobInput]:
    if os.path.lexists(pattern):
        yield from _local_path(pattern)
    elif glob.has_magic(pattern):
        for path in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207  # Path's takes no absolute one
            yield from _local_path(path)


def _local_path(path: str) -> Iterator[JobInput]:
    if not Path(path).is_dir():
        yield _local_file(path)
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(filter(_is_snapshot, names)):
            yield _local_file(str(Path(folder, name)))


def _local_file(path: str) -> JobInput:
    try:
        status = Path(path).stat()
    except OSError as error:
        return JobInput(
            RankFile(path).with_error(InputError(f"{path} cannot be read: {error.strerror}"))
        )
    if not stat.S_ISREG(status.st_mode):
        return JobInput(
            RankFile(path).with_error(InputError(f"{path} is a pipe or device, and no file"))
        )
    version = f"{status.st_size} {status.st_mtime_ns}"
    return JobInput(RankFile(path, n_bytes=status.st_size), version=version)


# --- files of a store


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; raises InputError where there is none."""
    try:
        import fsspec
    except ImportError as error:
        raise InputError(f"{url}: pip install 'snapconv[remote]' reads files of stores") from error
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
    except (
        Exception
    ) as error:  # every store has errors of its own; that of a missing package names it
        raise InputError(f"{url}: {_first_line(error)}") from error
    return found


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
            inside = store.find(name, detail=True)
            yield from (
                _remote_file(store, inside[one]) for one in sorted(inside) if _is_snapshot(one)
            )
    except Exception as error:  # noqa: BLE001  # every store has errors of its own
        yield JobInput(
            RankFile(url).with_error(InputError(f"{url} cannot be read: {_first_line(error)}"))
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


# Names for what changes with a file's content, in the stores that fsspec knows.
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
    n_bytes = n_bytes if isinstance(n_bytes, int) else None
    version = next((str(entry[key]) for key in _VERSIONS if entry.get(key)), None)
    return JobInput(
        RankFile(store.unstrip_protocol(entry["name"]), n_bytes=n_bytes),
        version=None if version is None else f"{n_bytes} {version}",
    )


# --- ranks and dumps


def _with_ranks(inputs: Sequence[JobInput]) -> list[JobInput]:
    """Find the rank and the dump in each name; without the word *rank*, the last number if all differ."""
    named = [replace(one, place=_named(one.place)) for one in inputs]
    if any(one.place.rank is not None for one in named) or len(named) < 2:
        return named
    numbers = [_NUMBER.findall(_own_name(one.path)) for one in named]
    ranks = [int(found[-1]) if found and len(found[-1]) < 10 else -1 for found in numbers]
    if len(set(ranks)) < len(ranks) or -1 in ranks:
        return named
    return [
        replace(one, place=replace(one.place, rank=rank))
        for one, rank in zip(named, ranks, strict=True)
    ]


def _named(place: RankFile) -> RankFile:
    own = list(_RANK.finditer(re.split(r"[/\\]", place.file)[-1]))
    dumps = list(_DUMP.finditer(place.file))
    dump = dumps[-1] if dumps else None
    ranks = own or list(_RANK_OF_FOLDER.finditer(place.file))
    return replace(
        place,
        rank=int(ranks[-1][ranks[-1].lastindex or 0]) if ranks else None,
        dump=dump[0] if dump else "",
        dump_number=int(dump[1]) if dump else 0,
        coordinates={
            axis.lower(): int(place) for axis, place in _PLACE.findall(_own_name(place.file))
        },
    )


def _own_name(path: str) -> str:
    """Return the part of a path that distinguishes it: the capture's folder, or the file."""
    pure = PurePosixPath(path.replace(os.sep, "/"))
    return pure.parent.name.removesuffix(_CAPTURE) if pure.name == SNAPSHOT_NAME else pure.name
