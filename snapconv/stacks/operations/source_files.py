"""The sources that a program was recorded from: which files of which folders, and what their lines call.

Frames are as untrusted as all of a snapshot: a name in one may be `../../etc/passwd`. Files are looked for
below the given folders only, read as text, and never run.
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from snapconv.errors import InputError
from snapconv.notes import Note
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.operations.operation_of_stack import leaf_frames
from snapconv.stacks.operations.source_lines import INSTALLED, Line, SourceLines, module_of, read_source
from snapconv.stacks.paths import is_library, normal
from snapconv.stacks.project_frames import Project
from snapconv.units import counted

# The longest module of torch has 0.6 MB; what is far longer was made by a program, and takes a thousand times
# its size to parse.
_MAX_BYTES = 2**20
_MANY = 3
# What leads from the project's root to a file that is beside it.
_ABOVE = re.compile(r"^(\.\./)+")
# The files that a file name of the snapshot may stand for, the best first.
_Candidates = Mapping[str, Sequence[Path]]


def source_lines(folders: Sequence[str | Path], stacks: StackTable, project: Project) -> SourceLines | None:
    """The lines of the frames that requested memory, as far as the folders have their files.

    None without folders. Raises InputError where a folder is none. A file that is not the one that ran is
    left out, with a note.
    """
    roots = [_root(folder) for folder in folders]
    if not roots:
        return None
    wanted = leaf_frames(stacks)
    filenames = stacks.frames.filenames
    relative = {filenames[frame]: project.relative_paths[frame] for frame in sorted(wanted)}
    candidates = {
        filename: list(dict.fromkeys(_files(roots, list(_places(normal(filename), path)))))
        for filename, path in relative.items()
    }
    found = _read(candidates, stacks.frames, wanted)
    has_none = bool(candidates) and not any(candidates.values())
    return replace(found, notes=tuple(_notes(found, n_missing=len(candidates) if has_none else 0)))


def _read(candidates: _Candidates, frames: FrameTable, wanted: Collection[int]) -> SourceLines:
    """Take the lines of every file name from the first of its files that can be what was recorded."""
    of_name: dict[str, list[int]] = defaultdict(list)
    for frame, filename in enumerate(frames.filenames):
        if filename in candidates:
            of_name[filename].append(frame)
    # File by file, since many names may stand for one, and a parsed file is large.
    names_of: dict[Path, list[str]] = defaultdict(list)
    for filename, files in candidates.items():
        for file in files:
            names_of[file].append(filename)
    read: dict[tuple[str, Path], Mapping[int, Line] | None] = {}
    unparsed: set[Path] = set()
    for file, names in names_of.items():
        found = _lines_in(file, {name: of_name[name] for name in names}, frames, wanted)
        if found is None:
            unparsed.add(file)
        else:
            read |= {(name, file): lines for name, lines in found.items()}
    return _choose(candidates, read, unparsed)


def _choose(
    candidates: _Candidates,
    read: Mapping[tuple[str, Path], Mapping[int, Line] | None],
    unparsed: Collection[Path],
) -> SourceLines:
    lines: dict[int, Line] = {}
    mismatched: list[str] = []
    odd: list[str] = []
    for filename, files in candidates.items():
        matching = (found for file in files if (found := read.get((filename, file))) is not None)
        chosen = next(matching, None)
        if chosen is not None:
            lines |= chosen
        elif files:
            (odd if all(file in unparsed for file in files) else mismatched).append(filename)
    return SourceLines(lines, tuple(sorted(mismatched)), tuple(sorted(odd)))


def _lines_in(
    file: Path, of_name: Mapping[str, Sequence[int]], frames: FrameTable, wanted: Collection[int]
) -> Mapping[str, Mapping[int, Line] | None] | None:
    """The wanted lines of one file, for each name that it has in the snapshot; None if it does not parse."""
    try:
        # What is no UTF-8 is in a comment or a text, if it is Python at all.
        text = file.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError:
        return None
    source = read_source(text, next(filter(None, map(module_of, of_name)), None))
    if source is None:
        return None
    return {name: source.lines_of(frames, ids, wanted) for name, ids in of_name.items()}


def _notes(found: SourceLines, *, n_missing: int) -> Iterator[Note]:
    if n_missing:
        yield Note(
            "no-sources",
            f"--source has none of the {counted(n_missing, 'file')} whose lines requested memory: they are "
            "looked for by their path below the project root, or below site-packages",
        )
    for names, what in (
        (found.mismatched, "cannot be what was recorded"),
        (found.unparsed, "could not be parsed by this Python"),
    ):
        if names:
            some = ", ".join(PurePosixPath(normal(name)).name for name in names[:_MANY])
            more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
            yield Note("other-sources", f"{counted(len(names), 'file')} of --source {what}: {some}{more}")


def _root(folder: str | Path) -> Path:
    # For pathlib an empty name is the current folder: mostly it is a variable of a shell that is not set.
    if not str(folder):
        raise InputError("cannot look for sources in '': it names no folder")
    try:
        root = Path(folder).resolve(strict=True)
        if root.is_dir():
            return root
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"cannot look for sources in {folder}: {getattr(error, 'strerror', None) or error}"
        ) from error
    raise InputError(f"cannot look for sources in {folder}: it is no folder")


def _places(path: str, relative: str) -> Iterator[str]:
    """Where a file may be below a folder: as installed, as in its project, or in the folder around that."""
    installed = INSTALLED.split(path)
    if len(installed) > 1:
        yield installed[-1]
    elif not is_library(path):
        parts, relative = path.split("/"), _ABOVE.sub("", relative)
        for n_outer in range(len(parts) - relative.count("/") - 1, -1, -1):
            yield "/".join(parts[n_outer:])


def _files(roots: Sequence[Path], places: Iterable[str]) -> Iterator[Path]:
    """The files at these places, folder by folder, that are below it also when all links are followed."""
    for root in roots:
        for place in places:
            if place.startswith("/") or place[1:2] == ":":
                continue
            try:
                file = (root / place).resolve(strict=True)
                is_there = file.is_relative_to(root) and file.is_file() and os.access(file, os.R_OK)
                if is_there and file.stat().st_size <= _MAX_BYTES:
                    yield file
            except (OSError, RuntimeError, ValueError):  # no such file, a loop of links, an odd name
                continue
