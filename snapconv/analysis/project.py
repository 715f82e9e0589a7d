"""Which frames are the user's own code: the project root, given or inferred, and relative paths."""

import posixpath
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.columns import read_only
from snapconv.analysis.paths import PathMap, is_library, is_notebook, is_python, is_under, normal
from snapconv.snapshot.stacks import StackTable

# Folders that hold projects rather than being one; also every direct child of the second group. Some
# images mount a single project at /workspace, others clone several below it. Too narrow a root leaves out
# files beside the script's folder; too wide a one takes other checkouts for the user's code, and the
# innermost of their lines would get the memory.
_TOO_WIDE = {"", "/", "/root", "/home", "/Users", "/mnt", "/tmp", "/opt", "/srv", "/data", "/workspace"}
_HOMES = {"/home", "/Users", "c:/Users"}


@dataclass(frozen=True, slots=True)
class Project:
    """The user's code in one file's frames.

    ``root`` is as recorded (after path maps), None if no frame looks like a project. ``seen_root`` is
    the one that the frames themselves suggest, whatever was given. ``is_project`` (bool) and
    ``relative_paths`` have one entry per frame of the FrameTable.
    """

    root: str | None
    seen_root: str | None
    is_inferred: bool
    is_project: NDArray[np.bool_]
    relative_paths: tuple[str, ...]


def find_project(
    stacks: StackTable,
    *,
    root: str | None = None,
    recorded_root: str | None = None,
    path_maps: tuple[PathMap, ...] = (),
) -> Project:
    """Decide for every frame whether it is the user's; infer the root where none is given or recorded."""
    paths = tuple(_mapped(filename, path_maps) for filename in stacks.frames.filenames)
    mine = [is_python(path) and not is_library(path) for path in paths]
    seen = _infer_root(stacks, paths, mine)
    recorded = _mapped(recorded_root, path_maps) if recorded_root else None
    chosen = normal(root) if root else recorded or seen
    is_project = np.array(
        [m and _belongs(path, chosen) for m, path in zip(mine, paths, strict=True)], np.bool_
    )
    project = Project(
        root=chosen,
        seen_root=seen,
        is_inferred=not (root or recorded_root),
        is_project=is_project,
        relative_paths=tuple(_relative(path, chosen) for path in paths),
    )
    return read_only(project)


def _mapped(filename: str, path_maps: tuple[PathMap, ...]) -> str:
    path = normal(filename)
    for path_map in path_maps:
        path = path_map.apply(path)
    return path


def _is_relative(path: str) -> bool:
    return not path.startswith("/") and path[1:2] != ":"


def _belongs(path: str, root: str | None) -> bool:
    # A script started as `python train.py` is recorded by that relative name.
    return _is_relative(path) or is_notebook(path) or (root is not None and is_under(path, root))


def _relative(path: str, root: str | None) -> str:
    if root is None or not is_under(path, root):
        return path
    return path[len(root.rstrip("/")) + 1 :]


def _infer_root(stacks: StackTable, paths: tuple[str, ...], mine: list[bool]) -> str | None:
    """The common folder of the user's files, starting from the script that ran."""
    uses = np.bincount(stacks.frame_ids, minlength=len(paths))
    folders: Counter[str] = Counter()
    scripts: Counter[str] = Counter()
    for frame, (path, is_mine) in enumerate(zip(paths, mine, strict=True)):
        if is_mine and not _is_relative(path) and not is_notebook(path):
            folder = posixpath.dirname(path)
            folders[folder] += int(uses[frame])
            if stacks.frames.names[frame] == "<module>":
                scripts[folder] += int(uses[frame])
    if not folders:
        return None
    # Even a folder that holds projects, where the script lies right in it: no other root has the script.
    start = _most_common(scripts) if scripts else _most_common(folders)
    common = start
    for folder in sorted(folders):
        wider = posixpath.commonpath([common, folder]) if common[:1] == folder[:1] else ""
        if not _is_too_wide(wider):
            common = wider
    return common


def _most_common(folders: Counter[str]) -> str:
    """The most used folder; of equals, the first by name."""
    return min(folders, key=lambda folder: (-folders[folder], folder))


def _is_too_wide(folder: str) -> bool:
    is_drive = folder[1:] == ":"
    return is_drive or folder in _TOO_WIDE or folder in _HOMES or posixpath.dirname(folder) in _HOMES
