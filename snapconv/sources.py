"""The sources that a program was recorded from: which files of which folders, and what their lines call.

Frames are as untrusted as all of a snapshot: a name in one may be `../../etc/passwd`. Files are looked for
below the given folders only, read as text, and never run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from snapconv.analysis.operations import leaf_frames
from snapconv.analysis.paths import is_library, normal
from snapconv.analysis.project import Project
from snapconv.analysis.source_lines import INSTALLED, SourceLines, read_lines
from snapconv.errors import InputError
from snapconv.notes import Note
from snapconv.snapshot.stacks import StackTable
from snapconv.units import counted

# The longest module of torch has 0.6 MB; what is far longer was made by a program.
_MAX_BYTES = 4 * 2**20
_MANY = 3


def source_lines(folders: Sequence[Path], stacks: StackTable, project: Project) -> SourceLines | None:
    """The lines of the frames that asked for memory, as far as the folders have their files.

    None without folders. Raises InputError where a folder is none. A file that is not the one that ran is
    left out, with a note.
    """
    roots = [_root(folder) for folder in folders]
    if not roots:
        return None
    wanted = leaf_frames(stacks)
    texts: dict[str, str] = {}
    filenames = stacks.frames.filenames
    files = {filenames[frame]: project.relative_paths[frame] for frame in sorted(wanted)}
    for filename, relative in files.items():
        text = _text(roots, _places(normal(filename), relative))
        if text is not None:
            texts[filename] = text
    found = read_lines(stacks.frames, wanted, texts)
    return replace(found, notes=tuple(_notes(found, n_wanted=len(files), n_files=len(texts))))


def _notes(found: SourceLines, *, n_wanted: int, n_files: int) -> Iterator[Note]:
    if n_wanted and not n_files:
        yield Note(
            "no-sources",
            f"--source has none of the {counted(n_wanted, 'file')} whose lines asked for memory: they are "
            "looked for by their path below the project root, or below site-packages",
        )
    if found.doubted:
        some = ", ".join(PurePosixPath(normal(name)).name for name in found.doubted[:_MANY])
        more = f" and {len(found.doubted) - _MANY} more" if len(found.doubted) > _MANY else ""
        yield Note(
            "other-sources",
            f"{counted(len(found.doubted), 'file')} of --source cannot be what was recorded: {some}{more}",
        )


def _root(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
        if root.is_dir():
            return root
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot look for sources in {folder}: {error}") from error
    raise InputError(f"cannot look for sources in {folder}: it is no folder")


def _places(path: str, relative: str) -> Iterator[str]:
    """Where a file may be below a folder: as it was installed; as in its project, or in what holds that."""
    installed = INSTALLED.split(path)
    if len(installed) > 1:
        yield installed[-1]
    elif not is_library(path):
        parts = path.split("/")
        for n_outer in range(len(parts) - relative.count("/") - 1, -1, -1):
            yield "/".join(parts[n_outer:])


def _text(roots: Sequence[Path], places: Iterator[str]) -> str | None:
    """The first file that lies below a folder, also when all its links are followed."""
    for place in places:
        for root in roots:
            if place.startswith("/") or place[1:2] == ":":
                continue
            try:
                file = (root / place).resolve(strict=True)
                if file.is_relative_to(root) and file.is_file() and file.stat().st_size <= _MAX_BYTES:
                    # What is no UTF-8 is in a comment or a text, if it is Python at all.
                    return file.read_bytes().decode("utf-8-sig", errors="replace")
            except (OSError, RuntimeError, ValueError):  # no such file, a loop of links, an odd name
                continue
    return None
